/// widehead bench step: what one training step costs, all upkeep included. Verifies, then times: the
/// heads take turns, so that ratios hold on a shared machine; a turn's mean is a sample, and the
/// median of the samples is the result.

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "bench_feed.h"
#include "command.h"
#include "common_options.h"
#include "widehead/device.h"
#include "widehead/errors.h"
#include "widehead/system_info.h"
#include "widehead/verify.h"

namespace widehead::cli {
namespace {

using Json = nlohmann::ordered_json;

struct BenchSettings {
  std::vector<std::string> heads = {"dense", "factored", "windowed"};
  std::vector<Size> outputs = {10000, 100000};
  std::vector<Size> dims = {300};
  std::vector<Size> batches = {128};
  std::vector<Size> nonzeros = {1};
  std::vector<double> upkeep_lambdas;
  std::int64_t upkeep_steps = 2000;
  std::vector<double> lambdas = {0.03};
  std::vector<Loss> losses;
  int rounds = 9;
  double turn = 0.2;
  double warm_up = 0.5;
  int threads = 0;
  std::string device = "cpu";
  bool tf32 = false;
  Precision precision = Precision::f32;
  bool json = false;
  SyntheticOptions data;
  HeadOptions head;  // what the lists above leave
};

/// One combination of the lists in BenchSettings.
struct Shape {
  Size outputs, dim, batch, nonzeros;
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

SyntheticOptions data_of(const BenchSettings& settings, const Shape& shape) {
  auto data = settings.data;
  data.outputs = shape.outputs;
  data.dim = shape.dim;
  data.batch = shape.batch;
  data.nonzeros = shape.nonzeros;
  data.distinct = std::min(data.distinct, shape.outputs);
  return data;
}

HeadOptions head_options(const BenchSettings& settings, const Shape& shape, const std::string& head, const Loss& loss,
                         Stabilize stabilize) {
  auto options = settings.head;
  options.head = head;
  options.layer.loss = loss;
  options.layer.outputs = shape.outputs;
  options.layer.dim = shape.dim;
  options.factored.stabilizer.kind = stabilize;
  return options;
}

/// The rows file of a timed layer, made for it and removed with it.
class RowsFile {
 public:
  RowsFile(const std::string& path, Size outputs, const Loss& loss)
      : path_(path.empty() ? path : fmt::format("{}.{}.{}", path, outputs, name_of(loss))) {
    if (!path_.empty() && std::filesystem::exists(path_)) {
      throw std::invalid_argument(
          fmt::format("--rows-file: {} exists already; remove it or choose another name", path_));
    }
  }
  RowsFile(const RowsFile&) = delete;
  RowsFile& operator=(const RowsFile&) = delete;
  ~RowsFile() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// The most memory this process has had resident so far, in MiB.
double peak_resident_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

bool is_spherical(const std::string& head) {
  const auto names = spherical_head_names();
  return std::find(names.begin(), names.end(), head) != names.end();
}

/// The heads must be right before they are timed: a few steps beside the dense float64 layer, with
/// the shape of the benchmark but an affordable D. Those with a loss of their own have nothing to be compared with
/// here; the tests do it, against their definitions.
template <class T>
VerifyReport require_exact(const BenchSettings& settings, const Shape& shape, const std::string& head, const Loss& loss,
                           double lambda) {
  constexpr Size affordable_outputs = 2000;
  VerifyOptions options;
  options.head =
      head_options(settings, {std::min(shape.outputs, affordable_outputs), shape.dim, shape.batch, shape.nonzeros},
                   head, loss, Stabilize::never);
  options.head.windowed.rows_file.clear();
  options.data = data_of(settings, {options.head.layer.outputs, shape.dim, shape.batch, shape.nonzeros});
  options.lambda = lambda;
  options.steps = 20;
  options.threads = settings.threads;
  options.device = settings.device;
  options.tf32 = settings.tf32;
  auto report = verify<T>(options);
  // TF32 rounds the factors of a product to 11 bits instead of 24: the same multiple of a coarser rounding.
  const double tolerance = settings.tf32 ? 1e-5 * (1 << 13) : std::is_same_v<T, float> ? 1e-5 : 1e-12;
  const double worst = std::max({report.rel_W, report.rel_Q, report.rel_grad, report.rel_loss});
  if (!report.error.empty() || !(worst <= tolerance)) {
    throw std::runtime_error(
        fmt::format("bench: head '{}' differs from the dense float64 layer by {:.3g} (limit {:.3g}) {}", head, worst,
                    tolerance, report.error));
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
        fmt::print("{:<12} {:>10} {:>6} {:>6} {:>4} {:>5} {:>3} {:>11} {:>9} {:>10} {:>12}\n", "head", "outputs", "dim",
                   "batch", "K", "dtype", "thr", "ms", "GFLOP/s", "GEMM rate", "vs dense");
      }
      header_done_ = true;
      const auto number = [&](const char* key, const char* format) {
        return line.contains(key) && line[key].is_number() ? fmt::format(fmt::runtime(format), line[key].get<double>())
                                                           : std::string("-");
      };
      fmt::print("{:<12} {:>10} {:>6} {:>6} {:>4} {:>5} {:>3} {:>11} {:>9} {:>10} {:>12}",
                 line["head"].get<std::string>(), line["outputs"].get<Size>(), line["dim"].get<Size>(),
                 line["batch"].get<Size>(), line["nonzeros"].get<Size>(), line["dtype"].get<std::string>(),
                 line["threads"].get<int>(), number("ms", "{:.4f}"), number("gflops", "{:.1f}"),
                 number("gemm_gflops", "{:.1f}"), number("speedup_vs_dense", "{:.1f} x"));
      if (line.contains("ratio_to_squared")) {
        fmt::print("   {}, {} of squared error", line["loss"].get<std::string>(), number("ratio_to_squared", "{:.3f}"));
      }
      if (line.contains("fixes_per_step")) {
        fmt::print("   with stabilizer {} at λ₁ = {}: {:.3f} fixes a step, {:.0f}% of the time",
                   line["stabilizer"].get<std::string>(), line["lambda"].get<double>(),
                   line["fixes_per_step"].get<double>(), 100 * line["upkeep_share"].get<double>());
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

template <class T>
Json describe(const BenchSettings& settings, const Shape& shape, const OutputLayer<T>& layer) {
  Json line = {{"head", layer.head()},
               {"loss", layer.loss_name()},
               {"outputs", shape.outputs},
               {"dim", shape.dim},
               {"batch", shape.batch},
               {"nonzeros", shape.nonzeros},
               {"dtype", name_of(settings.precision)},
               {"threads", layer.backend().threads()},
               {"device", layer.backend().device()}};
  if (settings.tf32) line["tf32"] = true;
  return line;
}

template <class T>
double counter(const OutputLayer<T>& layer, std::string_view wanted) {
  for (const auto& [name, value] : layer.counters()) {
    if (name == wanted) return value;
  }
  return 0;
}

/// The cost of a step with Algorithm 3 switched on, in the long run: the mean over the second half
/// of a run, every check and fix included.
template <class T>
void bench_upkeep(const BenchSettings& settings, const Shape& shape, const std::shared_ptr<Backend<T>>& backend,
                  std::optional<double> dense_ms, Printer& printer) {
  for (const double lambda : settings.upkeep_lambdas) {
    const auto options =
        head_options(settings, shape, "factored", SquaredError{}, settings.head.factored.stabilizer.kind);
    const auto layer = make_head<T>(options, backend);
    Feed<T> feed(data_of(settings, shape), layer->curvature(), lambda, *backend);
    Matrix<T> grad_H(shape.dim, shape.batch, backend->memory());
    auto line = describe(settings, shape, *layer);
    line["stabilizer"] = name_of(options.factored.stabilizer.kind, stabilize_names());
    line["lambda"] = lambda;
    const auto figure = [&](const char* name) { return counter(*layer, name); };
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
        seconds += feed.step(*layer, grad_H);
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

/// The factored head without its stabilizer survives small rates only; its time does not depend on them.
double safe_lambda(const std::string& head, double lambda) {
  return head == "factored" ? std::min(lambda, 1e-3) : lambda;
}

/// For the same reason: at 10⁻³ it is over, by underflow, after some 10⁵ steps, which small layers take in less than a
/// second.
std::int64_t steps_of_a_turn(const std::string& head) {
  return head == "factored" ? 1000 : std::numeric_limits<std::int64_t>::max();
}

template <class T>
void bench_shape(const BenchSettings& settings, const Shape& shape, double lambda, Printer& printer) {
  struct Contestant {
    std::string head;
    Loss loss;
    double lambda;
    std::optional<VerifyReport> exactness;
    std::unique_ptr<OutputLayer<T>> layer;
    Feed<T> feed;
    std::vector<double> seconds = {}, gemm_seconds = {};  // per step, one of each a turn
    double windows_before = 0, upkeep_before = 0;         // as of the end of the warm-up
    std::int64_t steps_before = 0;

    double take_turn(double seconds_at_least, MatrixView<T> grad_H) {
      const auto steps_at_most = steps_of_a_turn(head);
      double turn = 0;
      std::int64_t steps = 0;
      while (steps == 0 || (turn < seconds_at_least && steps < steps_at_most)) {
        const auto [duration, count] = feed.steps(*layer, grad_H);
        turn += duration;
        steps += count;
      }
      return turn / static_cast<double>(steps);
    }
    double windows() const { return counter(*layer, "absorbs") + counter(*layer, "flips"); }
  };
  const auto backend = make_backend<T>(settings.device, settings.threads, settings.tf32);
  std::list<RowsFile> rows_files;
  Matrix<T> grad_H(shape.dim, shape.batch, backend->memory());
  std::vector<Contestant> contestants;
  for (const auto& loss : settings.losses) {
    for (const auto& head : settings.heads) {
      if (!is_spherical(head) && &loss != &settings.losses.front()) continue;  // its own loss is timed once
      const double head_lambda = safe_lambda(head, lambda);
      const Loss head_loss = is_spherical(head) ? loss : SquaredError{};
      auto options = head_options(settings, shape, head, head_loss, Stabilize::never);
      if (head == "windowed") {
        rows_files.emplace_back(settings.head.windowed.rows_file, shape.outputs, loss);
        options.windowed.rows_file = rows_files.back().path();
      }
      std::optional<VerifyReport> exactness;
      if (is_spherical(head)) exactness = require_exact<T>(settings, shape, head, loss, head_lambda);
      auto layer = make_head<T>(options, backend);
      Feed<T> feed(data_of(settings, shape), layer->curvature(), head_lambda, *backend);
      contestants.push_back({head, head_loss, head_lambda, std::move(exactness), std::move(layer), std::move(feed)});
      contestants.back().take_turn(settings.warm_up, grad_H);
      contestants.back().windows_before = contestants.back().windows();
      contestants.back().upkeep_before = counter(*contestants.back().layer, "upkeep_flops");
      contestants.back().steps_before = contestants.back().layer->steps();
    }
  }
  for (int round = 0; round < settings.rounds; ++round) {
    for (auto& contestant : contestants) {
      contestant.seconds.push_back(contestant.take_turn(settings.turn, grad_H));
      contestant.gemm_seconds.push_back(bare_gemm_seconds(*backend, contestant.layer->step_products(shape.batch)));
    }
  }

  const auto median_ms = [&](const std::string& head, const Loss& loss) -> std::optional<double> {
    for (const auto& contestant : contestants) {
      if (contestant.head == head && contestant.loss.index() == loss.index()) {
        return quantile(contestant.seconds, 0.5) * 1e3;
      }
    }
    return std::nullopt;
  };
  for (const auto& contestant : contestants) {
    const auto dense_ms = median_ms("dense", contestant.loss);
    const auto squared_ms = median_ms(contestant.head, SquaredError{});
    const double ms = quantile(contestant.seconds, 0.5) * 1e3;
    const double products = total_flops(contestant.layer->step_products(shape.batch));
    const double upkeep = (counter(*contestant.layer, "upkeep_flops") - contestant.upkeep_before) /
                          static_cast<double>(contestant.layer->steps() - contestant.steps_before);
    auto line = describe(settings, shape, *contestant.layer);
    line["ms"] = ms;
    line["gflops"] = (products + upkeep) / ms * 1e-6;
    line["speedup_vs_dense"] = dense_ms ? Json(*dense_ms / ms) : Json();
    if (settings.losses.size() > 1 && is_spherical(contestant.head)) {
      line["ratio_to_squared"] = squared_ms ? Json(ms / *squared_ms) : Json();
    }
    line["gemm_gflops"] = products / quantile(contestant.gemm_seconds, 0.5) * 1e-9;
    line["ms_p10"] = quantile(contestant.seconds, 0.1) * 1e3;
    line["ms_p90"] = quantile(contestant.seconds, 0.9) * 1e3;
    line["turns"] = contestant.seconds.size();
    line["lambda"] = contestant.lambda;
    line["distinct_targets"] = data_of(settings, shape).distinct;
    if (contestant.exactness) line["rel_W"] = contestant.exactness->rel_W;
    if (contestant.head == "windowed") {
      line["peak_resident_mib"] = peak_resident_mib();
      line["upkeep_share_of_flops"] = upkeep / (products + upkeep);
      line["windows"] = contestant.windows() - contestant.windows_before;
      for (const auto& [name, value] : contestant.layer->counters()) line["counters"][name] = value;
    }
    printer.print(line);
  }
  if (std::find(settings.heads.begin(), settings.heads.end(), "factored") != settings.heads.end()) {
    bench_upkeep<T>(settings, shape, backend, median_ms("dense", SquaredError{}), printer);
  }
}

int run(const BenchSettings& settings) {
  Printer printer(settings.json);
  for (const Size dim : settings.dims) {
    for (const Size batch : settings.batches) {
      for (const Size nonzeros : settings.nonzeros) {
        for (const Size outputs : settings.outputs) {
          for (const double lambda : settings.lambdas) {
            const Shape shape{outputs, dim, batch, nonzeros};
            if (settings.precision == Precision::f32) {
              bench_shape<float>(settings, shape, lambda, printer);
            } else {
              bench_shape<double>(settings, shape, lambda, printer);
            }
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
  auto* command =
      bench->add_subcommand("step", "time of one training step: verifies, then times (median, warm, interleaved)");
  auto settings = std::make_shared<BenchSettings>();
  settings->head.factored.stabilizer.kind = Stabilize::power;
  command->add_option("--heads", settings->heads, "heads to compare, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>(head_names().begin(), head_names().end())))
      ->capture_default_str();
  add_list(*command, "--outputs", settings->outputs, "D, a list", CLI::Range(1, INT32_MAX));
  add_list(*command, "--dim", settings->dims, "d, a list", CLI::Range(1, 65536));
  add_list(*command, "--batch", settings->batches, "m, a list", CLI::Range(1, 1 << 20));
  add_list(*command, "--nonzeros", settings->nonzeros, "K, a list", CLI::Range(0, 1 << 20));
  add_list(*command, "--lambda", settings->lambdas,
           "λ₁ = 2ηa‖H‖₂² of the timed steps (a = w₀ for weighted, 1/4 for cross-entropy, else 1), a list",
           CLI::PositiveNumber);
  command
      ->add_option(
          "--turn", settings->turn,
          "seconds of a turn, of the factored head 1000 steps at most; a turn's mean is one sample, upkeep included")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--warm-up", settings->warm_up, "seconds of steps before the first turn")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--rounds", settings->rounds, "turns that each head takes")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
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
  add_layer_device(*command, settings->device, settings->tf32);
  add_choice(*command, "--activation", settings->data.activation, activation_names(),
             "what the hidden vectors come out of");
  add_choice(*command, "--init", settings->head.layer.initial, initial_names(), "initial W");
  add_target_law(*command, settings->data.targets);
  add_losses(*command, settings->losses);
  add_layer_options(*command, settings->head.layer);
  add_windowed_options(*command, settings->head.windowed);
  add_factored_options(*command, settings->head.factored);
  add_cross_entropy_options(*command, settings->head);
  command
      ->add_option(
          "--distinct-targets", settings->data.distinct,
          "outputs that occur as targets, spread over all D; 0 means the smallest D of the list, so that every D meets "
          "the same targets")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->footer("Example:\n  widehead bench step --heads dense,windowed --outputs 10000,100000 --threads 1");
  command->callback([settings, &action] {
    settings->data.seed = settings->head.layer.seed + 1;
    if (settings->data.distinct == 0) {
      settings->data.distinct = *std::min_element(settings->outputs.begin(), settings->outputs.end());
    }
    action = [settings] { return run(*settings); };
  });
}

}  // namespace widehead::cli
