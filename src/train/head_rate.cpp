#include "widehead/train/head_rate.h"

#include <algorithm>
#include <cmath>

namespace widehead {

template <class T>
double HeadRate<T>::eta_for(OutputLayer<T>& head, ConstView<T> H, const SparseBatch<T>& targets, double factor) {
  if (options_.eta > 0) return options_.eta * factor;
  const double squared_norm = head.backend().dot(H, H);               // ‖H‖_F²
  if (!(squared_norm > 0) || !std::isfinite(squared_norm)) return 0;  // no step, or one that the head will refuse
  const auto m = static_cast<double>(H.cols);
  if (first_norm_ == 0) first_norm_ = squared_norm / m;
  if (steps_++ % steps_between_ratios == 0) {
    eta_times_norm_ = head.eta_for(H, targets, 1, ratio_tolerance) * squared_norm;
  }
  return options_.lambda * factor * eta_times_norm_ / std::max(squared_norm, first_norm_ * m);
}

template <class T>
void HeadRate<T>::visit_state(StateVisitor& state) {
  state.count("steps", steps_);
  state.scalar("eta_times_norm", eta_times_norm_);
  state.scalar("first_norm", first_norm_);
}

template class HeadRate<float>;
template class HeadRate<double>;

}  // namespace widehead
