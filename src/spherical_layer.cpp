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
      ledger_(2, 1, this->backend().memory()),
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
  expect(targets.indices());
  Y.assign(targets);
  const Size m = H.cols, entries = Y.nonzeros();
  const auto room = statistics_room_.scratch(3 * m + entries, 1);
  statistics_ = {room.block(0, 0, m, 1), room.block(m, 0, m, 1), room.block(2 * m, 0, m, 1),
                 room.block(3 * m, 0, entries, 1)};
  derivatives_room_.scratch(3 * m + entries, 1);  // for room_for_judgement: what grows then ends a device's program
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
  reserve_for_update(H.cols);
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
        "step {} or one of those enqueued before it: the loss or its derivatives are not finite (in {} minibatches): the "
        "run has diverged, and the layer with it",
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
  by.a_is_one = by.a_is_one || verdict.a_is_one;  // a squared error in the clothes of another loss is no dearer
  if (verdict.bad < 0) return verdict.L;

  const Size j = verdict.bad;
  const auto& value = verdict.at_bad;
  if (!uses_sum_ && value.b != 0) {
    throw std::invalid_argument(fmt::format(
        "loss {}: ∂L/∂s = {} at example {}, but the loss was declared not to use the sum", name_of(loss), value.b, j));
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
  const Size m = H.cols;
  const auto D = static_cast<double>(this->outputs());
  const auto known = statistics_on_host();
  for_each_target(targets, [&](Size j, Size e, Index entry) {
    out[static_cast<std::size_t>(e)] =
        log_probability(this->options().loss, known(j, 0), known(2 * m + j, 0), D, known(3 * m + entry, 0));
  });
}

/// q, t, s and o, one after another.
template <class T>
ConstView<double> SphericalLayer<T>::statistics_on_host() {
  const Size count = 3 * statistics_.q.rows + statistics_.o.rows;
  return this->template on_host<double>(MatrixView<const double>(statistics_.q.data, count, 1), host_statistics_);
}

/// visit(example, target as given, its entry): the entries have each output of an example once.
template <class T>
template <class Visit>
void SphericalLayer<T>::for_each_target(const SparseBatch<T>& targets, const Visit& visit) const {
  const auto& Y = derivatives_.Gamma;
  for (Size j = 0; j < targets.examples(); ++j) {
    const auto entries = Y.of_example(j);
    for (Size e = targets.begin(j); e < targets.end(j); ++e) {
      const auto found = std::lower_bound(entries.begin(), entries.end(), targets.index(e),
                                          [&](Index entry, Index row) { return Y.entry(entry).row < row; });
      visit(j, e, *found);
    }
  }
}

// ── a step in parts ─────────────────────────────────────────────────────────────────────────────

template <class T>
void SphericalLayer<T>::observe_batch(ConstView<T> H, const SparseBatch<T>& targets, HostStatistics& statistics) {
  observe_targets(this->take_batch(H, targets, {}, "statistics"), targets);
  const auto known = statistics_on_host();
  const Size m = H.cols;
  statistics.q.assign(known.data, known.data + m);
  statistics.s.assign(known.data + 2 * m, known.data + 3 * m);
  statistics.o.resize(static_cast<std::size_t>(targets.nonzeros()));
  for_each_target(
      targets, [&](Size, Size e, Index entry) { statistics.o[static_cast<std::size_t>(e)] = known(3 * m + entry, 0); });
}

