#include "widehead/loss.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace widehead {
namespace {

template <class L>
concept SoftmaxLike = requires(const L& loss) {
  loss.log_probability(1.0, 1.0, 1.0, 1.0);
};

constexpr std::size_t built_in = std::variant_size_v<Loss> - 1;  // CustomLoss is the last

void require(bool holds, std::string_view loss, std::string_view parameter, double value, std::string_view expected) {
  if (!holds || !std::isfinite(value)) {
    throw std::invalid_argument(fmt::format("loss {}: {} = {}, but it must be {}", loss, parameter, value, expected));
  }
}

constexpr double smallest_epsilon = 1e-30;  // its square, times 1e-6, is still a number

void check_parameters(const WeightedSquaredError& loss) {
  require(loss.unobserved >= 0, WeightedSquaredError::name, "unobserved (w₀)", loss.unobserved,
          "finite and not negative");
  require(loss.observed >= 0, WeightedSquaredError::name, "observed (w₁)", loss.observed, "finite and not negative");
}
void check_parameters(const SphericalSoftmax& loss) {
  require(loss.epsilon >= smallest_epsilon, SphericalSoftmax::name, "epsilon", loss.epsilon,
          "finite and at least 1e-30");
}
void check_parameters(const SphericalSoftmaxOutside& loss) {
  require(loss.epsilon >= smallest_epsilon, SphericalSoftmaxOutside::name, "epsilon", loss.epsilon,
          "finite and at least 1e-30");
}
void check_parameters(const ZLoss& loss) {
  require(loss.scale > 0, ZLoss::name, "scale (α)", loss.scale, "finite and above 0");
  require(true, ZLoss::name, "shift (β)", loss.shift, "finite");
  require(loss.sigma_min > 0, ZLoss::name, "sigma_min", loss.sigma_min, "finite and above 0");
}
void check_parameters(const CustomLoss& loss) {
  if (!loss.function) throw std::invalid_argument(fmt::format("loss {}: it has no function", loss.name));
}
void check_parameters(const SquaredError&) {}
void check_parameters(const TaylorSoftmax&) {}

}  // namespace

std::string name_of(const Loss& loss) {
  return std::visit([](const auto& l) { return std::string(l.name); }, loss);
}

bool uses_sum(const Loss& loss) {
  return std::visit([](const auto& l) { return l.uses_sum; }, loss);
}

double curvature(const Loss& loss) {
  const auto* weighted = std::get_if<WeightedSquaredError>(&loss);
  return weighted != nullptr && weighted->unobserved > 0 ? weighted->unobserved : 1;
}

bool has_probabilities(const Loss& loss) {
  return std::visit([](const auto& l) { return SoftmaxLike<std::remove_cvref_t<decltype(l)>>; }, loss);
}

double log_probability(const Loss& loss, double q, double s, double outputs, double o) {
  return std::visit(
      [&](const auto& l) -> double {
        if constexpr (SoftmaxLike<std::remove_cvref_t<decltype(l)>>) {
          return l.log_probability(q, s, outputs, o);
        } else {
          throw std::invalid_argument(fmt::format("loss {} has no probabilities", l.name));
        }
      },
      loss);
}

void check(const Loss& loss) {
  std::visit([](const auto& l) { check_parameters(l); }, loss);
}

std::span<const std::string_view> loss_names() {
  static constexpr auto names = []<std::size_t... I>(std::index_sequence<I...>) {
    return std::array<std::string_view, built_in>{std::variant_alternative_t<I, Loss>::name...};
  }
  (std::make_index_sequence<built_in>());
  return names;
}

Loss make_loss(std::string_view name) {
  Loss loss;
  const bool found = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return ((name == std::variant_alternative_t<I, Loss>::name && (loss.emplace<I>(), true)) || ...);
  }
  (std::make_index_sequence<built_in>());
  if (!found) {
    throw std::invalid_argument(
        fmt::format("loss '{}' is unknown; there are: {}", name, fmt::join(loss_names(), ", ")));
  }
  return loss;
}

}  // namespace widehead
