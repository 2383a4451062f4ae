#pragma once
/// The spherical family of losses: all that depend on the outputs o = Wh only through
///   q = ‖o‖²,   s = Σᵢ oᵢ   and the outputs at the targets o_t.
/// A loss is one pure function (q, s, o_t, y) → (L, a = ∂L/∂q, b = ∂L/∂s, g = ∂L/∂o_t), in double and
/// the same source on every device; the layers do the rest. Formulas, degenerate points and advice:
/// docs/losses.md.
///
/// Several targets per example: y weighs them. The softmax-like losses and the Z-loss are then sums
/// over the targets, Σₖ yₖ ℓ(o_k); an example without targets costs nothing and teaches nothing. For the
/// squared errors y is the value the output should take, and 0 for all that are not named.

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#if defined(__CUDACC__)
#define WIDEHEAD_HOST_DEVICE __host__ __device__
#else
#define WIDEHEAD_HOST_DEVICE
#endif

namespace widehead {

/// What a loss sees of one example.
struct LossInput {
  double q;                   ///< ‖o‖²
  double s;                   ///< Σᵢ oᵢ, only where the loss uses_sum
  double outputs;             ///< D
  std::span<const double> o;  ///< outputs at the targets, each named once
  std::span<const double> y;  ///< values of the targets
};

/// What it answers, besides g = ∂L/∂o_t.
struct LossValue {
  double L;
  double a;  ///< ∂L/∂q
  double b;  ///< ∂L/∂s
};

/// L = ‖o − y‖² = q − 2 Σ y o_t + Σ y².
struct SquaredError {
  static constexpr std::string_view name = "squared";
  static constexpr bool uses_sum = false;

  WIDEHEAD_HOST_DEVICE LossValue operator()(const LossInput& x, std::span<double> g) const {
    LossValue value{x.q, 1, 0};
    for (std::size_t k = 0; k < x.o.size(); ++k) {
      value.L += x.y[k] * (x.y[k] - 2 * x.o[k]);
      g[k] = -2 * x.y[k];
    }
    return value;
  }
};

/// L = w₀ Σ_{i unobserved} oᵢ² + w₁ Σ_{t observed} (o_t − y)² = w₀ q + Σ w₁(o_t − y)² − w₀ o_t²:
/// for implicit feedback, where every item that was not chosen is a weak negative.
struct WeightedSquaredError {
  static constexpr std::string_view name = "weighted";
  static constexpr bool uses_sum = false;
  double unobserved = 0.05;  ///< w₀ ≥ 0
  double observed = 1;       ///< w₁ ≥ 0

  WIDEHEAD_HOST_DEVICE LossValue operator()(const LossInput& x, std::span<double> g) const {
    LossValue value{unobserved * x.q, unobserved, 0};
    for (std::size_t k = 0; k < x.o.size(); ++k) {
      const double o = x.o[k], residual = o - x.y[k];
      value.L += observed * residual * residual - unobserved * o * o;
      g[k] = 2 * (observed * residual - unobserved * o);
    }
    return value;
  }
};

/// log-spherical softmax, ε inside the square (the paper's):
///   p(c) = (o_c + ε)² / Z,   Z = Σᵢ (oᵢ + ε)² = q + 2εs + Dε²,   L = Σ y (log Z − log (o_t + ε)²).
/// Within δ = ε/1000 of the pole o_t = −ε the second logarithm continues as the parabola that meets it
/// with the same slope, so that L and g are finite everywhere and g = 0 at the pole; Z is at least Dδ².
struct SphericalSoftmax {
  static constexpr std::string_view name = "spherical";
  static constexpr bool uses_sum = true;
  double epsilon = 1;  ///< ε ≥ 1e-30

  WIDEHEAD_HOST_DEVICE LossValue operator()(const LossInput& x, std::span<double> g) const {
    const double delta = epsilon / 1000, Z = partition(x.q, x.s, x.outputs);
    LossValue value{0, 0, 0};
    double total = 0;
    for (std::size_t k = 0; k < x.o.size(); ++k) {
      const double r = x.o[k] + epsilon;
      const bool at_pole = std::abs(r) < delta;
      const double log_square = at_pole ? 2 * std::log(delta) + r * r / (delta * delta) - 1 : 2 * std::log(std::abs(r));
      value.L += x.y[k] * (std::log(Z) - log_square);
      g[k] = -2 * x.y[k] * (at_pole ? r / (delta * delta) : 1 / r);
      total += x.y[k];
    }
    if (Z > floor(x.outputs)) {
      value.a = total / Z;
      value.b = 2 * epsilon * total / Z;
    }
    return value;
  }
  WIDEHEAD_HOST_DEVICE double log_probability(double q, double s, double outputs, double o) const {
    return 2 * std::log(std::abs(o + epsilon)) - std::log(partition(q, s, outputs));
  }

 private:
  WIDEHEAD_HOST_DEVICE double floor(double outputs) const { return outputs * epsilon * epsilon * 1e-6; }  // Dδ²
  WIDEHEAD_HOST_DEVICE double partition(double q, double s, double outputs) const {
    const double Z = q + 2 * epsilon * s + outputs * epsilon * epsilon;
    return Z > floor(outputs) ? Z : floor(outputs);
  }
};

/// log-spherical softmax, ε outside the square:
///   p(c) = (o_c² + ε) / Z,   Z = q + Dε,   L = Σ y (log Z − log (o_t² + ε)).
/// At o_t = 0 its gradient is 0: start from random weights, W = 0 is a stationary point.
struct SphericalSoftmaxOutside {
  static constexpr std::string_view name = "spherical-outside";
  static constexpr bool uses_sum = false;
  double epsilon = 0.01;  ///< ε ≥ 1e-30

