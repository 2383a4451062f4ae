#include "common_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <memory>
#include <optional>
#include <stdexcept>

#include "help.h"

namespace widehead::cli {
namespace {

std::span<const std::pair<std::string_view, Precision>> precision_names() {
  static constexpr std::array<std::pair<std::string_view, Precision>, 2> names = {
      {{"f32", Precision::f32}, {"f64", Precision::f64}}};
  return names;
}

}  // namespace

std::string_view name_of(Precision precision) { return precision == Precision::f32 ? "f32" : "f64"; }

void add_precision(CLI::App& command, Precision& precision) {
  add_choice(command, "--dtype", precision, precision_names(), "precision of the layer");
}

void add_threads(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "threads; 0 means one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void add_device(CLI::App& command, std::string& device, const std::string& help) {
  command.add_option("--device", device, help + "; N is the number of a GPU")
      ->type_name(device_type)
      ->capture_default_str();
}

void add_layer_device(CLI::App& command, std::string& device, bool& tf32) {
  add_device(command, device, "where the layer lives and computes");
  command.add_flag("--tf32", tf32,
                   "products of float32 matrices on a GPU by TF32 tensor cores: faster, 10 bits of mantissa");
}

/// Parameters are set once all is read: they may come before the names of the losses that have them.
void add_losses(CLI::App& command, std::vector<Loss>& losses) {
  constexpr auto* group = "Loss";
  struct Given {
    std::vector<std::string> names = {std::string(SquaredError::name)};
    std::optional<double> epsilon, scale, shift, unobserved, observed;
  };
  auto given = std::make_shared<Given>();
  command.add_option("--loss", given->names, "what is minimised; a list")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>(loss_names().begin(), loss_names().end())))
      ->group(group)
      ->capture_default_str();
  const auto add = [&](const char* flag, std::optional<double>& value, const std::string& help) {
    command.add_option(flag, value, help)->group(group)->type_name("FLOAT");
  };
  add("--epsilon", given->epsilon,
      fmt::format("ε of spherical (default {}) and spherical-outside ({})", SphericalSoftmax{}.epsilon,
                  SphericalSoftmaxOutside{}.epsilon));
  add("--scale", given->scale, fmt::format("α of z (default {})", ZLoss{}.scale));
  add("--shift", given->shift, fmt::format("β of z (default {})", ZLoss{}.shift));
  add("--unobserved", given->unobserved,
      fmt::format("w₀ of weighted, for outputs that are no targets (default {})", WeightedSquaredError{}.unobserved));
  add("--observed", given->observed, fmt::format("w₁ of weighted (default {})", WeightedSquaredError{}.observed));
  command.parse_complete_callback([given, &losses] {
    losses.clear();
    for (const auto& name : given->names) losses.push_back(make_loss(name));
    const auto set = [&]<class L>(double L::*parameter, const std::optional<double>& value) {
      bool found = false;
      for (auto& loss : losses) {
        if (auto* with_parameter = std::get_if<L>(&loss); with_parameter != nullptr && value) {
          with_parameter->*parameter = *value;
          found = true;
        }
      }
      return found || !value;
    };
    const auto require = [&](bool found, const char* flag) {
      if (!found) {
        throw CLI::ValidationError(flag, fmt::format("no loss of --loss {} has it", fmt::join(given->names, ",")));
      }
    };
    const bool inside = set(&SphericalSoftmax::epsilon, given->epsilon);
    require(set(&SphericalSoftmaxOutside::epsilon, given->epsilon) || inside, "--epsilon");
    require(set(&ZLoss::scale, given->scale), "--scale");
    require(set(&ZLoss::shift, given->shift), "--shift");
    require(set(&WeightedSquaredError::unobserved, given->unobserved), "--unobserved");
    require(set(&WeightedSquaredError::observed, given->observed), "--observed");
    for (const auto& loss : losses) {
      try {
        check(loss);
      } catch (const std::invalid_argument& error) {
        throw CLI::ValidationError("--loss", error.what());
      }
    }
  });
}

