#include "backend_under_test.h"

#include <utility>

namespace widehead::test {
namespace {

/// y += factor · x. Under sanitizers nearly all of some programs' time was in the checks of this one loop, which sees
/// nothing but columns of the matrices of `product`.
__attribute__((no_sanitize("address", "undefined"))) void add(double* y, double factor, const double* x, Size rows) {
  for (Size i = 0; i < rows; ++i) y[i] += x[i] * factor;
}

}  // namespace

Matrix<double> product(Op op_a, Op op_b, double alpha, const Matrix<double>& A, const Matrix<double>& B, double beta,
                       const Matrix<double>& C) {
  Matrix<double> result(C.rows(), C.cols());
  const Size rows = C.rows(), depth = op_a == Op::none ? A.cols() : A.rows();
  Matrix<double> A_transposed;
  if (op_a == Op::transpose) {
    A_transposed = Matrix<double>(rows, depth);
    for (Size k = 0; k < depth; ++k) {
      for (Size i = 0; i < rows; ++i) A_transposed(i, k) = A(k, i);
    }
  }
  const auto plain_A = op_a == Op::none ? A.view() : std::as_const(A_transposed).view();
  for (Size j = 0; j < C.cols(); ++j) {
    double* sums = result.view().column(j);
    for (Size k = 0; k < depth; ++k) {
      const double b = op_b == Op::none ? B(k, j) : B(j, k);
      if (b == 0) continue;  // B is sparse in many a test
      add(sums, b, plain_A.column(k), rows);
    }
    for (Size i = 0; i < rows; ++i) sums[i] = alpha * sums[i] + (beta == 0 ? 0 : beta * C(i, j));
  }
  return result;
}

}  // namespace widehead::test
