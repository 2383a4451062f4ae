/// widehead verify: how exact a head is, beside the dense layer in float64.

#include "widehead/verify.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "common_options.h"

namespace widehead::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Settings {
  VerifyOptions verify;
  Precision precision = Precision::f32;
  double tolerance = 0;
  bool json = false;
};

Json to_json(const Settings& settings, const VerifyReport& report) {
  const auto& options = settings.verify;
  Json object = {{"head", options.head.head},
                 {"outputs", options.head.layer.outputs},
                 {"dim", options.head.layer.dim},
                 {"batch", options.data.batch},
                 {"nonzeros", options.data.nonzeros},
                 {"dtype", name_of(settings.precision)},
                 {"activation", name_of(options.data.activation, activation_names())},
                 {"lambda", options.lambda},
                 {"init", name_of(options.head.layer.initial, initial_names())},
                 {"weight_decay", options.head.layer.weight_decay}};
  if (options.head.head == "factored") {
    object["inverse"] = name_of(options.head.factored.inverse, inverse_names());
    object["stabilizer"] = name_of(options.head.factored.stabilizer.kind, stabilize_names());
  }
  object["steps"] = report.steps;
  object["rel_W"] = report.rel_W;  // a value that is not finite becomes null, as JSON has it
  object["rel_Q"] = report.rel_Q;
  object["rel_grad"] = report.rel_grad;
  object["rel_loss"] = report.rel_loss;
  for (const auto& [name, value] : report.diagnostics) object["diagnostics"][name] = value;
  if (!report.error.empty()) object["error"] = report.error;
  return object;
}

void print_text(const Settings& settings, const VerifyReport& report) {
  const auto& options = settings.verify;
  fmt::print("{} ({}) beside dense (f64): D = {}, d = {}, m = {}, K = {}, λ₁ = {}, {} steps\n", options.head.head,
             name_of(settings.precision), options.head.layer.outputs, options.head.layer.dim, options.data.batch,
             options.data.nonzeros, options.lambda, report.steps);
  fmt::print("  relative difference   W {:.2e}   Q {:.2e}   ∇H {:.2e}   loss {:.2e}\n", report.rel_W, report.rel_Q,
             report.rel_grad, report.rel_loss);
  if (report.steps > 0) fmt::print("  loss                  {:.4f} → {:.4f}\n", report.losses.front(), report.losses.back());
  for (const auto& [name, value] : report.diagnostics) fmt::print("  {:<21} {:.6g}\n", name, value);
  if (!report.error.empty()) fmt::print("  stopped: {}\n", report.error);
}

int run(const Settings& settings) {
  const auto progress = [&](std::int64_t done) {
    if (done % 100 == 0 || done == settings.verify.steps) {
      fmt::print(stderr, "\r{} of {} steps{}", done, settings.verify.steps, done == settings.verify.steps ? "\r\033[K" : "");
    }
  };
  const bool show_progress = isatty(STDERR_FILENO) != 0;
  const auto quiet = std::function<void(std::int64_t)>{};
  const auto report = settings.precision == Precision::f32 ? verify<float>(settings.verify, show_progress ? progress : quiet)
                                                           : verify<double>(settings.verify, show_progress ? progress : quiet);
  if (settings.json) {
    fmt::print("{}\n", to_json(settings, report).dump());
  } else {
    print_text(settings, report);
  }
  if (!report.error.empty()) return 1;
  const double worst = std::max({report.rel_W, report.rel_Q, report.rel_grad, report.rel_loss});
  if (settings.tolerance > 0 && !(worst <= settings.tolerance)) {
    fmt::print(stderr, "widehead: the largest difference, {:.3g}, is above --tolerance {:.3g}\n", worst, settings.tolerance);
    return 1;
  }
  return 0;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("verify", "how exact a head is: it runs beside the dense float64 layer");
  auto settings = std::make_shared<Settings>();
  auto& options = settings->verify;
  options.head.layer.outputs = 2000;
  options.head.layer.dim = 100;
  command->add_option("--head", options.head.head, "layer to verify")
      ->check(CLI::IsMember(std::vector<std::string>(head_names().begin(), head_names().end())))
      ->capture_default_str();
  command->add_option("--outputs", options.head.layer.outputs, "D")->check(CLI::Range(1, INT32_MAX))->capture_default_str();
  command->add_option("--dim", options.head.layer.dim, "d")->check(CLI::Range(1, 65536))->capture_default_str();
  command->add_option("--batch", options.data.batch, "m")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  command->add_option("--nonzeros", options.data.nonzeros, "K, targets per example")->check(CLI::Range(0, 1 << 20))->capture_default_str();
  command->add_option("--steps", options.steps, "steps to run")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--lambda", options.lambda, "λ₁ = 2η‖H‖₂²: sets the learning rate η of each step")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--tolerance", settings->tolerance, "exit with 1 if any relative difference is larger")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--json", settings->json, "print one JSON object");
  add_precision(*command, settings->precision);
  add_threads(*command, options.threads);
  add_data_options(*command, options.data);
  add_layer_options(*command, options.head.layer);
  add_windowed_options(*command, options.head.windowed);
  add_factored_options(*command, options.head.factored);
  command->callback([settings, &action] {
    settings->verify.data.seed = settings->verify.head.layer.seed + 1;
    action = [settings] { return run(*settings); };
  });
}

}  // namespace widehead::cli
