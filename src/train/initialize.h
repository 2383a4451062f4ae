#pragma once
/// Initial values of parameters: a value depends on the seed, the parameter's stream and its place only.

#include "widehead/backend.h"
#include "widehead/random.h"

namespace widehead {

/// Independent normal values with the given standard deviation.
template <class T>
void fill_normal(const Random& random, double scale, MatrixView<T> A) {
#pragma omp parallel for
  for (Size j = 0; j < A.cols; ++j) {
    T* column = A.column(j);
    for (Size i = 0; i < A.rows; i += 2) {
      const auto [a, b] = random.normal(static_cast<std::uint64_t>(j), static_cast<std::uint32_t>(i));
      column[i] = static_cast<float>(scale * a);  // a float in either precision: both start from the same
      if (i + 1 < A.rows) column[i + 1] = static_cast<float>(scale * b);
    }
  }
}

/// The same in a backend's memory.
template <class T>
void fill_normal(const Random& random, double scale, Backend<T>& backend, MatrixView<T> A) {
  if (backend.memory().is_host()) {
    fill_normal<T>(random, scale, A);
    return;
  }
  Matrix<T> host(A.rows, A.cols);
  fill_normal<T>(random, scale, host);
  backend.template transfer<T>(host.view(), A);
}

}  // namespace widehead
