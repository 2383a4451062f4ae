#include "widehead/dense_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "widehead/device_state.h"
#include "widehead/errors.h"

namespace widehead {
namespace {

template <class T>
double frobenius_norm(Backend<T>& backend, ConstView<T> A) {
  return std::sqrt(backend.dot(A, A));
}

}  // namespace

template <class T>
DenseLayer<T>::DenseLayer(const LayerOptions& options, std::shared_ptr<Backend<T>> backend)
    : SphericalLayer<T>(options, std::move(backend)),
      is_squared_error_(std::holds_alternative<SquaredError>(options.loss)),
      W_(options.dim, options.outputs, this->backend().memory()) {
  for (auto* scratch : {&H_a_, &H_T_, &R_, &grad_T_, &g_}) *scratch = Matrix<T>(this->backend().memory());
  this->fill_initial(W_);
  if (options.initial != Initial::zero) norm_bound_ = frobenius_norm<T>(this->backend(), W_);
}

template <class T>
void DenseLayer<T>::observe(ConstView<T> H, const RowGroups<T>& targets, const Statistics& statistics) {
  auto& backend = this->backend();
  const Size d = this->dim(), D = this->outputs(), m = H.cols;
  const Size block = std::min(D, backend.rows_per_block(d));
  const auto H_T = H_T_.scratch(m, d);
  backend.transpose(H, H_T);
  const auto O_room = R_.scratch(m, block);
  backend.clear_in_double(statistics.q);
  backend.clear_in_double(statistics.s);
  for (Size first = 0; first < D; first += block) {
    const auto W = W_.view().columns(first, std::min(block, D - first));
    const auto O = O_room.columns(0, W.cols);
    backend.gemm(Op::none, Op::none, T(1), H_T, W, T(0), O);  // O = W H
    backend.add_row_moments(O, statistics.s, statistics.q);
    backend.read_at(O, first, targets, statistics.o);
  }
}

/// Returns Σ‖R‖².
template <class T>
double DenseLayer<T>::pass_over_rows(ConstView<T> H, const Derivatives<T>& by, Update update, T eta,
                                     MatrixView<T> grad_H) {
  auto& backend = this->backend();
  const Size d = this->dim(), D = this->outputs(), m = H.cols;
  const Size block = std::min(D, backend.rows_per_block(d));
  const auto H_T = H_T_.scratch(m, d);
  if (by.a_is_one) {
    backend.transpose(H, H_T);
  } else {  // diag(a) Hᵀ
    const auto H_a = H_a_.scratch(d, m);
    backend.add_columns(T(1), H, by.a, T(0), H, H_a);
    backend.transpose(H_a, H_T);
  }
  const auto grad_T = grad_T_.scratch(m, d);
  const auto R_room = R_.scratch(m, block);

  double sum = 0;
  for (Size first = 0; first < D; first += block) {
    const auto W = W_.view().columns(first, std::min(block, D - first));
    const auto R = R_room.columns(0, W.cols);
    backend.gemm(Op::none, Op::none, T(2), H_T, W, T(0), R);  // 2 O diag(a) …
    if (this->uses_sum()) backend.add_to_rows(by.b, R);       // … + 1bᵀ …
    backend.add_at(by.Gamma, by.g, first, R);                 // … + Γ
    sum += backend.dot(R, R);
    if (!grad_H.empty()) {
      backend.gemm(Op::none, Op::transpose, T(1), R, W, first == 0 ? T(0) : T(1), grad_T);  // ∇H = WᵀR
    }
    if (update == Update::yes) {
      backend.gemm(Op::none, Op::none, -eta, H, R, this->shrinkage(eta), W);  // W ← c W − η R Hᵀ
    }
  }
  if (!grad_H.empty()) backend.transpose(grad_T, grad_H);
  return sum;
}

// ── squared error, in one pass ──────────────────────────────────────────────────────────────────

/// The single pass updates W before it has seen all outputs, so overflow must be excluded first: no
/// element of R exceeds 2(‖W‖_F ‖H‖_F + Σ|y|), and norm_bound_ follows ‖W‖_F from above. Only where the bound does
/// not settle it (a run that is diverging) are the loss and the norm computed ahead of the step.
template <class T>
void DenseLayer<T>::refuse_overflow(ConstView<T> H, const SparseBatch<T>& targets, T eta) {
  const double limit = std::sqrt(static_cast<double>(std::numeric_limits<T>::max())) / 16;
  const double norm_H = frobenius_norm<T>(this->backend(), H);
  const double norm_Y = sum_of_magnitudes(targets);
  if (norm_bound_ * std::max(norm_H, 1.0) + norm_Y < limit && norm_H * static_cast<double>(eta) < limit) return;
  norm_bound_ = frobenius_norm<T>(this->backend(), W_);
  const double loss = pass_over_rows(H, squared_error_, Update::no, T(0), {}) / 4;
  const double step_norm = 2 * static_cast<double>(eta) * std::sqrt(loss) * norm_H;
  if (!(norm_bound_ + step_norm < limit * limit)) {
    throw NumericalError(fmt::format(
        "step {}: the run has diverged: loss = {}, ‖W‖ = {}, ‖H‖ = {}, eta = {}; the step would overflow and was not taken",
        this->steps() + 1, loss, norm_bound_, norm_H, eta));
  }
}

template <class T>
double DenseLayer<T>::take_squared_error_step(ConstView<T> H, const SparseBatch<T>& targets, T eta,
                                              MatrixView<T> grad_H) {
  auto& Gamma = squared_error_.Gamma;
  Gamma.assign(targets);
  minus_twice_Y_.assign(Gamma.values().begin(), Gamma.values().end());
  for (T& value : minus_twice_Y_) value *= T(-2);
  squared_error_.g = g_.scratch(Gamma.nonzeros(), 1);
  this->backend().template transfer<T>(MatrixView<const T>(minus_twice_Y_.data(), Gamma.nonzeros(), 1),
                                       squared_error_.g);
  refuse_overflow(H, targets, eta);
  const double loss = pass_over_rows(H, squared_error_, Update::yes, eta, grad_H) / 4;  // L = ‖O − Y‖² = ‖R/2‖²
  norm_bound_ += 2 * static_cast<double>(eta) * std::sqrt(loss) * frobenius_norm<T>(this->backend(), H);
  return loss;
}

// ── any loss, in two ────────────────────────────────────────────────────────────────────────────

template <class T>
double DenseLayer<T>::take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) {
  if (!is_squared_error_) return SphericalLayer<T>::take_step(H, targets, eta, grad_H);
  return this->with_weights_folded(H, targets, grad_H, [&](ConstView<T> H_w, const SparseBatch<T>& Y) {
    return take_squared_error_step(H_w, Y, eta, grad_H);
  });
}

