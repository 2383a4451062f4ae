/// widehead verify: how exact a head is, beside the dense layer in float64.

#include "widehead/verify.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "common_options.h"

namespace widehead::cli {
namespace {

using Json = nlohmann::ordered_json;

struct VerifySettings {
  VerifyOptions verify;  // what the lists below leave
  std::vector<double> lambdas = {0.05};
  std::vector<Activation> activations = {Activation::relu};
  std::vector<Size> nonzeros = {1};
  std::vector<Size> batches = {32};
  std::vector<Initial> initials = {Initial::zero};
  std::vector<Loss> losses;
  Precision precision = Precision::f32;
  double tolerance = std::numeric_limits<double>::infinity();
  bool json = false;
};

Json to_json(const VerifySettings& settings, const VerifyReport& report) {
  const auto& options = settings.verify;
  Json object = {{"head", options.head.head},
                 {"outputs", options.head.layer.outputs},
                 {"dim", options.head.layer.dim},
                 {"batch", options.data.batch},
                 {"nonzeros", options.data.nonzeros},
                 {"dtype", name_of(settings.precision)},
                 {"device", options.device},
                 {"activation", name_of(options.data.activation, activation_names())},
                 {"loss", name_of(options.head.layer.loss)},
                 {"lambda", options.lambda},
                 {"init", name_of(options.head.layer.initial, initial_names())},
                 {"weight_decay", options.head.layer.weight_decay}};
  if (options.tf32) object["tf32"] = true;
  if (options.head.head == "factored") {
    object["inverse"] = name_of(options.head.factored.inverse, inverse_names());
    object["stabilizer"] = name_of(options.head.factored.stabilizer.kind, stabilize_names());
  }
  object["steps"] = report.steps;
  object["rel_W"] = report.rel_W;  // a value that is not finite becomes null, as JSON has it
  object["rel_Q"] = report.rel_Q;
  object["rel_w_bar"] = report.rel_w_bar;
  object["rel_grad"] = report.rel_grad;
  object["rel_loss"] = report.rel_loss;
  for (const auto& [name, value] : report.diagnostics) object["diagnostics"][name] = value;
  if (!report.error.empty()) object["error"] = report.error;
  return object;
}

void print_text(const VerifySettings& settings, const VerifyReport& report) {
  const auto& options = settings.verify;
  fmt::print("{} ({}) beside dense (f64): {}, D = {}, d = {}, m = {}, K = {}, {}, {}, λ₁ = {}, {} steps\n",
             options.head.head, options.tf32 ? "f32 by TF32" : name_of(settings.precision),
             name_of(options.head.layer.loss), options.head.layer.outputs, options.head.layer.dim, options.data.batch,
             options.data.nonzeros, name_of(options.data.activation, activation_names()),
             name_of(options.head.layer.initial, initial_names()), options.lambda, report.steps);
  fmt::print("  relative difference   W {:.2e}   Q {:.2e}   w̄ {:.2e}   ∇H {:.2e}   loss {:.2e}\n", report.rel_W,
             report.rel_Q, report.rel_w_bar, report.rel_grad, report.rel_loss);
  if (report.steps > 0) {
    fmt::print("  loss                  {:.4f} → {:.4f}\n", report.losses.front(), report.losses.back());
  }
  for (const auto& [name, value] : report.diagnostics) fmt::print("  {:<21} {:.6g}\n", name, value);
  if (!report.error.empty()) fmt::print("  stopped: {}\n", report.error);
}

/// Verifies one combination; returns the exit code.
int run_one(const VerifySettings& settings) {
  const bool show_progress = isatty(STDERR_FILENO) != 0;
  std::function<void(std::int64_t)> progress;
  if (show_progress) {
    progress = [&](std::int64_t done) {
      if (done % 100 == 0) fmt::print(stderr, "\r{} of {} steps", done, settings.verify.steps);
    };
  }
  const auto report = settings.precision == Precision::f32 ? verify<float>(settings.verify, progress)
                                                           : verify<double>(settings.verify, progress);
  if (show_progress) fmt::print(stderr, "\r\033[K");
  if (const auto& file = settings.verify.head.windowed.rows_file; !file.empty()) std::filesystem::remove(file);
  if (settings.json) {
    fmt::print("{}\n", to_json(settings, report).dump());
  } else {
    print_text(settings, report);
  }
  std::fflush(stdout);
  if (!report.error.empty()) return 1;
  const double worst = std::max({report.rel_W, report.rel_Q, report.rel_w_bar, report.rel_grad, report.rel_loss});
  if (!(worst <= settings.tolerance)) {
    fmt::print(stderr, "widehead: the largest difference, {:.3g}, is above --tolerance {:.3g}\n", worst,
               settings.tolerance);
    return 1;
  }
  return 0;
}

/// Every combination of the lists.
int run(VerifySettings settings) {
  int worst = 0;
  auto& options = settings.verify;
  for (const auto& loss : settings.losses) {
    for (const double lambda : settings.lambdas) {
      for (const auto activation : settings.activations) {
        for (const Size nonzeros : settings.nonzeros) {
          for (const Size batch : settings.batches) {
            for (const auto initial : settings.initials) {
              options.head.layer.loss = loss;
              options.lambda = lambda;
              options.data.activation = activation;
              options.data.nonzeros = nonzeros;
              options.data.batch = batch;
              options.head.layer.initial = initial;
              worst = std::max(worst, run_one(settings));
            }
          }
        }
      }
    }
  }
  return worst;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "verify", "how exact a head is: it runs beside the dense float64 layer, once for every combination of the lists");
  auto settings = std::make_shared<VerifySettings>();
  auto& options = settings->verify;
  options.head.layer.outputs = 2000;
  options.head.layer.dim = 100;
  command->add_option("--head", options.head.head, "layer to verify")
      ->check(CLI::IsMember(std::vector<std::string>(spherical_head_names().begin(), spherical_head_names().end())))
      ->capture_default_str();
  command->add_option("--outputs", options.head.layer.outputs, "D")
      ->check(CLI::Range(1, INT32_MAX))
      ->capture_default_str();
  command->add_option("--dim", options.head.layer.dim, "d")->check(CLI::Range(1, 65536))->capture_default_str();
  add_list(*command, "--batch", settings->batches, "m, a list", CLI::Range(1, 1 << 20));
  add_list(*command, "--nonzeros", settings->nonzeros, "K, targets per example, a list", CLI::Range(0, 1 << 20));
  command->add_option("--steps", options.steps, "steps to run")->check(CLI::PositiveNumber)->capture_default_str();
  add_list(*command, "--lambda", settings->lambdas,
           "λ₁ = 2ηa‖H‖₂² sets the learning rate η of each step (a = w₀ for weighted, else 1); a list",
           CLI::NonNegativeNumber);
  add_choices(*command, "--activation", settings->activations, activation_names(),
              "what the hidden vectors come out of; a list");
  add_choices(*command, "--init", settings->initials, initial_names(), "initial W; a list");
  command->add_option("--tolerance", settings->tolerance, "exit with 1 if any relative difference is larger")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--json", settings->json, "print one JSON object");
  add_precision(*command, settings->precision);
  add_threads(*command, options.threads);
  add_layer_device(*command, options.device, options.tf32);
  add_target_law(*command, options.data.targets);
  add_losses(*command, settings->losses);
  add_layer_options(*command, options.head.layer);
  add_windowed_options(*command, options.head.windowed);
  add_factored_options(*command, options.head.factored);
  command->footer(
      "Examples:\n"
      "  widehead verify --head factored --lambda 0.03,0.3 --nonzeros 1,5\n"
      "  widehead verify --steps 100 --tolerance 1e-5 > /dev/null && echo exact");
  command->callback([settings, &action] {
    settings->verify.data.seed = settings->verify.head.layer.seed + 1;
    action = [settings] { return run(*settings); };
  });
}

}  // namespace widehead::cli
