/// X (sI + G)⁻¹ for X = U⁻ᵀH (d x m) and G = 2ηHᵀH (m x m): the small solve of a factored step.

#include "inputs.h"

namespace widehead::bench {
namespace {

template <class T>
void solve_shifted(benchmark::State& state) {
  const auto backend = make_cpu_backend<T>(1);
  const auto H = random_matrix<T>(d, m);
  const T two_eta = static_cast<T>(0.5 / spectral_norm_squared<T>(H));  // λ₁ = 0.5
  Matrix<T> gram(m, m), G(m, m), X(d, m);
  backend->gemm(Op::transpose, Op::none, two_eta, H, H, T(0), gram);
  for (auto _ : state) {
    backend->copy(gram, G);  // both are overwritten; the copies are a hundredth of the work
    backend->copy(H, X);
    benchmark::DoNotOptimize(backend->solve_shifted(T(-1), G, T(0), X));
    benchmark::ClobberMemory();
  }
  const auto n = static_cast<double>(m);
  report_flops(state, 2 * n * n * n / 3 + 2 * static_cast<double>(d) * n * n);  // LU, two triangular solves
}

BENCHMARK_TEMPLATE(solve_shifted, float);
BENCHMARK_TEMPLATE(solve_shifted, double);

}  // namespace
}  // namespace widehead::bench