  WIDEHEAD_HOST_DEVICE LossValue operator()(const LossInput& x, std::span<double> g) const {
    const double Z = x.q + x.outputs * epsilon;
    LossValue value{0, 0, 0};
    for (std::size_t k = 0; k < x.o.size(); ++k) {
      const double o = x.o[k], numerator = o * o + epsilon;
      value.L += x.y[k] * std::log(Z / numerator);
      value.a += x.y[k] / Z;
      g[k] = -2 * x.y[k] * o / numerator;
    }
    return value;
  }
  WIDEHEAD_HOST_DEVICE double log_probability(double q, double /*s*/, double outputs, double o) const {
    return std::log((o * o + epsilon) / (q + outputs * epsilon));
  }
};

/// log-Taylor softmax, the exponential to second order, which is 1/2 at least:
///   p(c) = (1 + o_c + o_c²/2) / Z,   Z = D + s + q/2,   L = Σ y (log Z − log (1 + o_t + o_t²/2)).
struct TaylorSoftmax {
  static constexpr std::string_view name = "taylor";
  static constexpr bool uses_sum = true;

  WIDEHEAD_HOST_DEVICE LossValue operator()(const LossInput& x, std::span<double> g) const {
    const double Z = x.outputs + x.s + x.q / 2;
    LossValue value{0, 0, 0};
    for (std::size_t k = 0; k < x.o.size(); ++k) {
      const double o = x.o[k], numerator = 1 + o + o * o / 2;
      value.L += x.y[k] * std::log(Z / numerator);
      value.a += x.y[k] / (2 * Z);
      value.b += x.y[k] / Z;
      g[k] = -x.y[k] * (1 + o) / numerator;
    }
    return value;
  }
  // NOLINTNEXTLINE(readability-convert-member-functions-to-static): it has no parameter, its siblings do
  WIDEHEAD_HOST_DEVICE double log_probability(double q, double s, double outputs, double o) const {
    return std::log((1 + o + o * o / 2) / (outputs + s + q / 2));
  }
};

/// The Z-loss (of de Brébisson and Vincent; not the regulariser of log-sum-exp that shares the name):
///   L = Σ y softplus(α(β − z))/α,   z = (o_t − μ)/σ,   μ = s/D,   σ² = q/D − μ².
/// Below `sigma_min` (all outputs alike, as with W = 0) σ stays at that constant.
struct ZLoss {
  static constexpr std::string_view name = "z";
  static constexpr bool uses_sum = true;
  double scale = 0.05;      ///< α > 0
  double shift = 40;        ///< β
  double sigma_min = 1e-6;  ///< > 0

  WIDEHEAD_HOST_DEVICE LossValue operator()(const LossInput& x, std::span<double> g) const {
    const double mu = x.s / x.outputs, variance = x.q / x.outputs - mu * mu;
    const bool varies = variance > sigma_min * sigma_min;
    const double sigma = varies ? std::sqrt(variance) : sigma_min;
    LossValue value{0, 0, 0};
    for (std::size_t k = 0; k < x.o.size(); ++k) {
      const double z = (x.o[k] - mu) / sigma, u = scale * (shift - z), e = std::exp(-std::abs(u));
      value.L += x.y[k] * ((u > 0 ? u : 0) + std::log1p(e)) / scale;  // softplus, whichever sign u has
      const double slope = x.y[k] * (u > 0 ? 1 : e) / (1 + e);        // −∂L/∂z
      g[k] = -slope / sigma;                                          // ∂z/∂o = 1/σ
      value.b += slope / (sigma * x.outputs);                         // ∂z/∂μ = −1/σ, ∂μ/∂s = 1/D
      if (varies) {  // ∂z/∂σ = −z/σ, ∂σ/∂q = 1/(2σD), ∂σ/∂s = −μ/(σD)
        value.a += slope * z / (2 * variance * x.outputs);
        value.b -= slope * z * mu / (variance * x.outputs);
      }
    }
    return value;
  }
};

/// A loss of your own.
struct CustomLoss {
  /// Returns (L, a, b) and writes g, as the losses above do.
  std::function<LossValue(const LossInput&, std::span<double> g)> function;
  bool uses_sum = true;  ///< whether it depends on s; without, a step is a little cheaper
  std::string name = "custom";

  LossValue operator()(const LossInput& x, std::span<double> g) const { return function(x, g); }
};

using Loss = std::variant<SquaredError, WeightedSquaredError, SphericalSoftmax, SphericalSoftmaxOutside, TaylorSoftmax,
                          ZLoss, CustomLoss>;

std::string name_of(const Loss& loss);
bool uses_sum(const Loss& loss);
/// a = ∂L/∂q where that is a constant (the squared errors), 1 otherwise: the scale of learning rates.
double curvature(const Loss& loss);
/// Whether it is a softmax of sorts, with normalised probabilities.
bool has_probabilities(const Loss& loss);
/// log p of an output o beside ‖o‖² = q and Σ o = s. Only for losses that have_probabilities.
double log_probability(const Loss& loss, double q, double s, double outputs, double o);
/// @throws std::invalid_argument naming the parameter that makes no sense
void check(const Loss& loss);
/// Names of the losses that need no code of the user.
std::span<const std::string_view> loss_names();
/// The loss of that name with its default parameters. @throws std::invalid_argument for an unknown name
Loss make_loss(std::string_view name);

}  // namespace widehead
