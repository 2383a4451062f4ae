#include "widehead/sampled_softmax_layer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "widehead/softmax_kernels.h"

namespace widehead {

template <class T>
SampledSoftmaxLayer<T>::SampledSoftmaxLayer(const LayerOptions& options, const SoftmaxOptions& softmax,
                                            const SampledSoftmaxOptions& sampled, std::shared_ptr<Backend<T>> backend)
    : SoftmaxLayer<T>("sampled", options, softmax, std::move(backend)),
      sampler_(options.outputs, sampled.samples, options.seed) {
  this->refuse_weight_decay();
}

/// visit(position in S, entry of Y) for every target that was drawn as well.
template <class T>
template <class Visit>
void SampledSoftmaxLayer<T>::for_each_hit(const Visit& visit) {
  const auto& Y = this->Y();
  for (Size group = 0; group < Y.count(); ++group) {
    const auto found = std::lower_bound(sample_.begin(), sample_.end(), Y.row(group));
    if (found == sample_.end() || *found != Y.row(group)) continue;
    for (const auto& entry : Y.entries(group)) visit(found - sample_.begin(), entry);
  }
}

/// log Ẑ of every example, log p̂ of every entry, and the exponentials of S.
template <class T>
void SampledSoftmaxLayer<T>::observe_sample(ConstView<T> H) {
  auto& backend = this->backend();
  const auto& Y = this->Y();
  const Size d = this->dim(), m = H.cols;
  sampler_.draw(this->steps(), sample_);
  const Size n = static_cast<Size>(sample_.size());

  const auto Z_S = Z_S_.scratch(d, n), Z_T = Z_T_.scratch(d, Y.count()), O = E_.scratch(m, n);
  backend.move_columns(this->W(), sample_, {}, Z_S);
  const auto H_T = H_T_.scratch(m, d);
  backend.transpose(H, H_T);
  backend.gemm(Op::none, Op::none, T(1), H_T, Z_S, T(0), O);
  for (Size i = 0; i < n; ++i) {
    const T correction = static_cast<T>(-std::log(sampler_.expected_count(sample_[static_cast<std::size_t>(i)])));
    T* o = O.column(i);
#pragma omp simd
    for (Size j = 0; j < m; ++j) o[j] += correction;
  }
  for_each_hit([&](Size i, const auto& entry) { O(entry.example, i) = -std::numeric_limits<T>::infinity(); });

  o_.resize(static_cast<std::size_t>(Y.nonzeros()));
  if (Y.count() > 0) backend.move_columns(this->W(), Y.rows(), {}, Z_T);
  backend.dots_at(Z_T, Y, H, 0, MatrixView<double>(o_.data(), Y.nonzeros(), 1));
  for (std::size_t e = 0; e < o_.size(); ++e) {
    o_[e] -= std::log(sampler_.expected_count(Y.entry(static_cast<Size>(e)).row));
  }

  const auto examples = static_cast<std::size_t>(m);
  maxima_.resize(examples);
  sums_.resize(examples);
  log_Z_.resize(examples);
  exponentiate_rows<T>(O, backend.threads(), maxima_, sums_);
  for_each_hit([&](Size i, const auto& entry) {  // e^−∞ is the smallest number, not 0
    sums_[static_cast<std::size_t>(entry.example)] -= static_cast<double>(O(entry.example, i));
    O(entry.example, i) = T(0);
  });
  log_p_.resize(o_.size());
  for (Size j = 0; j < m; ++j) {
    const auto k = static_cast<std::size_t>(j);
    auto peak = static_cast<double>(maxima_[k]);
    for (const Index e : Y.of_example(j)) peak = std::max(peak, o_[static_cast<std::size_t>(e)]);
    double Z = sums_[k] * std::exp(static_cast<double>(maxima_[k]) - peak);
    for (const Index e : Y.of_example(j)) Z += std::exp(o_[static_cast<std::size_t>(e)] - peak);
    log_Z_[k] = peak + std::log(Z);
    for (const Index e : Y.of_example(j)) {
      log_p_[static_cast<std::size_t>(e)] = o_[static_cast<std::size_t>(e)] - log_Z_[k];
    }
  }
}

/// R = (p̂ s − Y) diag(w) in two parts, of S and of the targets. The rows of S were copied: they are changed there and
/// written back, and then what the targets change is added.
template <class T>
void SampledSoftmaxLayer<T>::update(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols, n = static_cast<Size>(sample_.size());
  const MatrixView<T> R(E_.data(), m, n), Z_S(Z_S_.data(), d, n);
  factors_.resize(static_cast<std::size_t>(m));
  for (Size j = 0; j < m; ++j) {  // w s exp(max − log Ẑ)
    const auto k = static_cast<std::size_t>(j);
    factors_[k] = static_cast<T>(static_cast<double>(targets.weight(j)) * this->mass(j) *
                                 std::exp(static_cast<double>(maxima_[k]) - log_Z_[k]));
  }
  scale_rows<T>(factors_, backend.threads(), R);
  const auto& Y = this->Y();
  const auto Gamma = Gamma_.scratch(Y.nonzeros(), 1);
  for (Size e = 0; e < Y.nonzeros(); ++e) {
    const auto& entry = Y.entry(e);
    const double p = std::exp(log_p_[static_cast<std::size_t>(e)]);
    Gamma(e, 0) = static_cast<T>(static_cast<double>(targets.weight(entry.example)) *
                                 (p * this->mass(entry.example) - static_cast<double>(entry.value)));
  }
  if (!grad_H.empty()) {
    const auto grad_T = grad_T_.scratch(m, d);
    backend.gemm(Op::none, Op::transpose, T(1), R, Z_S, T(0), grad_T);
    backend.transpose(grad_T, grad_H);
    backend.add_combination(MatrixView<const T>(Z_T_.data(), d, Y.count()), Y, Gamma, grad_H);
  }
  backend.gemm(Op::none, Op::none, -eta, H, R, T(1), Z_S);
  backend.move_columns(Z_S, {}, sample_, this->W());
  backend.scatter(-eta, Y, Gamma, H, this->W());
}

template <class T>
double SampledSoftmaxLayer<T>::take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) {
  this->take_non_negative_targets(targets);
  observe_sample(H);
  const double L = this->loss_of(targets, log_p_, log_Z_);
  const double growth = this->require_no_overflow(H, targets, eta);
  update(H, targets, eta, grad_H);
  this->grow_by(growth);
  return L;
}

template <class T>
std::vector<GemmShape> SampledSoftmaxLayer<T>::step_products(Size m) const {
  std::vector<Index> sample;
  sampler_.draw(0, sample);
  const Size d = this->dim(), n = static_cast<Size>(sample.size());
  return {{Op::none, Op::none, m, n, d}, {Op::none, Op::transpose, m, d, n}, {Op::none, Op::none, d, n, m}};
}

template class SampledSoftmaxLayer<float>;
template class SampledSoftmaxLayer<double>;

}  // namespace widehead
