/// widehead bench step: what one training step costs. Verifies, then times: medians of warm steps,
/// the heads taking turns, so that ratios hold on a shared machine.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "command.h"
#include "common_options.h"
#include "widehead/errors.h"
#include "widehead/system_info.h"
#include "widehead/verify.h"

namespace widehead::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::vector<std::string> heads = {"dense", "factored"};
  std::vector<Size> outputs = {10000, 100000};
  std::vector<Size> dims = {300};
  std::vector<Size> batches = {128};
  std::vector<Size> nonzeros = {1};
  std::vector<double> upkeep_lambdas;
  std::int64_t upkeep_steps = 2000;
  double lambda = 1e-3;
  int rounds = 9;
  int threads = 0;
  Precision precision = Precision::f32;
  bool json = false;
  SyntheticOptions data;
  LayerOptions layer;
  WindowedOptions windowed;
  FactoredOptions factored;
};

/// One combination of the lists in Settings.
struct Shape {
  Size outputs, dim, batch, nonzeros;
};

/// Minibatches made ahead of time and used in turn, each with the η that gives λ₁.
template <class T>
class Pool {
 public:
  Pool(const SyntheticOptions& data, double lambda) {
    constexpr std::uint64_t batches = 32;
    const SyntheticStream<T> stream(data);
    for (std::uint64_t t = 0; t < batches; ++t) {
      batches_.push_back(stream.batch(t));
      etas_.push_back(lambda / (2 * spectral_norm_squared<T>(batches_.back().H)));
    }
  }
  /// Takes the next step of a layer; returns its seconds.
  double step(OutputLayer<T>& layer, std::size_t t, MatrixView<T> grad_H) const {
    const auto& batch = batches_[t % batches_.size()];
    const auto start = Clock::now();
    layer.step(batch.H, batch.targets(), etas_[t % batches_.size()], grad_H);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  std::vector<Batch<T>> batches_;
  std::vector<double> etas_;
};

double quantile(std::vector<double> values, double fraction) {
  const auto position = static_cast<std::ptrdiff_t>(fraction * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + position, values.end());
  return values[static_cast<std::size_t>(position)];
}

double total_flops(const std::vector<GemmShape>& products) {
  double flops = 0;
  for (const auto& product : products) flops += product.flops();
  return flops;
}

/// GFLOP/s of a step's products as bare GEMM calls. A product as tall as D is measured on a part of
/// it that is well beyond the caches.
template <class T>
double bare_gemm_seconds(Backend<T>& backend, const std::vector<GemmShape>& products) {
  constexpr Size tall = 32768;
  double seconds = 0;
  for (auto product : products) {
    const double flops = product.flops();
    for (Size* extent : {&product.m, &product.n, &product.k}) *extent = std::min(*extent, tall);
    seconds += time_gemm(backend, product, 0.02) * flops / product.flops();
  }
  return seconds;
}

SyntheticOptions data_of(const Settings& settings, const Shape& shape) {
  auto data = settings.data;
  data.outputs = shape.outputs;
  data.dim = shape.dim;
  data.batch = shape.batch;
  data.nonzeros = shape.nonzeros;
  return data;
}

HeadOptions head_options(const Settings& settings, const Shape& shape, const std::string& head, Stabilize stabilize) {
  HeadOptions options{head, settings.layer, settings.windowed, settings.factored};
  options.layer.outputs = shape.outputs;
  options.layer.dim = shape.dim;
  options.factored.stabilizer.kind = stabilize;
  return options;
}

/// The heads must be right before they are timed: a few steps beside the dense float64 layer, with
/// the shape of the benchmark but an affordable D.
template <class T>
VerifyReport require_exact(const Settings& settings, const Shape& shape, const std::string& head) {
  constexpr Size affordable_outputs = 2000;
  VerifyOptions options;
  options.head = head_options(settings, {std::min(shape.outputs, affordable_outputs), shape.dim, shape.batch, shape.nonzeros},
                              head, Stabilize::never);
  options.data = data_of(settings, shape);
  options.lambda = settings.lambda;
  options.steps = 20;
  options.threads = settings.threads;
  const auto report = verify<T>(options);
  const double tolerance = std::is_same_v<T, float> ? 1e-5 : 1e-12;
  const double worst = std::max({report.rel_W, report.rel_Q, report.rel_grad, report.rel_loss});
  if (!report.error.empty() || !(worst <= tolerance)) {
    throw std::runtime_error(fmt::format("bench: head '{}' differs from the dense float64 layer by {:.3g} (limit {:.3g}) {}", head,
                                         worst, tolerance, report.error));
  }
  return report;
}

class Printer {
 public:
  explicit Printer(bool json) : json_(json) {}
  void print(const Json& line) {
    if (json_) {
      fmt::print("{}\n", line.dump());
    } else {
      if (!header_done_) {
        fmt::print("{:<10} {:>10} {:>6} {:>6} {:>4} {:>5} {:>3} {:>11} {:>9} {:>10} {:>12}\n", "head", "outputs", "dim", "batch", "K",
                   "dtype", "thr", "ms", "GFLOP/s", "GEMM rate", "vs dense");
      }
      header_done_ = true;
      const auto number = [&](const char* key, const char* format) {
        return line.contains(key) && line[key].is_number() ? fmt::format(fmt::runtime(format), line[key].get<double>()) : std::string("-");
      };
      fmt::print("{:<10} {:>10} {:>6} {:>6} {:>4} {:>5} {:>3} {:>11} {:>9} {:>10} {:>12}", line["head"].get<std::string>(),
                 line["outputs"].get<Size>(), line["dim"].get<Size>(), line["batch"].get<Size>(), line["nonzeros"].get<Size>(),
                 line["dtype"].get<std::string>(), line["threads"].get<int>(), number("ms", "{:.4f}"), number("gflops", "{:.1f}"),
                 number("gemm_gflops", "{:.1f}"), number("speedup_vs_dense", "{:.1f} x"));
      if (line.contains("fixes_per_step")) {
        fmt::print("   with stabilizer {} at λ₁ = {}: {:.3f} fixes a step, {:.0f}% of the time", line["stabilizer"].get<std::string>(),
                   line["lambda"].get<double>(), line["fixes_per_step"].get<double>(), 100 * line["upkeep_share"].get<double>());
      }
      if (line.contains("error")) fmt::print("   {}", line["error"].get<std::string>());
      fmt::print("\n");
    }
    std::fflush(stdout);
  }

