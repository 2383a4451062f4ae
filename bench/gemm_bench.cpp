/// The matrix products of a step, C (m x n) = op(A) (m x k) · op(B) (k x n), at d = 300 and 128 examples.

#include "inputs.h"

namespace widehead::bench {
namespace {

template <class T>
void gemm(benchmark::State& state) {
  const Op op_a = state.range(0) == 0 ? Op::none : Op::transpose;
  const Op op_b = state.range(1) == 0 ? Op::none : Op::transpose;
  const GemmShape shape{op_a, op_b, state.range(2), state.range(3), state.range(4)};
  const auto A = op_a == Op::none ? random_matrix<T>(shape.m, shape.k) : random_matrix<T>(shape.k, shape.m);
  const auto B = op_b == Op::none ? random_matrix<T>(shape.k, shape.n) : random_matrix<T>(shape.n, shape.k);
  Matrix<T> C(shape.m, shape.n);
  const auto backend = make_cpu_backend<T>(1);
  for (auto _ : state) {
    backend->gemm(op_a, op_b, T(1), A, B, T(0), C);
    benchmark::ClobberMemory();
  }
  report_flops(state, shape.flops());
}

void shapes_of_a_step(benchmark::internal::Benchmark* benchmark) {
  constexpr Size dense_block = 1747;  // rows of W that the dense layer treats at once in float
  benchmark->ArgNames({"tA", "tB", "m", "n", "k"});
  benchmark->Args({0, 0, 3 * d, m, d});        // factored: [Q; U; U⁻ᵀ] H
  benchmark->Args({1, 0, d, m, d});            // factored: Ŷ = Uᵀ(VᵀY)
  benchmark->Args({1, 0, m, m, d});            // factored: M, HᵀH
  benchmark->Args({0, 0, d, m, m});            // factored: H M
  benchmark->Args({0, 1, 3 * d, d, m});        // factored: the update of [Q; U; U⁻ᵀ]
  benchmark->Args({1, 0, 2 * d + m, m, d});    // windowed: [Q; U; E] H, E at a mean height
  benchmark->Args({0, 1, d, 2 * d + m, m});    // windowed: the update of [Q; U; E], held transposed
  benchmark->Args({0, 0, m, dense_block, d});  // dense: O = W H
  benchmark->Args({0, 1, m, d, dense_block});  // dense: ∇H = 2 WᵀR
  benchmark->Args({0, 0, d, dense_block, m});  // dense: W ← W − 2η R Hᵀ
}

BENCHMARK_TEMPLATE(gemm, float)->Apply(shapes_of_a_step)->UseRealTime();
BENCHMARK_TEMPLATE(gemm, double)->Apply(shapes_of_a_step)->UseRealTime();

}  // namespace
}  // namespace widehead::bench
