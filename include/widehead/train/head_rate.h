#pragma once
/// The learning rate of the head: fixed, or given as λ₁ and following ‖H‖.
///   η = λ₁ / (2a‖H‖₂²)
/// λ₁ carries over between models, layer sizes and minibatch sizes; η does not. ‖H‖_F² is measured in every step,
/// the ratio ‖H‖₂²/‖H‖_F², which changes slowly, now and then. Where H becomes smaller than it was at the start, η does
/// not rise: the noise of W makes the layers below shrink H, and a rate that rose with it would keep the noise up until
/// H is gone (seen with relu at λ₁ = 0.3).

#include "widehead/output_layer.h"
#include "widehead/state.h"

namespace widehead {

struct HeadRateOptions {
  double eta = 0;       ///< fixed, for the loss summed over the minibatch; or 0, and then
  double lambda = 0.1;  ///< λ₁
};

template <class T>
class HeadRate {
 public:
  explicit HeadRate(const HeadRateOptions& options) : options_(options) {}

  /// η for a step on H, times `factor`, what the schedule says.
  double eta_for(OutputLayer<T>& head, ConstView<T> H, const SparseBatch<T>& targets, double factor);
  void visit_state(StateVisitor& state);

 private:
  static constexpr std::int64_t steps_between_ratios = 16;
  static constexpr double ratio_tolerance = 1e-3;  // a learning rate need not be known better

  HeadRateOptions options_;
  std::int64_t steps_ = 0;
  double eta_times_norm_ = 0;  // η‖H‖_F² at λ₁ = 1
  double first_norm_ = 0;      // ‖h‖², mean of the first minibatch
};

}  // namespace widehead
