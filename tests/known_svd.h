#pragma once
/// A square matrix with singular values and vectors that are known beforehand.

#include <cmath>
#include <utility>
#include <vector>

#include "dice.h"
#include "widehead/matrix.h"

namespace widehead::test {

/// A = left · diag(σ) · right, both factors reflections I − 2vvᵀ/‖v‖² (symmetric and orthogonal).
struct KnownSvd {
  KnownSvd(Dice& dice, std::vector<double> values)
      : sigma(std::move(values)),
        left(reflection(dice, static_cast<Size>(sigma.size()))),
        right(reflection(dice, static_cast<Size>(sigma.size()))),
        A(compose(sigma)) {}

  /// left · diag(values) · right; with 1/σ this is A⁻ᵀ.
  Matrix<double> compose(const std::vector<double>& values) const {
    const Size n = static_cast<Size>(values.size());
    Matrix<double> B(n, n);
    for (Size i = 0; i < n; ++i) {
      for (Size j = 0; j < n; ++j) {
        for (Size k = 0; k < n; ++k) B(i, j) += left(i, k) * values[static_cast<std::size_t>(k)] * right(k, j);
      }
    }
    return B;
  }
  Matrix<double> inverse_transposed() const {
    std::vector<double> inverse;
    for (const double value : sigma) inverse.push_back(1 / value);
    return compose(inverse);
  }

  std::vector<double> sigma;
  Matrix<double> left, right, A;  // n x n

 private:
  static Matrix<double> reflection(Dice& dice, Size n) {
    const auto v = dice.matrix<double>(n, 1);
    double squares = 0;
    for (Size i = 0; i < n; ++i) squares += v(i, 0) * v(i, 0);
    auto P = Matrix<double>::identity(n);
    for (Size i = 0; i < n; ++i) {
      for (Size j = 0; j < n; ++j) P(i, j) -= 2 * v(i, 0) * v(j, 0) / squares;
    }
    return P;
  }
};

}  // namespace widehead::test