template <class T>
void DenseLayer<T>::backpropagate(ConstView<T> H, const Derivatives<T>& by, MatrixView<T> grad_H) {
  pass_over_rows(H, by, Update::no, T(0), grad_H);
}

/// Nothing overflows where ‖W‖ + η Σⱼ ‖rⱼ‖ ‖hⱼ‖ does not, and ‖r‖ ≤ 2|a|√q + √D |b| + ‖g‖.
template <class T>
void DenseLayer<T>::update(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) {
  const Size m = H.cols;
  const auto q = this->template on_host<double>(this->statistics().q, host_statistics_);
  const auto derivatives =
      this->template on_host<T>(MatrixView<const T>(by.a.data, 3 * m + by.g.rows, 1), host_derivatives_);  // a, b, γ, g
  double norm_R = 0;
  for (Size j = 0; j < m; ++j) {
    norm_R += 2 * std::abs(static_cast<double>(derivatives(j, 0))) * std::sqrt(q(j, 0)) +
              std::sqrt(static_cast<double>(this->outputs())) * std::abs(static_cast<double>(derivatives(m + j, 0)));
  }
  for (Size e = 0; e < by.g.rows; ++e) norm_R += std::abs(static_cast<double>(derivatives(3 * m + e, 0)));
  const double growth = static_cast<double>(eta) * norm_R * frobenius_norm<T>(this->backend(), H);
  const double limit = static_cast<double>(std::numeric_limits<T>::max()) / 1024;
  if (!(norm_bound_ + growth < limit)) norm_bound_ = frobenius_norm<T>(this->backend(), W_);
  if (!(norm_bound_ + growth < limit && norm_R < limit)) {
    throw NumericalError(fmt::format("step {}: the update overflows (‖W‖ = {}, {}); the step was not taken",
                                     this->steps() + 1, norm_bound_, this->describe_rate(H, eta)));
  }
  pass_over_rows(H, by, Update::yes, eta, grad_H);
  norm_bound_ += growth;
}

template <class T>
void DenseLayer<T>::visit_own_state(StateVisitor& visitor) {
  visit_block(visitor, this->backend(), "W", W_.view());
  visitor.scalar("norm_bound", norm_bound_);
}

template <class T>
void DenseLayer<T>::begin_scores(ConstView<T> H) {
  H_scored_ = H;
}

template <class T>
void DenseLayer<T>::write_scores(std::span<const Index> rows, MatrixView<T> out) {
  this->multiply_rows(W_, rows, H_scored_, out);
}

template <class T>
void DenseLayer<T>::write_weights(Size first, MatrixView<T> out) {
  this->backend().copy(W_.view().columns(first, out.cols), out);
}

template <class T>
Matrix<T> DenseLayer<T>::gram() {
  Matrix<T> Q(this->dim(), this->dim(), this->backend().memory());
  this->gram_of_rows(W_, Q);
  return this->host_copy(Q);
}

template <class T>
std::vector<GemmShape> DenseLayer<T>::step_products(Size m) const {
  const Size d = this->dim(), D = this->outputs();
  return {{Op::none, Op::none, m, D, d}, {Op::none, Op::transpose, m, d, D}, {Op::none, Op::none, d, D, m}};
}

template class DenseLayer<float>;
template class DenseLayer<double>;

}  // namespace widehead
