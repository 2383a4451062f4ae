#include "widehead/softmax_kernels.h"

#include <algorithm>
#include <limits>

#include "widehead/exponential.h"

namespace widehead {
namespace {

/// Work below which a second thread costs more than it saves.
constexpr Size min_parallel_elements = 1 << 15;
/// Rows that are treated at once: whole cache lines of each column, so that no two threads write to one.
constexpr Size stripe = 64;

template <class T>
int team_for(int threads, MatrixView<T> A) {
  return A.size() < min_parallel_elements ? 1 : threads;
}

}  // namespace

template <class T>
void exponentiate_rows(MatrixView<T> A, int threads, std::span<T> maxima, std::span<double> sums) {
#pragma omp parallel for num_threads(team_for(threads, A)) schedule(static)
  for (Size first = 0; first < A.rows; first += stripe) {
    const Size count = std::min(stripe, A.rows - first);
    T* maximum = maxima.data() + first;
    double* sum = sums.data() + first;
    std::fill_n(maximum, count, std::numeric_limits<T>::lowest());
    std::fill_n(sum, count, 0.0);
    for (Size i = 0; i < A.cols; ++i) {
      const T* a = A.column(i) + first;
#pragma omp simd
      for (Size j = 0; j < count; ++j) maximum[j] = a[j] > maximum[j] ? a[j] : maximum[j];
    }
    for (Size i = 0; i < A.cols; ++i) {
      T* a = A.column(i) + first;
#pragma omp simd
      for (Size j = 0; j < count; ++j) a[j] -= maximum[j];
      exp_of_non_positive(count, a);
#pragma omp simd
      for (Size j = 0; j < count; ++j) sum[j] += static_cast<double>(a[j]);
    }
  }
}

template <class T>
void exponentiate_columns(MatrixView<T> A, int threads, std::span<T> maxima, std::span<double> sums) {
#pragma omp parallel for num_threads(team_for(threads, A)) schedule(static)
  for (Size j = 0; j < A.cols; ++j) {
    T* a = A.column(j);
    T maximum = std::numeric_limits<T>::lowest();
#pragma omp simd reduction(max : maximum)
    for (Size i = 0; i < A.rows; ++i) maximum = a[i] > maximum ? a[i] : maximum;
    double sum = 0;
#pragma omp simd
    for (Size i = 0; i < A.rows; ++i) a[i] -= maximum;
    exp_of_non_positive(A.rows, a);
#pragma omp simd reduction(+ : sum)
    for (Size i = 0; i < A.rows; ++i) sum += static_cast<double>(a[i]);
    maxima[static_cast<std::size_t>(j)] = maximum;
    sums[static_cast<std::size_t>(j)] = sum;
  }
}

template <class T>
void scale_rows(std::span<const T> a, int threads, MatrixView<T> A) {
#pragma omp parallel for num_threads(team_for(threads, A)) schedule(static)
  for (Size i = 0; i < A.cols; ++i) {
    T* column = A.column(i);
#pragma omp simd
    for (Size j = 0; j < A.rows; ++j) column[j] *= a[static_cast<std::size_t>(j)];
  }
}

template void exponentiate_rows(MatrixView<float>, int, std::span<float>, std::span<double>);
template void exponentiate_rows(MatrixView<double>, int, std::span<double>, std::span<double>);
template void exponentiate_columns(MatrixView<float>, int, std::span<float>, std::span<double>);
template void exponentiate_columns(MatrixView<double>, int, std::span<double>, std::span<double>);
template void scale_rows(std::span<const float>, int, MatrixView<float>);
template void scale_rows(std::span<const double>, int, MatrixView<double>);

}  // namespace widehead
