#pragma once
/// What the micro benchmarks share: the sizes of the paper's timings, inputs, and rates. All run on one thread.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "widehead/backend.h"
#include "widehead/random.h"
#include "widehead/synthetic.h"

namespace widehead::bench {

constexpr Size d = 300;  // hidden units
constexpr Size m = 128;  // examples in a minibatch

/// Independent uniform values in (−1, 1).
template <class T>
Matrix<T> random_matrix(Size rows, Size cols) {
  Matrix<T> A(rows, cols);
  const Random random(0, 0);
  for (Size i = 0; i < A.size(); ++i) {
    A.data()[i] = static_cast<T>(2 * random.uniform(static_cast<std::uint64_t>(i), 0).first - 1);
  }
  return A;
}

/// `count` minibatches of synthetic data, to be used in turn.
template <class T>
std::vector<SyntheticBatch<T>> make_batches(Size outputs, Size dim, Size nonzeros, TargetLaw law, std::uint64_t count) {
  SyntheticOptions options;
  options.outputs = outputs;
  options.dim = dim;
  options.batch = m;
  options.nonzeros = nonzeros;
  options.targets = law;
  const SyntheticStream<T> stream(options);
  std::vector<SyntheticBatch<T>> batches;
  for (std::uint64_t t = 0; t < count; ++t) batches.push_back(stream.batch(t));
  return batches;
}

/// Reports GFLOP/s, given the operations of one iteration.
inline void report_flops(benchmark::State& state, double flops) {
  state.counters["GFLOP"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

/// Reports GB/s, given the values of type T that one iteration reads and writes.
template <class T>
void report_traffic(benchmark::State& state, Size values) {
  state.counters["GB"] =
      benchmark::Counter(static_cast<double>(values) * sizeof(T) * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace widehead::bench
