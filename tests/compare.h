#pragma once
/// Comparisons of matrices: normwise (Frobenius, in double), or bit by bit. For float and double; compare.cpp has the
/// loops.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "widehead/matrix.h"

namespace widehead::test {

template <class T>
double norm(MatrixView<const T> A);
template <class T>
double norm(const Matrix<T>& A) {
  return norm<T>(A.view());
}

template <class T>
Matrix<double> to_double(MatrixView<const T> A);
template <class T>
Matrix<double> to_double(const Matrix<T>& A) {
  return to_double<T>(A.view());
}

/// ‖A − B‖_F ≤ tolerance · scale.
template <class T>
testing::AssertionResult is_near(ConstView<T> A, MatrixView<const double> B, double tolerance, double scale);
/// The same at the scale ‖B‖_F.
template <class T>
testing::AssertionResult is_near(ConstView<T> A, MatrixView<const double> B, double tolerance) {
  return is_near<T>(A, B, tolerance, norm<double>(B));
}

/// |a − b| ≤ tolerance · scale.
testing::AssertionResult is_near(double a, double b, double tolerance, double scale);

/// Equal bit by bit (NaNs included).
template <class T>
testing::AssertionResult is_identical(ConstView<T> A, ConstView<T> B);

template <class T>
bool all_finite(ConstView<T> A);

/// A view amid a larger matrix: stride > rows, and a rim that nobody may write to.
template <class T>
class Padded {
 public:
  Padded(Size rows, Size cols);
  explicit Padded(ConstView<T> A);

  MatrixView<T> view() { return storage_.view().block(3, 1, rows_, cols_); }
  operator MatrixView<T>() { return view(); }        // NOLINT(google-explicit-constructor)
  operator MatrixView<const T>() { return view(); }  // NOLINT(google-explicit-constructor)

  testing::AssertionResult rim_is_intact();

 private:
  static constexpr T rim = T(777);
  Matrix<T> storage_;
  Size rows_, cols_;
};

}  // namespace widehead::test
