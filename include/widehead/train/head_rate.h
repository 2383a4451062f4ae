#pragma once
/// The learning rate of the head: fixed, or given as λ₁ and following ‖H‖.
///   η = λ₁ / (2a‖H‖₂²)
/// λ₁ carries over between models, layer sizes and minibatch sizes; η does not. ‖H‖_F² is measured in every step,
/// the ratio ‖H‖₂²/‖H‖_F², which changes slowly, now and then. Where H becomes smaller than it was at the start, η does
/// not rise: the noise of W makes the layers below shrink H, and a rate that rose with it would keep the noise up until
/// H is gone (seen with relu at λ₁ = 0.3).
///
/// Where steps are enqueued, nobody waits for the norm of the H at hand: η follows the one of two steps ago, which has
/// arrived from the device meanwhile, and the ratio is taken more seldom. A minibatch's norm and that of the next but
/// one differ by as much as minibatches do.

#include <memory>
#include <vector>

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
  /// The same for a step that will be enqueued: waits for the device where the ratio is taken, and in the first steps.
  /// @throws NumericalError where the H of two steps ago was not finite
  double eta_later(OutputLayer<T>& head, ConstView<T> H, const SparseBatch<T>& targets, double factor);
  /// To be called when that step has been enqueued, and with it the norm of its H: now it may be sent.
  void send_norm(Backend<T>& backend);
  void visit_state(StateVisitor& state);
  /// What enqueued steps need besides: the norms that are on their way, waited for.
  void visit_enqueued_state(StateVisitor& state);

 private:
  static constexpr std::int64_t steps_between_ratios = 16;
  static constexpr std::int64_t steps_between_late_ratios = 64;  // of enqueued steps, after the first so many
  static constexpr std::size_t lag = 2;                          // steps, of the norm that η follows
  static constexpr double ratio_tolerance = 1e-3;                // a learning rate need not be known better

  /// A mean of ‖h‖² that has been asked for.
  struct Norm {
    double value = 0;                // known, or
    Readback* on_its_way = nullptr;  // those of the examples
    double get() const;
  };

  HeadRateOptions options_;
  std::int64_t steps_ = 0;
  double eta_times_norm_ = 0;  // η‖H‖_F² at λ₁ = 1
  double first_norm_ = 0;      // ‖h‖², mean of the first minibatch
  // of enqueued steps
  std::vector<Norm> norms_;                           // of the last `lag` of them, oldest first
  std::vector<std::unique_ptr<Readback>> readbacks_;  // one more, in turn
  std::size_t next_readback_ = 0;
  Matrix<double> squares_;  // m, on the device: ‖h‖² of the step at hand
  Size squares_to_send_ = 0;
};

}  // namespace widehead
