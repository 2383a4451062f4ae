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
    : OutputLayer<T>(options, std::move(backend)), uses_sum_(widehead::uses_sum(options.loss)) {}

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
  const auto m = static_cast<std::size_t>(H.cols);
  auto& Y = derivatives_.Gamma;  // Y, until the loss has spoken
  Y.assign(targets);
  statistics_.q.resize(m);
  statistics_.s.resize(m);
  statistics_.o.resize(static_cast<std::size_t>(Y.nonzeros()));
  observe(H, Y, statistics_);
}

template <class T>
double SphericalLayer<T>::judge(ConstView<T> H, const SparseBatch<T>& targets, const T* eta) {
  observe_targets(H, targets);
  const auto m = static_cast<std::size_t>(H.cols);
  auto& [a, b, gamma, Gamma, a_is_one, largest_a] = derivatives_;
  a.resize(m);
  b.resize(m);
  gamma.resize(m);
  a_is_one = true;
  largest_a = T(0);
  const Loss& loss = this->options().loss;
  const auto D = static_cast<double>(this->outputs());
  double sum = 0;
  for (std::size_t j = 0; j < m; ++j) {
    const auto entries = Gamma.of_example(static_cast<Size>(j));
    o_.resize(entries.size());
    y_.resize(entries.size());
    g_.assign(entries.size(), 0.0);
    for (std::size_t k = 0; k < entries.size(); ++k) {
      o_[k] = statistics_.o[static_cast<std::size_t>(entries[k])];
      y_[k] = static_cast<double>(Gamma.entry(entries[k]).value);
    }
    const LossInput input{statistics_.q[j], uses_sum_ ? statistics_.s[j] : 0.0, D, o_, y_};
    const auto value = std::visit([&](const auto& function) { return function(input, g_); }, loss);
    if (!uses_sum_ && value.b != 0) {
      throw std::invalid_argument(
          fmt::format("loss {}: ∂L/∂s = {} at example {}, but the loss was declared not to use the sum", name_of(loss),
                      value.b, j));
    }
    const auto weight = static_cast<double>(targets.weight(static_cast<Size>(j)));
    double gamma_j = 0, poison = value.L + value.a + value.b;
    for (std::size_t k = 0; k < entries.size(); ++k) {
      Gamma.set_value(entries[k], static_cast<T>(weight * g_[k]));
      gamma_j += weight * g_[k];
      poison += static_cast<double>(static_cast<T>(weight * g_[k]));
    }
    a[j] = static_cast<T>(weight * value.a);
    b[j] = static_cast<T>(weight * value.b);
    gamma[j] = static_cast<T>(gamma_j);
    if (!std::isfinite(poison) || !std::isfinite(a[j] + b[j] + gamma[j])) {
      throw NumericalError(fmt::format(
          "step {}: the loss of example {} is {}, ∂L/∂q = {}, ∂L/∂s = {}, at ‖o‖² = {}: the run has diverged{}; the step was "
          "not taken",
          this->steps() + 1, j, value.L, value.a, value.b, input.q,
          eta == nullptr ? "" : fmt::format(" ({})", describe_rate(H, *eta))));
    }
    a_is_one = a_is_one && a[j] == T(1);
    largest_a = std::max(largest_a, std::abs(a[j]));
    sum += weight * value.L;
  }
  return sum;
}

