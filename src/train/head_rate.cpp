#include "widehead/train/head_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "widehead/errors.h"

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
double HeadRate<T>::Norm::get() const {
  if (on_its_way == nullptr) return value;
  double sum = 0;
  const auto squares = on_its_way->receive();
  for (const double square : squares) sum += square;
  return sum / static_cast<double>(squares.size());
}

template <class T>
void HeadRate<T>::send_norm(Backend<T>& backend) {
  if (squares_to_send_ == 0) return;
  if (readbacks_.empty()) {
    for (std::size_t k = 0; k <= lag; ++k) readbacks_.push_back(backend.make_readback());
  }
  auto& readback = *readbacks_[next_readback_];
  next_readback_ = (next_readback_ + 1) % readbacks_.size();
  readback.send(squares_.view().block(0, 0, std::exchange(squares_to_send_, 0), 1));
  norms_.push_back({0, &readback});
}

template <class T>
double HeadRate<T>::eta_later(OutputLayer<T>& head, ConstView<T> H, const SparseBatch<T>& targets, double factor) {
  if (options_.eta > 0) return options_.eta * factor;
  const auto m = static_cast<double>(H.cols);
  const auto take = [&](double norm, std::size_t steps_ago) {
    if (std::isfinite(norm)) return norm;
    throw NumericalError(
        fmt::format("after step {}: the outputs of the hidden layers are not finite: the run has diverged",
                    head.steps() - static_cast<std::int64_t>(steps_ago)));
  };
  const bool takes_ratio =
      steps_ % (steps_ < steps_between_late_ratios ? steps_between_ratios : steps_between_late_ratios) == 0;
  double norm = 0;  // ‖h‖², mean
  if (takes_ratio || norms_.size() < lag) {
    const double squared_norm = take(head.backend().dot(H, H), 0);
    if (!(squared_norm > 0)) return 0;  // no step
    norm = squared_norm / m;
    if (first_norm_ == 0) first_norm_ = norm;
    if (takes_ratio) eta_times_norm_ = head.eta_for(H, targets, 1, ratio_tolerance) * squared_norm;
    norms_.push_back({norm});
    if (norms_.size() > lag) norms_.erase(norms_.begin());
  } else {
    norm = take(norms_.front().get(), lag);
    norms_.erase(norms_.begin());
    if (squares_.rows() < H.cols) squares_ = Matrix<double>(H.cols, 1, head.backend().memory());
    head.backend().column_dots(H, H, squares_.view().block(0, 0, H.cols, 1));
    squares_to_send_ = H.cols;
  }
  ++steps_;
  if (!(norm > 0)) return 0;
  return options_.lambda * factor * eta_times_norm_ / (std::max(norm, first_norm_) * m);
}

template <class T>
void HeadRate<T>::visit_enqueued_state(StateVisitor& state) {
  std::vector<double> values;
  for (const auto& norm : norms_) values.push_back(norm.get());
  state.list("norms", values);
  const bool fits = values.size() <= lag &&
                    std::ranges::all_of(values, [](double value) { return value >= 0 && std::isfinite(value); });
  if (state.loading() && !fits) state.refuse("norms", fmt::format("is no list of at most {} norms", lag));
  norms_.clear();
  for (const double value : values) norms_.push_back({value});
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
