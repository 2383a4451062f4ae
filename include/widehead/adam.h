#pragma once
/// Adam (Kingma & Ba 2015), for the layers below the output layer. With gradient g, at update t:
///   m ← β₁m + (1 − β₁)g,   s ← β₂s + (1 − β₂)g²,   p ← p − η m̂ / (√ŝ + ε),   m̂ = m/(1 − β₁ᵗ),  ŝ = s/(1 − β₂ᵗ).

#include <cmath>
#include <cstdint>

namespace widehead {

struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

/// One update, its constants ready: p ← p − rate m / (√s + epsilon).
struct AdamStep {
  double beta1, beta2;
  double rate;     ///< η √(1 − β₂ᵗ) / (1 − β₁ᵗ)
  double epsilon;  ///< ε √(1 − β₂ᵗ)
  double scale;    ///< g is multiplied by this first: 1/m, gradient clipping

  /// @param t  updates taken, this one included
  AdamStep(const AdamOptions& options, double eta, std::int64_t t, double gradient_scale)
      : beta1(options.beta1), beta2(options.beta2), scale(gradient_scale) {
    const double root = std::sqrt(1 - std::pow(beta2, static_cast<double>(t)));
    rate = eta * root / (1 - std::pow(beta1, static_cast<double>(t)));
    epsilon = options.epsilon * root;
  }
};

}  // namespace widehead