/// Derivatives from outside, in the place of those of the layer's loss.
template <class T>
void SphericalLayer<T>::take(const SparseBatch<T>& targets, const GivenDerivatives& given, const char* what) {
  const auto m = static_cast<std::size_t>(targets.examples()), n = static_cast<std::size_t>(targets.nonzeros());
  if (given.a.size() != m || (given.b.size() != m && !given.b.empty()) || given.g.size() != n) {
    throw std::invalid_argument(
        fmt::format("{}: {} derivatives by q, {} by s and {} by o, but there are {} examples with {} targets", what,
                    given.a.size(), given.b.size(), given.g.size(), m, n));
  }
  room_for_judgement(targets);
  auto& by = derivatives_;
  const Size examples = targets.examples(), entries = by.Gamma.nonzeros();
  const auto host = host_derivatives_.scratch(3 * examples + entries, 1);  // a, b, γ, g
  by.a_is_one = true;
  by.largest_a = 0;
  for (Size j = 0; j < examples; ++j) {
    const auto k = static_cast<std::size_t>(j);
    const T a = host(j, 0) = static_cast<T>(given.a[k]);
    const T b = host(examples + j, 0) = given.b.empty() ? T(0) : static_cast<T>(given.b[k]);
    if (!std::isfinite(a + b)) {
      throw NumericalError(fmt::format("{}: ∂L/∂q = {}, ∂L/∂s = {} at example {}", what, a, b, j));
    }
    if (!uses_sum_ && b != T(0)) {
      throw std::invalid_argument(
          fmt::format("{}: ∂L/∂s = {} at example {}, but the loss was declared not to use the sum", what, b, j));
    }
    by.a_is_one = by.a_is_one && a == T(1);
    by.largest_a = std::max(by.largest_a, static_cast<double>(std::abs(a)));
  }
  given_g_.assign(static_cast<std::size_t>(entries), 0.0);
  for_each_target(targets, [&](Size, Size e, Index entry) {
    given_g_[static_cast<std::size_t>(entry)] += given.g[static_cast<std::size_t>(e)];
  });
  for (Size e = 0; e < entries; ++e) {
    const T value = host(3 * examples + e, 0) = static_cast<T>(given_g_[static_cast<std::size_t>(e)]);
    if (!std::isfinite(value)) {
      throw NumericalError(fmt::format("{}: ∂L/∂o = {} at example {}, output {}", what, value,
                                       by.Gamma.entry(e).example, by.Gamma.entry(e).row));
    }
  }
  for (Size j = 0; j < examples; ++j) {
    double sum = 0;
    for (const Index entry : by.Gamma.of_example(j)) sum += given_g_[static_cast<std::size_t>(entry)];
    host(2 * examples + j, 0) = static_cast<T>(sum);
  }
  this->backend().template transfer<T>(host, MatrixView<T>(by.a.data, host.rows, 1));
}

template <class T>
void SphericalLayer<T>::backpropagate_batch(ConstView<T> H, const SparseBatch<T>& targets,
                                            const GivenDerivatives& given, MatrixView<T> grad_H, Known known) {
  const auto H_here = this->take_batch(H, targets, grad_H, "backpropagate", known != Known::nothing);
  if (known == Known::nothing) observe_targets(H_here, targets);
  take(targets, given, "backpropagate");
  const auto grad_here = this->room_for(grad_H);
  backpropagate(H_here, derivatives_, grad_here);
  this->deliver(grad_here, grad_H);
}

template <class T>
void SphericalLayer<T>::update_batch(ConstView<T> H, const SparseBatch<T>& targets, const GivenDerivatives& given,
                                     double eta, MatrixView<T> grad_H, Known known) {
  const auto H_here = this->take_batch(H, targets, grad_H, "update", known != Known::nothing);
  this->check_rate(eta);
  if (known == Known::nothing) observe_targets(H_here, targets);
  if (known != Known::gradient) take(targets, given, "update");
  const auto grad_here = grad_H.empty() ? grad_H_.scratch(H.rows, H.cols) : this->room_for(grad_H);
  if (known == Known::gradient) {
    update_after_backpropagate(H_here, derivatives_, static_cast<T>(eta), grad_here);
  } else {
    update(H_here, derivatives_, static_cast<T>(eta), grad_here);
  }
  this->count_step();
  this->deliver(grad_here, grad_H);
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
