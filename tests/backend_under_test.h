#pragma once
/// Backends × {float, double}, the CPU's also × threads, for tests of single operations.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "heads_under_test.h"
#include "widehead/backend.h"

namespace widehead::test {

struct BackendCase {
  std::string device;
  Dtype dtype;
  int threads = 1;
};
inline void PrintTo(const BackendCase& param, std::ostream* out) {
  *out << param.device << ", " << name_of(param.dtype) << ", " << param.threads << " threads";
}

/// One for all tests of a program: to start cuBLAS takes longer than most of them.
template <class T>
Backend<T>& cuda_backend() {
  static const auto backend = make_cuda_backend<T>();
  return *backend;
}

/// TEST_P(…) { run([&]<class T>(Backend<T>& backend) { … }); }, matrices as Both (device.h)
class BackendTest : public testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override {
    if (on_gpu() && cuda_devices() == 0) GTEST_SKIP() << "there is no GPU here";
  }
  bool on_gpu() const { return GetParam().device == "cuda"; }
  template <class Body>
  void run(const Body& body) {
    with_dtype(GetParam().dtype, [&]<class T>() {
      if (on_gpu()) {
        body(cuda_backend<T>());
      } else {
        body(*make_cpu_backend<T>(GetParam().threads));
      }
    });
  }
};

inline std::vector<BackendCase> cpu_cases() {
  return {{"cpu", Dtype::f32, 1}, {"cpu", Dtype::f32, 3}, {"cpu", Dtype::f64, 1}, {"cpu", Dtype::f64, 3}};
}
/// None in a build without CUDA; where there is no GPU, they are skipped.
inline std::vector<BackendCase> cuda_cases() {
  if (WIDEHEAD_TEST_CUDA == 0) return {};
  return {{"cuda", Dtype::f32}, {"cuda", Dtype::f64}};
}
inline std::string backend_case_name(const testing::TestParamInfo<BackendCase>& info) {
  const auto& param = info.param;
  return name_of(param.dtype) + (param.device == "cpu" ? "_on_" + std::to_string(param.threads) : "");
}

/// Every test of this program, on every backend.
#define WIDEHEAD_ON_ALL_BACKENDS                                                                 \
  INSTANTIATE_TEST_SUITE_P(Cpu, BackendTest, testing::ValuesIn(cpu_cases()), backend_case_name); \
  INSTANTIATE_TEST_SUITE_P(Cuda, BackendTest, testing::ValuesIn(cuda_cases()), backend_case_name)

/// α op(A) op(B) + β C in double, by the definition; β = 0 ignores C.
Matrix<double> product(Op op_a, Op op_b, double alpha, const Matrix<double>& A, const Matrix<double>& B, double beta,
                       const Matrix<double>& C);
inline Matrix<double> product(Op op_a, const Matrix<double>& A, Op op_b, const Matrix<double>& B) {
  const Size rows = op_a == Op::none ? A.rows() : A.cols(), cols = op_b == Op::none ? B.cols() : B.rows();
  return product(op_a, op_b, 1, A, B, 0, Matrix<double>(rows, cols));
}

}  // namespace widehead::test
