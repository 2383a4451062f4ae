/// Operations that pass once over a matrix which is in cache, as in a step.

#include "inputs.h"

namespace widehead::bench {
namespace {

/// Q ← (Q + Qᵀ)/2
template <class T>
void symmetrize(benchmark::State& state) {
  auto A = random_matrix<T>(d, d);
  const auto backend = make_cpu_backend<T>(1);
  for (auto _ : state) {
    backend->symmetrize(A);
    benchmark::ClobberMemory();
  }
  report_traffic<T>(state, 2 * A.size());
}

/// tr(HᵀC)
template <class T>
void dot(benchmark::State& state) {
  const auto A = random_matrix<T>(d, m), B = random_matrix<T>(d, m);
  const auto backend = make_cpu_backend<T>(1);
  for (auto _ : state) benchmark::DoNotOptimize(backend->dot(A, B));
  report_traffic<T>(state, 2 * A.size());
}

/// The last check before a step commits, on its stack of 3d x m.
template <class T>
void find_non_finite(benchmark::State& state) {
  const auto A = random_matrix<T>(3 * d, m);
  const auto backend = make_cpu_backend<T>(1);
  for (auto _ : state) benchmark::DoNotOptimize(backend->find_non_finite(A));
  report_traffic<T>(state, A.size());
}

/// C ← αA + βB
template <class T>
void add(benchmark::State& state) {
  const auto A = random_matrix<T>(d, m), B = random_matrix<T>(d, m);
  Matrix<T> C(d, m);
  const auto backend = make_cpu_backend<T>(1);
  for (auto _ : state) {
    backend->add(T(0.5), A, T(-1), B, C);
    benchmark::ClobberMemory();
  }
  report_traffic<T>(state, 3 * A.size());
}

BENCHMARK_TEMPLATE(symmetrize, float);
BENCHMARK_TEMPLATE(symmetrize, double);
BENCHMARK_TEMPLATE(dot, float);
BENCHMARK_TEMPLATE(dot, double);
BENCHMARK_TEMPLATE(find_non_finite, float);
BENCHMARK_TEMPLATE(find_non_finite, double);
BENCHMARK_TEMPLATE(add, float);
BENCHMARK_TEMPLATE(add, double);

}  // namespace
}  // namespace widehead::bench
