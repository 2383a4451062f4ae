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
  Matrix<T> A_room(backend.memory()), B_room(backend.memory()), C(shape.m, shape.n, backend.memory());
  const auto host_A = random_matrix<T>(a_plain ? shape.m : shape.k, a_plain ? shape.k : shape.m, 1);
  const auto host_B = random_matrix<T>(b_plain ? shape.k : shape.n, b_plain ? shape.n : shape.k, 2);
  const auto A = backend.template reach<T>(host_A.view(), A_room), B = backend.template reach<T>(host_B.view(), B_room);
  const int products = backend.memory().is_host() ? 1 : 20;  // a device is given work ahead
  const auto once = [&] {
    const auto start = Clock::now();
    for (int k = 0; k < products; ++k) backend.gemm(shape.op_a, shape.op_b, T(1), A, B, T(0), C);
    backend.wait();
    return std::chrono::duration<double>(Clock::now() - start).count() / products;
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
