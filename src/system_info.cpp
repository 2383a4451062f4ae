#include "widehead/system_info.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "cpu/blas.h"
#include "widehead/random.h"
#include "widehead/version.h"

namespace widehead {
namespace {

template <class T>
Matrix<T> random_matrix(Size rows, Size cols, std::uint32_t stream) {
  Matrix<T> A(rows, cols);
  const Random random(0, stream);
  for (Size i = 0; i < A.size(); ++i) {
    A.data()[i] = static_cast<T>(random.uniform(static_cast<std::uint64_t>(i), 0).first);
  }
  return A;
}

}  // namespace

SystemInfo system_info() {
  blas::initialize();
  const auto blas = blas::describe();
  return {WIDEHEAD_VERSION, blas.sgemm_library, blas.blas_library, blas.kernels, blas.warning, omp_get_num_procs()};
}

template <class T>
double time_gemm(Backend<T>& backend, const GemmShape& shape, double min_seconds) {
  using Clock = std::chrono::steady_clock;
  const bool a_plain = shape.op_a == Op::none, b_plain = shape.op_b == Op::none;
  const auto A = random_matrix<T>(a_plain ? shape.m : shape.k, a_plain ? shape.k : shape.m, 1);
  const auto B = random_matrix<T>(b_plain ? shape.k : shape.n, b_plain ? shape.n : shape.k, 2);
  Matrix<T> C(shape.m, shape.n);
  const auto once = [&] {
    const auto start = Clock::now();
    backend.gemm(shape.op_a, shape.op_b, T(1), A, B, T(0), C);
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  once();
  std::vector<double> seconds;
  for (double total = 0; total < min_seconds || seconds.size() < 3; total += seconds.back()) seconds.push_back(once());
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2];
}

template double time_gemm<float>(Backend<float>&, const GemmShape&, double);
template double time_gemm<double>(Backend<double>&, const GemmShape&, double);

}  // namespace widehead
