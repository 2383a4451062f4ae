#pragma once
/// The losses by their definition: from all D outputs, in plain loops that share no formula with loss.h.

#include <cmath>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "widehead/loss.h"
#include "widehead/matrix.h"

namespace widehead::test {

struct Target {
  Index output;  ///< each at most once
  double y;
};

/// ℓ(o) and ∂ℓ/∂o, all D of it.
struct Defined {
  double loss = 0;
  std::vector<double> r;
};

/// Σ (oᵢ − yᵢ)², with the weights of the observed and the unobserved.
inline Defined define_squares(double unobserved, double observed, std::span<const double> o,
                              std::span<const Target> targets) {
  std::vector<double> y(o.size()), w(o.size(), unobserved);
  for (const auto& target : targets) {
    y[static_cast<std::size_t>(target.output)] = target.y;
    w[static_cast<std::size_t>(target.output)] = observed;
  }
  Defined result;
  for (std::size_t i = 0; i < o.size(); ++i) {
    result.loss += w[i] * (o[i] - y[i]) * (o[i] - y[i]);
    result.r.push_back(2 * w[i] * (o[i] - y[i]));
  }
  return result;
}

/// −Σ y log p with p(i) = n(oᵢ) / Σ n(o).
inline Defined define_softmax(const std::function<double(double)>& n, const std::function<double(double)>& slope,
                              std::span<const double> o, std::span<const Target> targets) {
  double Z = 0;
  for (const double value : o) Z += n(value);
  Defined result;
  result.r.assign(o.size(), 0.0);
  for (const auto& target : targets) {
    const auto t = static_cast<std::size_t>(target.output);
    result.loss -= target.y * std::log(n(o[t]) / Z);
    for (std::size_t i = 0; i < o.size(); ++i) result.r[i] += target.y * slope(o[i]) / Z;
    result.r[t] -= target.y * slope(o[t]) / n(o[t]);
  }
  return result;
}

/// Mean and standard deviation of the outputs.
inline std::pair<double, double> moments(std::span<const double> o) {
  const auto D = static_cast<double>(o.size());
  double mean = 0, variance = 0;
  for (const double value : o) mean += value / D;
  for (const double value : o) variance += (value - mean) * (value - mean) / D;
  return {mean, std::sqrt(variance)};
}

/// Σ y log(1 + exp(α(β − z)))/α. Where the outputs vary and u is moderate.
inline Defined define_z(double alpha, double beta, std::span<const double> o, std::span<const Target> targets) {
  const auto [mean, sigma] = moments(o);
  const auto D = static_cast<double>(o.size());
  Defined result;
  result.r.assign(o.size(), 0.0);
  for (const auto& target : targets) {
    const auto t = static_cast<std::size_t>(target.output);
    const double z = (o[t] - mean) / sigma, growth = std::exp(alpha * (beta - z));
    result.loss += target.y * std::log(1 + growth) / alpha;
    const double by_z = -target.y * growth / (1 + growth);
    for (std::size_t i = 0; i < o.size(); ++i) {
      result.r[i] += by_z * ((i == t ? 1.0 : 0.0) - 1 / D - z * (o[i] - mean) / (sigma * D)) / sigma;
    }
  }
  return result;
}

/// A loss that uses all it may: √(1 + ‖o‖²) − 1 + (Σo)²/(2D) + Σ y log(1 + exp(−o_t)).
inline Defined define_own(std::span<const double> o, std::span<const Target> targets) {
  double squares = 0, sum = 0;
  for (const double value : o) squares += value * value, sum += value;
  const auto D = static_cast<double>(o.size());
  Defined result{std::sqrt(1 + squares) - 1 + sum * sum / (2 * D), {}};
  for (const double value : o) result.r.push_back(value / std::sqrt(1 + squares) + sum / D);
  for (const auto& target : targets) {
    const auto t = static_cast<std::size_t>(target.output);
    result.loss += target.y * std::log(1 + std::exp(-o[t]));
    result.r[t] -= target.y / (1 + std::exp(o[t]));
  }
  return result;
}
/// The same as a user writes it.
inline CustomLoss own_loss() {
  const auto function = [](const LossInput& x, std::span<double> g) {
    const double root = std::sqrt(1 + x.q);
    LossValue value{root - 1 + x.s * x.s / (2 * x.outputs), 1 / (2 * root), x.s / x.outputs};
    for (std::size_t k = 0; k < x.o.size(); ++k) {
      value.L += x.y[k] * std::log1p(std::exp(-x.o[k]));
      g[k] = -x.y[k] / (1 + std::exp(x.o[k]));
    }
    return value;
  };
  return {.function = function, .uses_sum = true, .name = "own"};
}

/// A loss and its definition.
struct LossCase {
  std::string label;
  Loss loss;
  std::function<Defined(std::span<const double> o, std::span<const Target> targets)> define;
  double pole = NAN;          ///< an output at which ∂L/∂o_t is infinite, or as good as
  bool y_is_a_value = false;  ///< that the output should take; else a weight, not negative
  bool leaves_zero = true;    ///< W = 0 is a place to start from
};
inline void PrintTo(const LossCase& loss, std::ostream* out) { *out << loss.label; }

inline LossCase squared_case() {
  return {.label = "squared",
          .loss = SquaredError{},
          .define = [](auto o, auto t) { return define_squares(1, 1, o, t); },
          .y_is_a_value = true};
}
inline LossCase weighted_case(double unobserved, double observed) {
  return {.label = "weighted " + std::to_string(unobserved) + ", " + std::to_string(observed),
          .loss = WeightedSquaredError{unobserved, observed},
          .define = [=](auto o, auto t) { return define_squares(unobserved, observed, o, t); },
          .y_is_a_value = true};
}
inline LossCase spherical_case(double epsilon) {
  const auto n = [=](double o) { return (o + epsilon) * (o + epsilon); };
  const auto slope = [=](double o) { return 2 * (o + epsilon); };
  return {.label = "spherical " + std::to_string(epsilon),
          .loss = SphericalSoftmax{epsilon},
          .define = [=](auto o, auto t) { return define_softmax(n, slope, o, t); },
          .pole = -epsilon};
}
inline LossCase spherical_outside_case(double epsilon) {
  const auto n = [=](double o) { return o * o + epsilon; };
  const auto slope = [](double o) { return 2 * o; };
  return {.label = "spherical-outside " + std::to_string(epsilon),
          .loss = SphericalSoftmaxOutside{epsilon},
          .define = [=](auto o, auto t) { return define_softmax(n, slope, o, t); },
          .leaves_zero = false};
}
inline LossCase taylor_case() {
  const auto n = [](double o) { return 1 + o + o * o / 2; };
  const auto slope = [](double o) { return 1 + o; };
  return {.label = "taylor", .loss = TaylorSoftmax{}, .define = [=](auto o, auto t) {
            return define_softmax(n, slope, o, t);
          }};
}
inline LossCase z_case(double scale, double shift) {
  return {.label = "z " + std::to_string(scale) + ", " + std::to_string(shift),
          .loss = ZLoss{.scale = scale, .shift = shift},
          .define = [=](auto o, auto t) { return define_z(scale, shift, o, t); },
          .leaves_zero = false};
}
inline LossCase own_case() { return {.label = "own", .loss = own_loss(), .define = define_own}; }

/// Every loss with its default parameters. The definitions repeat the defaults: they are documented.
inline std::vector<LossCase> default_losses() {
  return {squared_case(), weighted_case(0.05, 1), spherical_case(1), spherical_outside_case(0.01),
          taylor_case(),  z_case(0.05, 40)};
}
/// Those that have parameters, with others.
inline std::vector<LossCase> other_losses() {
  return {weighted_case(0.7, 0.2), spherical_case(0.1), spherical_outside_case(0.5), z_case(1.5, 0.4)};
}

}  // namespace widehead::test
