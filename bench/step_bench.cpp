/// Whole training steps at D = 10,000. GFLOP/s counts the matrix products that a layer says it makes.

#include "inputs.h"
#include "widehead/heads.h"

namespace widehead::bench {
namespace {

template <class T>
void step(benchmark::State& state, const char* head) {
  constexpr Size D = 10'000;
  constexpr double lambda = 1e-3;  // λ₁: small, so that a long run stays well conditioned
  constexpr std::uint64_t batch_count = 32;
  HeadOptions options;
  options.head = head;
  options.layer.outputs = D;
  options.layer.dim = d;
  options.factored.stabilizer.kind = Stabilize::never;  // the step alone; windows do close
  const auto layer = make_head<T>(options, make_cpu_backend<T>(1));
  const auto batches = make_batches<T>(D, d, 1, TargetLaw::zipf, batch_count);
  const double eta = lambda / (2 * spectral_norm_squared<T>(batches.front().H));
  Matrix<T> grad_H(d, m);
  std::size_t t = 0;
  for (auto _ : state) {
    const auto& batch = batches[t++ % batch_count];
    benchmark::DoNotOptimize(layer->step(batch.H, batch.targets(), eta, grad_H));
  }
  double flops = 0;
  for (const auto& product : layer->step_products(m)) flops += product.flops();
  report_flops(state, flops);
}

void step_float(benchmark::State& state, const char* head) { step<float>(state, head); }
void step_double(benchmark::State& state, const char* head) { step<double>(state, head); }

BENCHMARK_CAPTURE(step_float, dense, "dense")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(step_float, factored, "factored")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(step_float, windowed, "windowed")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(step_double, dense, "dense")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(step_double, factored, "factored")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(step_double, windowed, "windowed")->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace widehead::bench
