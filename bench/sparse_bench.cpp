/// Sparse targets against the rows of V: minibatches of 128 examples with K targets each, D = 200,000.
/// Rows are drawn uniformly where their memory is what counts, by Zipf's law where shared targets are.

#include <algorithm>

#include "inputs.h"

namespace widehead::bench {
namespace {

constexpr Size D = 200'000;
constexpr std::uint64_t batch_count = 512;  // together they touch more rows than caches hold

/// Minibatches of which only the targets are used.
template <class T>
std::vector<SyntheticBatch<T>> targets_only(const benchmark::State& state, TargetLaw law) {
  return make_batches<T>(D, 1, state.range(0), law, batch_count);
}

/// V with memory of its own: pages never written would all be the same zeros.
template <class T>
Matrix<T> make_V() {
  Matrix<T> V(d, D);
  std::fill_n(V.data(), V.size(), T(1));
  return V;
}

/// VᵀY
template <class T>
void gather(benchmark::State& state) {
  const auto backend = make_cpu_backend<T>(1);
  const auto V = make_V<T>();
  const auto batches = targets_only<T>(state, TargetLaw::uniform);
  Matrix<T> G(d, m);
  std::size_t t = 0;
  for (auto _ : state) {
    backend->gather(V, batches[t++ % batch_count].targets(), G);
    benchmark::ClobberMemory();
  }
  report_traffic<T>(state, d * m * (state.range(0) + 1));
}

/// V ← V + α Y Xᵀ
template <class T>
void scatter(benchmark::State& state) {
  const auto backend = make_cpu_backend<T>(1);
  auto V = make_V<T>();
  const auto X = random_matrix<T>(d, m);
  std::vector<RowGroups<T>> groups(batch_count);
  std::size_t t = 0;
  for (const auto& batch : targets_only<T>(state, TargetLaw::uniform)) {
    groups[t++].assign(batch.targets());
  }
  for (auto _ : state) {
    const auto& Y = groups[t++ % batch_count];
    backend->scatter(T(1e-6), Y, {Y.values().data(), Y.nonzeros(), 1}, X, V);
    benchmark::ClobberMemory();
  }
  report_traffic<T>(state, 3 * d * m * state.range(0));
}

/// M ← YᵀY. Traffic: M written, and an element of it read and written for each pair of entries that share an output.
template <class T>
void gram(benchmark::State& state) {
  const auto backend = make_cpu_backend<T>(1);
  const auto batches = targets_only<T>(state, TargetLaw::zipf);
  RowGroups<T> groups;
  groups.assign(batches.front().targets());
  Size pairs = 0;
  for (Size group = 0; group < groups.count(); ++group) {
    const auto entries = static_cast<Size>(groups.entries(group).size());
    pairs += entries * entries;
  }
  Matrix<T> M(m, m);
  for (auto _ : state) {
    backend->gram(groups, {groups.values().data(), groups.nonzeros(), 1}, M);
    benchmark::ClobberMemory();
  }
  report_traffic<T>(state, m * m + 2 * pairs);
}

/// Entries sorted by output, once a step. Traffic: the entries.
template <class T>
void group_by_row(benchmark::State& state) {
  const auto batches = targets_only<T>(state, TargetLaw::zipf);
  RowGroups<T> groups;
  std::size_t t = 0;
  for (auto _ : state) {
    groups.assign(batches[t++ % batch_count].targets());
    benchmark::DoNotOptimize(groups.count());
  }
  const Size values_per_entry = sizeof(typename RowGroups<T>::Entry) / sizeof(T);
  report_traffic<T>(state, values_per_entry * m * state.range(0));
}

BENCHMARK_TEMPLATE(gather, float)->ArgName("K")->Arg(1)->Arg(16);
BENCHMARK_TEMPLATE(gather, double)->ArgName("K")->Arg(1)->Arg(16);
BENCHMARK_TEMPLATE(scatter, float)->ArgName("K")->Arg(1)->Arg(16);
BENCHMARK_TEMPLATE(scatter, double)->ArgName("K")->Arg(1)->Arg(16);
BENCHMARK_TEMPLATE(gram, float)->ArgName("K")->Arg(1)->Arg(16);
BENCHMARK_TEMPLATE(gram, double)->ArgName("K")->Arg(1)->Arg(16);
BENCHMARK_TEMPLATE(group_by_row, float)->ArgName("K")->Arg(1)->Arg(16);
BENCHMARK_TEMPLATE(group_by_row, double)->ArgName("K")->Arg(1)->Arg(16);

}  // namespace
}  // namespace widehead::bench
