#include "widehead/cross_entropy_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "widehead/device_state.h"
#include "widehead/errors.h"

namespace widehead {

template <class T>
CrossEntropyLayer<T>::CrossEntropyLayer(std::string_view head, const LayerOptions& options,
                                        std::shared_ptr<Backend<T>> backend, Size further_rows)
    : OutputLayer<T>(options, std::move(backend)),
      head_(head),
      rows_(options.dim, options.outputs + further_rows, this->backend().memory()) {
  if (!std::holds_alternative<SquaredError>(options.loss)) {
    throw std::invalid_argument(fmt::format("head '{}' minimises the cross-entropy; it cannot take the loss '{}'", head,
                                            name_of(options.loss)));
  }
  this->fill_initial(rows_);
  if (options.initial != Initial::zero) norm_bound_ = std::sqrt(this->backend().dot(rows_, rows_));
}

template <class T>
void CrossEntropyLayer<T>::visit_own_state(StateVisitor& visitor) {
  visit_block(visitor, this->backend(), "rows", rows_.view());
  if (!visitor.loading() && std::isinf(norm_bound_)) norm_bound_ = std::sqrt(this->backend().dot(rows_, rows_));
  visitor.scalar("norm_bound", norm_bound_);
  if (visitor.loading() && !(norm_bound_ >= 0)) visitor.refuse("norm_bound", "is not a bound");
}

template <class T>
void CrossEntropyLayer<T>::refuse_weight_decay() const {
  if (this->options().weight_decay > 0) {
    throw std::invalid_argument(
        fmt::format("head '{}': weight_decay = {}, but it must be 0: a step would have to shrink all D rows", head_,
                    this->options().weight_decay));
  }
}

// ── targets and loss ────────────────────────────────────────────────────────────────────────────

template <class T>
void CrossEntropyLayer<T>::take_targets(const SparseBatch<T>& targets) {
  Y_.assign(targets);
  mass_.assign(static_cast<std::size_t>(targets.examples()), 0.0);
  for (Size e = 0; e < Y_.nonzeros(); ++e) {
    mass_[static_cast<std::size_t>(Y_.entry(e).example)] += static_cast<double>(Y_.entry(e).value);
  }
}

template <class T>
void CrossEntropyLayer<T>::take_non_negative_targets(const SparseBatch<T>& targets) {
  for (Size e = 0; e < targets.nonzeros(); ++e) {
    if (!(targets.value(e) >= T(0))) {
      throw std::invalid_argument(
          fmt::format("targets: values[{}] = {}, but the cross-entropy of head '{}' needs values that are not negative",
                      e, targets.value(e), head_));
    }
  }
  take_targets(targets);
}

template <class T>
double CrossEntropyLayer<T>::loss_of(const SparseBatch<T>& targets, std::span<const double> log_p,
                                     std::span<const double> log_Z) const {
  double sum = 0;
  for (Size j = 0; j < targets.examples(); ++j) {
    const double weight = static_cast<double>(targets.weight(j)), normaliser = log_Z[static_cast<std::size_t>(j)];
    double L = 0, poison = 0 * normaliser;  // also where no target asks for it: the gradient would not be finite
    for (const Index e : Y_.of_example(j)) {
      const double log_p_e = log_p[static_cast<std::size_t>(e)];
      L -= weight * static_cast<double>(Y_.entry(e).value) * log_p_e;
      poison += 0 * log_p_e;
    }
    if (!std::isfinite(L + poison)) {
      throw NumericalError(fmt::format(
          "step {}: the loss of example {} is {} (log Z = {}): the run has diverged; the step was not taken",
          this->steps() + 1, j, L, normaliser));
    }
    sum += L;
  }
  return sum;
}

template <class T>
void CrossEntropyLayer<T>::spread(const SparseBatch<T>& targets, std::span<const double> by_entry,
                                  std::span<double> out) const {
  for (Size j = 0; j < targets.examples(); ++j) {
    const auto entries = Y_.of_example(j);  // each output once, ascending
    for (Size e = targets.begin(j); e < targets.end(j); ++e) {
      const auto found = std::lower_bound(entries.begin(), entries.end(), targets.index(e),
                                          [&](Index entry, Index row) { return Y_.entry(entry).row < row; });
      out[static_cast<std::size_t>(e)] = by_entry[static_cast<std::size_t>(*found)];
    }
  }
}

/// ∂L/∂o of an example is a difference of two vectors, each with elements ≥ 0 that add up to w Σy, and that twice where
/// p is a product of two: with r = 4 Σⱼ wⱼ Σy no norm of R is larger, and W grows by η r ‖H‖_F at most. No logit
/// exceeds ‖W‖_F ‖H‖_F, so that L is about r times that at most.
template <class T>
double CrossEntropyLayer<T>::require_no_overflow(ConstView<T> H, const SparseBatch<T>& targets, T eta) {
  const double limit = static_cast<double>(std::numeric_limits<T>::max()) / 1024;
  const double norm_H = std::sqrt(this->backend().dot(H, H)), rate = static_cast<double>(eta);
  double norm_R = 0;
  for (Size j = 0; j < H.cols; ++j) norm_R += 4 * static_cast<double>(targets.weight(j)) * mass(j);
  const double growth = rate * norm_R * norm_H;
  const auto fits = [&] {
    return norm_bound_ + growth < limit &&
           std::max(norm_H, 1.0) * std::max(norm_bound_, 1.0) * std::max(norm_R, 1.0) < limit;
  };
  if (!fits()) norm_bound_ = std::sqrt(this->backend().dot(rows_, rows_));
  if (!fits()) {
    throw NumericalError(fmt::format(
        "step {}: the loss or the update overflows (‖W‖ = {}, ‖H‖ = {}, Σwy = {}, eta = {}); the step was not taken",
        this->steps() + 1, norm_bound_, norm_H, norm_R / 4, eta));
  }
  return growth;
}

// ── outputs and weights ─────────────────────────────────────────────────────────────────────────

template <class T>
void CrossEntropyLayer<T>::begin_scores(ConstView<T> H) {
  H_scored_ = H;
}

template <class T>
void CrossEntropyLayer<T>::write_scores(std::span<const Index> rows, MatrixView<T> out) {
  this->multiply_rows(W(), rows, H_scored_, out);
}

template <class T>
void CrossEntropyLayer<T>::write_weights(Size first, MatrixView<T> out) {
  this->backend().copy(W().columns(first, out.cols), out);
}

template <class T>
Matrix<T> CrossEntropyLayer<T>::gram() {
  Matrix<T> Q(this->dim(), this->dim(), this->backend().memory());
  this->gram_of_rows(W(), Q);
  return this->host_copy(Q);
}

template class CrossEntropyLayer<float>;
template class CrossEntropyLayer<double>;

}  // namespace widehead
