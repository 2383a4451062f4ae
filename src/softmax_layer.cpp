#include "widehead/softmax_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "widehead/softmax_kernels.h"

namespace widehead {

template <class T>
SoftmaxLayer<T>::SoftmaxLayer(std::string_view head, const LayerOptions& options, const SoftmaxOptions& softmax,
                              std::shared_ptr<Backend<T>> backend)
    : CrossEntropyLayer<T>(head, options, std::move(backend)), softmax_(softmax) {
  if (softmax.logits_bytes < 0) {
    throw std::invalid_argument(
        fmt::format("head '{}': logits_bytes = {}, but it must not be negative", head, softmax.logits_bytes));
  }
}

template <class T>
Size SoftmaxLayer<T>::rows_per_block() const {
  return std::min(this->outputs(), this->backend().rows_per_block(this->dim()));
}

/// All blocks, where the budget allows; else as many as leave room for the one at work.
template <class T>
Size SoftmaxLayer<T>::blocks_kept(Size m) const {
  const Size block = rows_per_block(), blocks = (this->outputs() + block - 1) / block;
  const Size room = softmax_.logits_bytes / static_cast<Size>(sizeof(T)) / m / block;  // blocks
  return room >= blocks ? blocks : std::max<Size>(0, room - 1);
}

// ── first pass: Z ───────────────────────────────────────────────────────────────────────────────

/// O ← W H for a block, transposed: an example per row, which is the faster product.
template <class T>
void SoftmaxLayer<T>::compute_block(Size first, MatrixView<T> O) {
  const MatrixView<const T> H_T(H_T_.data(), O.rows, this->dim());
  this->backend().gemm(Op::none, Op::none, T(1), H_T, this->W().columns(first, O.cols), T(0), O);
}

/// Z = Σ_b exp(max_b) Σᵢ exp(oᵢ − max_b) over blocks b, at the scale of the largest so far: nothing overflows.
template <class T>
void SoftmaxLayer<T>::observe(ConstView<T> H, Size keep) {
  const Size D = this->outputs(), m = H.cols, block = rows_per_block(), blocks = (D + block - 1) / block;
  const auto& Y = this->Y();
  kept_ = keep;
  this->backend().transpose(H, H_T_.scratch(m, this->dim()));
  const auto E = E_.scratch(m, kept_ == blocks ? D : (kept_ + 1) * block);
  const auto maxima = maxima_.scratch(m, blocks);
  sums_.resize(static_cast<std::size_t>(m));
  peaks_.assign(static_cast<std::size_t>(m), -std::numeric_limits<double>::infinity());
  log_Z_.assign(static_cast<std::size_t>(m), 0.0);  // Z exp(−peak), until the end
  o_.resize(static_cast<std::size_t>(Y.nonzeros()));

  Size group = 0;
  for (Size b = 0; b < blocks; ++b) {
    const Size first = b * block;
    const auto O = E.columns(std::min(b, kept_) * block, std::min(block, D - first));
    compute_block(first, O);
    for (; group < Y.count() && Y.row(group) < first + O.cols; ++group) {
      Size e = Y.first_entry(group);
      for (const auto& entry : Y.entries(group)) {
        o_[static_cast<std::size_t>(e++)] = static_cast<double>(O(entry.example, entry.row - first));
      }
    }
    T* maximum = maxima.column(b);
    exponentiate_rows<T>(O, this->backend().threads(), {maximum, static_cast<std::size_t>(m)}, sums_);
    for (std::size_t j = 0; j < sums_.size(); ++j) {
      const auto top = static_cast<double>(maximum[j]);
      if (top > peaks_[j]) {
        log_Z_[j] = log_Z_[j] * std::exp(peaks_[j] - top) + sums_[j];
        peaks_[j] = top;
      } else {
        log_Z_[j] += sums_[j] * std::exp(top - peaks_[j]);
      }
    }
  }
  for (std::size_t j = 0; j < log_Z_.size(); ++j) log_Z_[j] = peaks_[j] + std::log(log_Z_[j]);
  log_p_.resize(o_.size());
  for (std::size_t e = 0; e < o_.size(); ++e) {
    log_p_[e] = o_[e] - log_Z_[static_cast<std::size_t>(Y.entry(static_cast<Size>(e)).example)];
  }
}

// ── second pass: ∇H, and the step ───────────────────────────────────────────────────────────────

template <class T>
void SoftmaxLayer<T>::pass_back(ConstView<T> H, const SparseBatch<T>& targets, Update update, T eta,
                                MatrixView<T> grad_H) {
  auto& backend = this->backend();
  const Size d = this->dim(), D = this->outputs(), m = H.cols, block = rows_per_block();
  const auto& Y = this->Y();
  const MatrixView<T> E(E_.data(), m, std::min(D, (kept_ + 1) * block)),
      maxima(maxima_.data(), m, (D + block - 1) / block);
  const auto grad_T = grad_T_.scratch(m, d);
  factors_.resize(static_cast<std::size_t>(m));

  Size group = 0;
  for (Size first = 0, b = 0; first < D; first += block, ++b) {
    const auto W = this->W().columns(first, std::min(block, D - first));
    const auto R = E.columns(std::min(b, kept_) * block, W.cols);
    T* maximum = maxima.column(b);
    if (b >= kept_) {
      compute_block(first, R);
      exponentiate_rows<T>(R, backend.threads(), {maximum, factors_.size()}, sums_);
    }
    for (Size j = 0; j < m; ++j) {  // w s exp(max − log Z)
      const auto k = static_cast<std::size_t>(j);
      factors_[k] = static_cast<T>(static_cast<double>(targets.weight(j)) * this->mass(j) *
                                   std::exp(static_cast<double>(maximum[j]) - log_Z_[k]));
    }
    scale_rows<T>(factors_, backend.threads(), R);  // p s diag(w) …
    for (; group < Y.count() && Y.row(group) < first + W.cols; ++group) {
      for (const auto& entry : Y.entries(group)) {
        R(entry.example, entry.row - first) -= targets.weight(entry.example) * entry.value;  // … − Y diag(w)
      }
    }
    if (!grad_H.empty()) {
      backend.gemm(Op::none, Op::transpose, T(1), R, W, first == 0 ? T(0) : T(1), grad_T);  // ∇H = WᵀR
    }
    if (update == Update::yes) {
      backend.gemm(Op::none, Op::none, -eta, H, R, this->shrinkage(eta), W);  // W ← c W − η R Hᵀ
    }
  }
  if (!grad_H.empty()) backend.transpose(grad_T, grad_H);
}

template <class T>
double SoftmaxLayer<T>::take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) {
  this->take_non_negative_targets(targets);
  observe(H, blocks_kept(H.cols));
  const double L = this->loss_of(targets, log_p_, log_Z_);
  const double growth = this->require_no_overflow(H, targets, eta);
  pass_back(H, targets, Update::yes, eta, grad_H);
  this->grow_by(growth);
  return L;
}

template <class T>
double SoftmaxLayer<T>::compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) {
  this->take_non_negative_targets(targets);
  observe(H, grad_H.empty() ? 0 : blocks_kept(H.cols));
  const double L = this->loss_of(targets, log_p_, log_Z_);
  if (!grad_H.empty()) pass_back(H, targets, Update::no, T(0), grad_H);
  return L;
}

template <class T>
void SoftmaxLayer<T>::compute_log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out) {
  this->take_targets(targets);
  observe(H, 0);
  this->spread(targets, log_p_, out);
}

template <class T>
std::vector<GemmShape> SoftmaxLayer<T>::step_products(Size m) const {
  const Size d = this->dim(), D = this->outputs();
  std::vector<GemmShape> products = {
      {Op::none, Op::none, m, D, d}, {Op::none, Op::transpose, m, d, D}, {Op::none, Op::none, d, D, m}};
  if (const Size rest = D - std::min(D, blocks_kept(m) * rows_per_block()); rest > 0) {
    products.push_back({Op::none, Op::none, m, rest, d});
  }
  return products;
}

template class SoftmaxLayer<float>;
template class SoftmaxLayer<double>;

}  // namespace widehead