template <class T>
void SphericalLayer<T>::compute_log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out) {
  observe_targets(H, targets);
  const auto D = static_cast<double>(this->outputs());
  for_each_target(targets, [&](Size j, Size e, Index entry) {
    out[static_cast<std::size_t>(e)] =
        log_probability(this->options().loss, statistics_.q[static_cast<std::size_t>(j)],
                        statistics_.s[static_cast<std::size_t>(j)], D, statistics_.o[static_cast<std::size_t>(entry)]);
  });
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
void SphericalLayer<T>::observe_batch(ConstView<T> H, const SparseBatch<T>& targets, Statistics& statistics) {
  this->check_batch(H, targets, {}, "statistics");
  observe_targets(H, targets);
  statistics.q = statistics_.q;
  statistics.s = statistics_.s;
  statistics.o.resize(static_cast<std::size_t>(targets.nonzeros()));
  for_each_target(targets, [&](Size, Size e, Index entry) {
    statistics.o[static_cast<std::size_t>(e)] = statistics_.o[static_cast<std::size_t>(entry)];
  });
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
  auto& [a, b, gamma, Gamma, a_is_one, largest_a] = derivatives_;
  a.resize(m);
  b.resize(m);
  gamma.resize(m);
  a_is_one = true;
  largest_a = T(0);
  for (std::size_t j = 0; j < m; ++j) {
    a[j] = static_cast<T>(given.a[j]);
    b[j] = given.b.empty() ? T(0) : static_cast<T>(given.b[j]);
    if (!std::isfinite(a[j] + b[j])) {
      throw NumericalError(fmt::format("{}: ∂L/∂q = {}, ∂L/∂s = {} at example {}", what, a[j], b[j], j));
    }
    if (!uses_sum_ && b[j] != T(0)) {
      throw std::invalid_argument(
          fmt::format("{}: ∂L/∂s = {} at example {}, but the loss was declared not to use the sum", what, b[j], j));
    }
    a_is_one = a_is_one && a[j] == T(1);
    largest_a = std::max(largest_a, std::abs(a[j]));
  }
  g_.assign(static_cast<std::size_t>(Gamma.nonzeros()), 0.0);
  for_each_target(targets, [&](Size, Size e, Index entry) {
    g_[static_cast<std::size_t>(entry)] += given.g[static_cast<std::size_t>(e)];
  });
  for (Size e = 0; e < Gamma.nonzeros(); ++e) {
    const auto value = static_cast<T>(g_[static_cast<std::size_t>(e)]);
    if (!std::isfinite(value)) {
      throw NumericalError(fmt::format("{}: ∂L/∂o = {} at example {}, output {}", what, value, Gamma.entry(e).example,
                                       Gamma.entry(e).row));
    }
    Gamma.set_value(e, value);
  }
  for (std::size_t j = 0; j < m; ++j) {
    double sum = 0;
    for (const Index entry : Gamma.of_example(static_cast<Size>(j))) sum += g_[static_cast<std::size_t>(entry)];
    gamma[j] = static_cast<T>(sum);
  }
}

template <class T>
void SphericalLayer<T>::backpropagate_batch(ConstView<T> H, const SparseBatch<T>& targets,
                                            const GivenDerivatives& given, MatrixView<T> grad_H, Known known) {
  this->check_batch(H, targets, grad_H, "backpropagate");
  if (known == Known::nothing) observe_targets(H, targets);
  take(targets, given, "backpropagate");
  backpropagate(H, derivatives_, grad_H);
}

template <class T>
void SphericalLayer<T>::update_batch(ConstView<T> H, const SparseBatch<T>& targets, const GivenDerivatives& given,
                                     double eta, MatrixView<T> grad_H, Known known) {
  this->check_batch(H, targets, grad_H, "update");
  this->check_rate(eta);
  if (known == Known::nothing) observe_targets(H, targets);
  if (known != Known::gradient) take(targets, given, "update");
  if (grad_H.empty()) grad_H = grad_H_.scratch(H.rows, H.cols);
  if (known == Known::gradient) {
    update_after_backpropagate(H, derivatives_, static_cast<T>(eta), grad_H);
  } else {
    update(H, derivatives_, static_cast<T>(eta), grad_H);
  }
  this->count_step();
}

template <class T>
std::string SphericalLayer<T>::describe_rate(ConstView<T> H, T eta) const {
  const double a = derivatives_.a_is_one ? 1 : static_cast<double>(derivatives_.largest_a);
  return fmt::format("eta = {}, λ₁ = 2ηa‖H‖₂² = {:.4g}", eta,
                     2 * static_cast<double>(eta) * a * spectral_norm_squared<T>(H));
}

template class SphericalLayer<float>;
template class SphericalLayer<double>;

}  // namespace widehead
