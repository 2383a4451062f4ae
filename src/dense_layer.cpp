#include "widehead/dense_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

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
    : OutputLayer<T>(options, std::move(backend)), W_(options.dim, options.outputs) {
  this->fill_initial(W_);
  if (options.initial != Initial::zero) norm_bound_ = frobenius_norm<T>(this->backend(), W_);
}

template <class T>
double DenseLayer<T>::pass_over_rows(ConstView<T> H, const SparseBatch<T>& targets, Update update, T eta,
                                     MatrixView<T> grad_H) {
  auto& backend = this->backend();
  const Size d = this->dim(), D = this->outputs(), m = H.cols;
  const Size block = std::min(D, backend.rows_per_block(d));
  groups_.assign(targets);
  const auto H_T = H_T_.scratch(m, d);
  backend.transpose(H, H_T);
  const auto grad_T = grad_T_.scratch(m, d);
  const auto R_room = R_.scratch(m, block);

  double loss = 0;
  Size group = 0;
  for (Size first = 0; first < D; first += block) {
    const auto W = W_.view().columns(first, std::min(block, D - first));
    const auto R = R_room.columns(0, W.cols);
    backend.gemm(Op::none, Op::none, T(1), H_T, W, T(0), R);  // O = W H
    for (; group < groups_.count() && groups_.row(group) < first + W.cols; ++group) {
      for (const auto& entry : groups_.entries(group)) R(entry.example, entry.row - first) -= entry.value;  // R = O − Y
    }
    loss += backend.dot(R, R);  // L = ‖R‖²
    if (!grad_H.empty()) {
      backend.gemm(Op::none, Op::transpose, T(2), R, W, first == 0 ? T(0) : T(1), grad_T);  // ∇H = 2 WᵀR
    }
    if (update == Update::yes) {
      backend.gemm(Op::none, Op::none, -2 * eta, H, R, this->shrinkage(eta), W);  // W ← c W − 2η R Hᵀ
    }
  }
  if (!grad_H.empty()) backend.transpose(grad_T, grad_H);
  return loss;
}

/// The single pass updates W before it has seen all outputs, so overflow must be excluded first: no
/// element of R exceeds ‖W‖_F ‖H‖_F + Σ|y|, and norm_bound_ follows ‖W‖_F from above. Only where the bound does
/// not settle it (a run that is diverging) are the loss and the norm computed ahead of the step.
template <class T>
void DenseLayer<T>::refuse_overflow(ConstView<T> H, const SparseBatch<T>& targets, T eta) {
  const double limit = std::sqrt(static_cast<double>(std::numeric_limits<T>::max())) / 16;
  const double norm_H = frobenius_norm<T>(this->backend(), H);
  const double norm_Y = sum_of_magnitudes(targets);
  if (norm_bound_ * std::max(norm_H, 1.0) + norm_Y < limit && norm_H * static_cast<double>(eta) < limit) return;
  norm_bound_ = frobenius_norm<T>(this->backend(), W_);
  const double loss = pass_over_rows(H, targets, Update::no, T(0), {});
  const double step_norm = 2 * static_cast<double>(eta) * std::sqrt(loss) * norm_H;
  if (!(norm_bound_ + step_norm < limit * limit)) {
    throw NumericalError(fmt::format(
        "step {}: the run has diverged: loss = {}, ‖W‖ = {}, ‖H‖ = {}, eta = {}; the step would overflow and was not taken",
        this->steps() + 1, loss, norm_bound_, norm_H, eta));
  }
}

template <class T>
double DenseLayer<T>::take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) {
  refuse_overflow(H, targets, eta);
  const double loss = pass_over_rows(H, targets, Update::yes, eta, grad_H);
  norm_bound_ += 2 * static_cast<double>(eta) * std::sqrt(loss) * frobenius_norm<T>(this->backend(), H);
  return loss;
}

template <class T>
double DenseLayer<T>::compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) {
  return pass_over_rows(H, targets, Update::no, T(0), grad_H);
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
  Matrix<T> Q(this->dim(), this->dim());
  this->gram_of_rows(W_, Q);
  return Q;
}

template <class T>
std::vector<GemmShape> DenseLayer<T>::step_products(Size m) const {
  const Size d = this->dim(), D = this->outputs();
  return {{Op::none, Op::none, m, D, d}, {Op::none, Op::transpose, m, d, D}, {Op::none, Op::none, d, D, m}};
}

template class DenseLayer<float>;
template class DenseLayer<double>;

}  // namespace widehead