void add_layer_options(CLI::App& command, LayerOptions& options) {
  command.add_option("--weight-decay", options.weight_decay, "λ: W shrinks by 1 − ηλ per step")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--init-scale", options.initial_scale, "standard deviation of a normal W; 0 means 1/√D")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--seed", options.seed, "seed of everything random")->capture_default_str();
}

void add_windowed_options(CLI::App& command, WindowedOptions& options) {
  constexpr auto* group = "Windowed head";
  const auto add = [&](const char* flag, auto& value, const char* help) {
    return command.add_option(flag, value, help)->group(group)->capture_default_str();
  };
  add("--window", options.window, "rows of E (targets, or examples) after which a window closes; 0 means chosen from d")
      ->check(CLI::NonNegativeNumber);
  add("--absorb-limit", options.absorb_limit, "largest condition number of U at which a window is absorbed")
      ->check(CLI::PositiveNumber);
  add("--deflate-below", options.deflation.below, "directions in which U is smaller are deflated; 0 for none")
      ->check(CLI::Range(0.0, 1.0));
  add("--probes", options.deflation.probes, "directions examined when a window closes")->check(CLI::PositiveNumber);
  add("--panel-rank", options.timeline.panel_rank, "rank of all deflations between two flips; 0 means d/4")
      ->check(CLI::NonNegativeNumber);
  add("--radix", options.timeline.radix, "blocks of the timeline that merge into one")->check(CLI::Range(2, 64));
  add("--rows-file", options.rows_file, "keep V in this file, created sparse, instead of in memory")
      ->type_name(file_type);
  add_choice(command, "--rows", options.rows, row_place_names(),
             "on a GPU, V in its memory or, pinned, in the host's; auto: where it has room")
      ->group(group);
}

void add_factored_options(CLI::App& command, FactoredOptions& options) {
  constexpr auto* group = "Factored head";
  add_choice(command, "--inverse", options.inverse, inverse_names(), "where U⁻ᵀH comes from")->group(group);
  command.add_option("--refresh-every", options.refresh_every, "steps between fresh inverses (--inverse refresh)")
      ->check(CLI::PositiveNumber)
      ->group(group)
      ->capture_default_str();
  auto& stabilizer = options.stabilizer;
  add_choice(command, "--stabilizer", stabilizer.kind, stabilize_names(),
             "how singular values of U are kept safe (Algorithm 3)")
      ->group(group);
  command.add_option("--sigma-low", stabilizer.sigma_low, "lower end of the safe range")
      ->group(group)
      ->capture_default_str();
  command.add_option("--sigma-high", stabilizer.sigma_high, "upper end of the safe range")
      ->group(group)
      ->capture_default_str();
  command.add_option("--n-check", stabilizer.n_check, "steps between checks")
      ->check(CLI::PositiveNumber)
      ->group(group)
      ->capture_default_str();
  command.add_option("--iterations", stabilizer.iterations, "of the power method")
      ->check(CLI::PositiveNumber)
      ->group(group)
      ->capture_default_str();
}

void add_cross_entropy_options(CLI::App& command, HeadOptions& options) {
  constexpr auto* group = "Softmax, hierarchical and sampled heads";
  constexpr Size mib = 1 << 20;
  command
      .add_option_function<Size>(
          "--logits-mib", [&options](Size value) { options.softmax.logits_bytes = value * mib; },
          "memory in which softmax keeps logits between its two passes, MiB")
      ->check(CLI::Range(0, 1 << 20))
      ->group(group)
      ->default_str(fmt::format("{}", options.softmax.logits_bytes / mib));
  command.add_option("--classes", options.hierarchical.classes, "of hierarchical; 0 means √D")
      ->check(CLI::NonNegativeNumber)
      ->group(group)
      ->capture_default_str();
  command.add_option("--samples", options.sampled.samples, "draws a step of sampled")
      ->check(CLI::PositiveNumber)
      ->group(group)
      ->capture_default_str();
}

void add_target_law(CLI::App& command, TargetLaw& law) {
  add_choice(command, "--targets", law, target_law_names(), "how often each output is a target");
}

}  // namespace widehead::cli
