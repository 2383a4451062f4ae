#include "widehead/spherical_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "widehead/errors.h"
#include "widehead/synthetic.h"

namespace widehead {

template <class T>
SphericalLayer<T>::SphericalLayer(const LayerOptions& options, std::shared_ptr<Backend<T>> backend)
    : OutputLayer<T>(options, std::move(backend)),
      uses_sum_(widehead::uses_sum(options.loss)),
      statistics_room_(this->backend().memory()),
      derivatives_room_(this->backend().memory()),
      ledger_(3, 1, this->backend().memory()),
      grad_H_(this->backend().memory()) {}

template <class T>
double SphericalLayer<T>::take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) {
  const double L = judge(H, targets, &eta);
  if (grad_H.empty()) grad_H = grad_H_.scratch(H.rows, H.cols);
  update(H, derivatives_, eta, grad_H);
  return L;
}

template <class T>
double SphericalLayer<T>::compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) {
  const double L = judge(H, targets, nullptr);
  if (!grad_H.empty()) backpropagate(H, derivatives_, grad_H);
  return L;
}

template <class T>
void SphericalLayer<T>::observe_targets(ConstView<T> H, const SparseBatch<T>& targets) {
  auto& Y = derivatives_.Gamma;
  Y.assign(targets);
  const Size m = H.cols, entries = Y.nonzeros();
  const auto room = statistics_room_.scratch(2 * m + entries, 1);
  statistics_ = {room.block(0, 0, m, 1), room.block(m, 0, m, 1), room.block(2 * m, 0, entries, 1)};
  observe(H, Y, statistics_);
}

/// Where what the loss says goes; after observe_targets.
template <class T>
Judged<T> SphericalLayer<T>::room_for_judgement(const SparseBatch<T>& targets) {
  auto& by = derivatives_;
  const Size m = targets.examples(), entries = by.Gamma.nonzeros();
  const auto room = derivatives_room_.scratch(3 * m + entries, 1);
  by.a = room.block(0, 0, m, 1);
  by.b = room.block(m, 0, m, 1);
  by.gamma = room.block(2 * m, 0, m, 1);
  by.g = room.block(3 * m, 0, entries, 1);
  by.a_is_one = std::holds_alternative<SquaredError>(this->options().loss) && !targets.weighted();
  return {statistics_.q, statistics_.s, statistics_.o, by.a, by.b, by.gamma, by.g};
}

template <class T>
bool SphericalLayer<T>::take_step_later(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) {
  if (!can_update_later()) return false;
  observe_targets(H, targets);
  const auto judged = room_for_judgement(targets);
  this->backend().judge_later(this->options().loss, this->outputs(), derivatives_.Gamma, targets.weights(), judged,
                              ledger_);
  if (grad_H.empty()) grad_H = grad_H_.scratch(H.rows, H.cols);
  update_later(H, derivatives_, eta, grad_H);
  return true;
}

template <class T>
double SphericalLayer<T>::settle_steps() {
  Matrix<double> ledger(ledger_.rows(), 1);
  this->backend().template transfer<double>(ledger_.view(), ledger);
  this->backend().clear_in_double(ledger_);
  if (ledger(1, 0) != 0 || !std::isfinite(ledger(0, 0))) {
    throw NumericalError(fmt::format(
        "step {} or one of those enqueued before it: the loss or its derivatives are not finite ({} examples): the run "
        "has diverged, and the layer with it",
        this->steps(), ledger(1, 0)));
  }
  return ledger(0, 0);
}

template <class T>
double SphericalLayer<T>::judge(ConstView<T> H, const SparseBatch<T>& targets, const T* eta) {
  observe_targets(H, targets);
  const auto judged = room_for_judgement(targets);
  auto& by = derivatives_;
  const Loss& loss = this->options().loss;
  const auto verdict = this->backend().judge(loss, this->outputs(), by.Gamma, targets.weights(), judged);
  by.largest_a = verdict.largest_a;
  if (verdict.bad < 0) return verdict.L;

  const Size j = verdict.bad;
  const auto& value = verdict.at_bad;
  if (!uses_sum_ && value.b != 0) {
    throw std::invalid_argument(
        fmt::format("loss {}: ∂L/∂s = {} at example {}, but the loss was declared not to use the sum", name_of(loss),
                    value.b, j));
  }
  by.largest_a = value.a;
  double q = 0;
  this->backend().template transfer<double>(statistics_.q.block(j, 0, 1, 1), {&q, 1, 1});
  throw NumericalError(fmt::format(
      "step {}: the loss of example {} is {}, ∂L/∂q = {}, ∂L/∂s = {}, at ‖o‖² = {}: the run has diverged{}; the step was "
      "not taken",
      this->steps() + 1, j, value.L, value.a, value.b, q,
      eta == nullptr ? "" : fmt::format(" ({})", describe_rate(H, *eta))));
}

template <class T>
void SphericalLayer<T>::compute_log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out) {
  observe_targets(H, targets);
  const auto& Y = derivatives_.Gamma;
  const Size m = H.cols;
  const auto D = static_cast<double>(this->outputs());
  const auto known = this->template on_host<double>(
      MatrixView<const double>(statistics_.q.data, 2 * m + Y.nonzeros(), 1), host_statistics_);  // q, s, o
  for (Size j = 0; j < m; ++j) {
    const auto entries = Y.of_example(j);
    for (Size e = targets.begin(j); e < targets.end(j); ++e) {  // as given; the entries have each output once
      const auto found = std::lower_bound(entries.begin(), entries.end(), targets.index(e),
                                          [&](Index entry, Index row) { return Y.entry(entry).row < row; });
      out[static_cast<std::size_t>(e)] =
          log_probability(this->options().loss, known(j, 0), known(m + j, 0), D, known(2 * m + *found, 0));
    }
  }
}

template <class T>
std::string SphericalLayer<T>::describe_rate(ConstView<T> H, T eta) const {
  const double a = derivatives_.a_is_one ? 1 : derivatives_.largest_a;
  return fmt::format("eta = {}, λ₁ = 2ηa‖H‖₂² = {:.4g}", eta,
                     2 * static_cast<double>(eta) * a * spectral_norm_squared<T>(this->host_copy(H)));
}

template class SphericalLayer<float>;
template class SphericalLayer<double>;

}  // namespace widehead
