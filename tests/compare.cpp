#include "compare.h"

namespace widehead::test {

template <class T>
double norm(MatrixView<const T> A) {
  double sum = 0;
  for (Size j = 0; j < A.cols; ++j) {
    for (Size i = 0; i < A.rows; ++i) sum += static_cast<double>(A(i, j)) * static_cast<double>(A(i, j));
  }
  return std::sqrt(sum);
}

template <class T>
Matrix<double> to_double(MatrixView<const T> A) {
  Matrix<double> B(A.rows, A.cols);
  for (Size j = 0; j < A.cols; ++j) {
    for (Size i = 0; i < A.rows; ++i) B(i, j) = static_cast<double>(A(i, j));
  }
  return B;
}

template <class T>
testing::AssertionResult is_near(ConstView<T> A, MatrixView<const double> B, double tolerance, double scale) {
  if (A.rows != B.rows || A.cols != B.cols) {
    return testing::AssertionFailure() << A.rows << " x " << A.cols << " instead of " << B.rows << " x " << B.cols;
  }
  double sum = 0;
  for (Size j = 0; j < A.cols; ++j) {
    for (Size i = 0; i < A.rows; ++i) {
      const double difference = static_cast<double>(A(i, j)) - B(i, j);
      sum += difference * difference;
    }
  }
  const double difference = std::sqrt(sum);
  if (difference <= tolerance * scale) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "they differ by " << difference << " = " << difference / scale
                                     << " of the scale " << scale << ", the limit being " << tolerance;
}

testing::AssertionResult is_near(double a, double b, double tolerance, double scale) {
  if (std::abs(a - b) <= tolerance * scale) return testing::AssertionSuccess();
  return testing::AssertionFailure() << a << " and " << b << " differ by " << std::abs(a - b) / scale
                                     << " of the scale " << scale << ", the limit being " << tolerance;
}

template <class T>
testing::AssertionResult is_identical(ConstView<T> A, ConstView<T> B) {
  if (A.rows != B.rows || A.cols != B.cols) return testing::AssertionFailure() << "the shapes differ";
  for (Size j = 0; j < A.cols; ++j) {
    for (Size i = 0; i < A.rows; ++i) {
      if (std::memcmp(&A(i, j), &B(i, j), sizeof(T)) == 0) continue;
      return testing::AssertionFailure() << "(" << i << ", " << j << "): " << A(i, j) << " is not " << B(i, j);
    }
  }
  return testing::AssertionSuccess();
}

template <class T>
bool all_finite(ConstView<T> A) {
  for (Size j = 0; j < A.cols; ++j) {
    for (Size i = 0; i < A.rows; ++i) {
      if (!std::isfinite(A(i, j))) return false;
    }
  }
  return true;
}

template <class T>
Padded<T>::Padded(Size rows, Size cols) : storage_(rows + 5, cols + 2), rows_(rows), cols_(cols) {
  std::fill_n(storage_.data(), storage_.size(), rim);
}
template <class T>
Padded<T>::Padded(ConstView<T> A) : Padded(A.rows, A.cols) {
  for (Size j = 0; j < cols_; ++j) std::copy_n(A.column(j), rows_, view().column(j));
}

template <class T>
testing::AssertionResult Padded<T>::rim_is_intact() {
  auto copy = Matrix<T>::copy_of(storage_);
  for (Size j = 0; j < cols_; ++j) std::fill_n(copy.view().block(3, 1, rows_, cols_).column(j), rows_, rim);
  const bool intact = std::all_of(copy.data(), copy.data() + copy.size(), [](T value) { return value == rim; });
  return intact ? testing::AssertionSuccess() : testing::AssertionFailure() << "something outside the view was written";
}

#define WIDEHEAD_INSTANTIATE(T)                                                                         \
  template double norm<T>(MatrixView<const T>);                                                         \
  template Matrix<double> to_double<T>(MatrixView<const T>);                                            \
  template testing::AssertionResult is_near<T>(ConstView<T>, MatrixView<const double>, double, double); \
  template testing::AssertionResult is_identical<T>(ConstView<T>, ConstView<T>);                        \
  template bool all_finite<T>(ConstView<T>);                                                            \
  template class Padded<T>;
WIDEHEAD_INSTANTIATE(float)
WIDEHEAD_INSTANTIATE(double)

}  // namespace widehead::test
