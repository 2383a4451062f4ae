#pragma once
/// Backends × {float, double} × threads, for tests of single operations.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "heads_under_test.h"
#include "widehead/backend.h"

namespace widehead::test {

struct BackendCase {
  Dtype dtype;
  int threads;
};
inline void PrintTo(const BackendCase& param, std::ostream* out) {
  *out << name_of(param.dtype) << ", " << param.threads << " threads";
}

/// TEST_P(…) { run([&]<class T>(Backend<T>& backend) { … }); }
class BackendTest : public testing::TestWithParam<BackendCase> {
 protected:
  template <class Body>
  void run(const Body& body) {
    with_dtype(GetParam().dtype, [&]<class T>() { body(*make_cpu_backend<T>(GetParam().threads)); });
  }
};

inline std::vector<BackendCase> backend_cases() {
  return {{Dtype::f32, 1}, {Dtype::f32, 3}, {Dtype::f64, 1}, {Dtype::f64, 3}};
}
inline std::string backend_case_name(const testing::TestParamInfo<BackendCase>& info) {
  return name_of(info.param.dtype) + "_on_" + std::to_string(info.param.threads);
}

/// α op(A) op(B) + β C in double, by the definition; β = 0 ignores C.
inline Matrix<double> product(Op op_a, Op op_b, double alpha, const Matrix<double>& A, const Matrix<double>& B,
                              double beta, const Matrix<double>& C) {
  Matrix<double> result(C.rows(), C.cols());
  const Size depth = op_a == Op::none ? A.cols() : A.rows();
  for (Size j = 0; j < C.cols(); ++j) {
    for (Size i = 0; i < C.rows(); ++i) {
      double sum = 0;
      for (Size k = 0; k < depth; ++k) {
        sum += (op_a == Op::none ? A(i, k) : A(k, i)) * (op_b == Op::none ? B(k, j) : B(j, k));
      }
      result(i, j) = alpha * sum + (beta == 0 ? 0 : beta * C(i, j));
    }
  }
  return result;
}
inline Matrix<double> product(Op op_a, const Matrix<double>& A, Op op_b, const Matrix<double>& B) {
  const Size rows = op_a == Op::none ? A.rows() : A.cols(), cols = op_b == Op::none ? B.cols() : B.rows();
  return product(op_a, op_b, 1, A, B, 0, Matrix<double>(rows, cols));
}

}  // namespace widehead::test