 private:
  bool json_;
  bool header_done_ = false;
};

Json describe(const Settings& settings, const Shape& shape, const std::string& head, const std::string& device, int threads) {
  return {{"head", head},           {"outputs", shape.outputs},   {"dim", shape.dim},
          {"batch", shape.batch},   {"nonzeros", shape.nonzeros}, {"dtype", name_of(settings.precision)},
          {"threads", threads},     {"device", device}};
}

/// The cost of a step with Algorithm 3 switched on, in the long run: the mean over the second half
/// of a run, every check and fix included.
template <class T>
void bench_upkeep(const Settings& settings, const Shape& shape, const std::shared_ptr<Backend<T>>& backend,
                  std::optional<double> dense_ms, Printer& printer) {
  for (const double lambda : settings.upkeep_lambdas) {
    const auto options = head_options(settings, shape, "factored", settings.factored.stabilizer.kind);
    const auto layer = make_head<T>(options, backend);
    const Pool<T> pool(data_of(settings, shape), lambda);
    Matrix<T> grad_H(shape.dim, shape.batch);
    auto line = describe(settings, shape, "factored", backend->device(), backend->threads());
    line["stabilizer"] = name_of(options.factored.stabilizer.kind, stabilize_names());
    line["lambda"] = lambda;
    const auto figure = [&](const char* wanted) {
      for (const auto& [name, value] : layer->counters()) {
        if (name == wanted) return value;
      }
      return 0.0;
    };
    std::int64_t t = 0;
    try {
      double seconds = 0, fixes_before = 0, upkeep_before = 0;
      const std::int64_t half = settings.upkeep_steps / 2;
      for (; t < settings.upkeep_steps; ++t) {
        if (t == half) {
          seconds = 0;
          fixes_before = figure("fixes");
          upkeep_before = figure("stabilizer_seconds");
        }
        seconds += pool.step(*layer, static_cast<std::size_t>(t), grad_H);
      }
      const auto steps = static_cast<double>(settings.upkeep_steps - half);
      const double ms = seconds / steps * 1e3;
      line["ms"] = ms;
      line["gflops"] = total_flops(layer->step_products(shape.batch)) / ms * 1e-6;
      line["speedup_vs_dense"] = dense_ms ? Json(*dense_ms / ms) : Json();
      line["steps"] = settings.upkeep_steps;
      line["fixes_per_step"] = (figure("fixes") - fixes_before) / steps;
      line["upkeep_share"] = (figure("stabilizer_seconds") - upkeep_before) / seconds;
    } catch (const NumericalError& error) {
      line["ms"] = nullptr;
      line["error"] = fmt::format("after {} steps: {}", t, error.what());
    }
    printer.print(line);
  }
}

template <class T>
void bench_shape(const Settings& settings, const Shape& shape, Printer& printer) {
  struct Contestant {
    std::string head;
    std::unique_ptr<OutputLayer<T>> layer;
    VerifyReport exactness;
    std::vector<double> seconds, gemm_seconds;
    std::size_t steps = 0;
  };
  constexpr double slice_seconds = 0.1;  // a head's turn lasts at least a step, and about this long
  constexpr int max_steps_a_turn = 100;
  const auto backend = make_cpu_backend<T>(settings.threads);
  const Pool<T> pool(data_of(settings, shape), settings.lambda);
  Matrix<T> grad_H(shape.dim, shape.batch);

  std::vector<Contestant> contestants;
  for (const auto& head : settings.heads) {
    auto exactness = require_exact<T>(settings, shape, head);
    contestants.push_back({head, make_head<T>(head_options(settings, shape, head, Stabilize::never), backend), std::move(exactness), {}, {}, 0});
    for (int warm_up = 0; warm_up < 2; ++warm_up) pool.step(*contestants.back().layer, contestants.back().steps++, grad_H);
  }
  for (int round = 0; round < settings.rounds; ++round) {
    for (auto& contestant : contestants) {
      double turn = 0;
      for (int i = 0; i == 0 || (turn < slice_seconds && i < max_steps_a_turn); ++i) {
        contestant.seconds.push_back(pool.step(*contestant.layer, contestant.steps++, grad_H));
        turn += contestant.seconds.back();
      }
      contestant.gemm_seconds.push_back(bare_gemm_seconds(*backend, contestant.layer->step_products(shape.batch)));
    }
  }

  std::optional<double> dense_ms;
  for (const auto& contestant : contestants) {
    if (contestant.head == "dense") dense_ms = quantile(contestant.seconds, 0.5) * 1e3;
  }
  for (const auto& contestant : contestants) {
    const double ms = quantile(contestant.seconds, 0.5) * 1e3;
    const double flops = total_flops(contestant.layer->step_products(shape.batch));
    auto line = describe(settings, shape, contestant.head, backend->device(), backend->threads());
    line["ms"] = ms;
    line["gflops"] = flops / ms * 1e-6;
    line["speedup_vs_dense"] = dense_ms ? Json(*dense_ms / ms) : Json();
    line["gemm_gflops"] = flops / quantile(contestant.gemm_seconds, 0.5) * 1e-9;
    line["ms_p10"] = quantile(contestant.seconds, 0.1) * 1e3;
    line["ms_p90"] = quantile(contestant.seconds, 0.9) * 1e3;
    line["samples"] = contestant.seconds.size();
    line["rel_W"] = contestant.exactness.rel_W;
    printer.print(line);
  }
  if (std::find(settings.heads.begin(), settings.heads.end(), "factored") != settings.heads.end()) {
    bench_upkeep<T>(settings, shape, backend, dense_ms, printer);
  }
}

int run(const Settings& settings) {
  Printer printer(settings.json);
  for (const Size dim : settings.dims) {
    for (const Size batch : settings.batches) {
      for (const Size nonzeros : settings.nonzeros) {
        for (const Size outputs : settings.outputs) {
          const Shape shape{outputs, dim, batch, nonzeros};
          if (settings.precision == Precision::f32) {
            bench_shape<float>(settings, shape, printer);
          } else {
            bench_shape<double>(settings, shape, printer);
          }
        }
      }
    }
  }
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto* bench = app.add_subcommand("bench", "benchmarks");
  bench->require_subcommand(1);
  auto* command = bench->add_subcommand("step", "time of one training step: verifies, then times (median, warm, interleaved)");
  auto settings = std::make_shared<Settings>();
  settings->factored.stabilizer.kind = Stabilize::power;
  command->add_option("--heads", settings->heads, "heads to compare, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>(head_names().begin(), head_names().end())))
      ->capture_default_str();
  const auto add_list = [&](const char* flag, std::vector<Size>& list, const char* help, Size least) {
    command->add_option(flag, list, help)->delimiter(',')->check(CLI::Range(least, Size{INT32_MAX}))->capture_default_str();
  };
  add_list("--outputs", settings->outputs, "D, a list", 1);
  add_list("--dim", settings->dims, "d, a list", 1);
  add_list("--batch", settings->batches, "m, a list", 1);
  add_list("--nonzeros", settings->nonzeros, "K, a list", 0);
  command->add_option("--lambda", settings->lambda, "λ₁ = 2η‖H‖₂² of the timed steps")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--rounds", settings->rounds, "turns that each head takes")->check(CLI::Range(1, 10000))->capture_default_str();
  command
      ->add_option("--upkeep-lambdas", settings->upkeep_lambdas,
                   "also time the factored head with its --stabilizer on, at each λ₁ of this list")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command->add_option("--upkeep-steps", settings->upkeep_steps, "length of those runs; the second half counts")
      ->check(CLI::Range(2, INT32_MAX))
      ->capture_default_str();
  command->add_flag("--json", settings->json, "print one JSON object a line");
  add_precision(*command, settings->precision);
  add_threads(*command, settings->threads);
  add_data_options(*command, settings->data);
  add_layer_options(*command, settings->layer);
  add_windowed_options(*command, settings->windowed);
  add_factored_options(*command, settings->factored);
  command->callback([settings, &action] {
    settings->data.seed = settings->layer.seed + 1;
    action = [settings] { return run(*settings); };
  });
}

}  // namespace widehead::cli
