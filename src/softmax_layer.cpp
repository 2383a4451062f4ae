#include "widehead/softmax_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace widehead {

template <class T>
SoftmaxLayer<T>::SoftmaxLayer(std::string_view head, const LayerOptions& options, const SoftmaxOptions& softmax,
                              std::shared_ptr<Backend<T>> backend)
    : CrossEntropyLayer<T>(head, options, std::move(backend)), softmax_(softmax) {
  if (softmax.logits_bytes < 0) {
    throw std::invalid_argument(
        fmt::format("head '{}': logits_bytes = {}, but it must not be negative", head, softmax.logits_bytes));
  }
  auto& memory = this->backend().memory();
  for (auto* scratch : {&H_T_, &E_, &maxima_, &grad_T_, &factors_room_, &minus_Y_room_}) *scratch = Matrix<T>(memory);
  for (auto* scratch : {&sums_, &o_}) *scratch = Matrix<double>(memory);
}

template <class T>
Size SoftmaxLayer<T>::rows_per_block() const {
  return std::min(this->outputs(), this->backend().rows_per_block(this->dim()));
}

/// All blocks, where the budget allows or there is but one; else as many as leave room for the one at work.
template <class T>
Size SoftmaxLayer<T>::blocks_kept(Size m) const {
  const Size block = rows_per_block(), blocks = (this->outputs() + block - 1) / block;
  const Size room = softmax_.logits_bytes / static_cast<Size>(sizeof(T)) / m / block;  // blocks
  return room >= blocks || blocks == 1 ? blocks : std::max<Size>(0, room - 1);
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
  auto& backend = this->backend();
  const Size D = this->outputs(), m = H.cols, block = rows_per_block(), blocks = (D + block - 1) / block;
  const auto& Y = this->Y();
  kept_ = keep;
  backend.transpose(H, H_T_.scratch(m, this->dim()));
  const auto E = E_.scratch(m, kept_ == blocks ? D : (kept_ + 1) * block);
  const auto maxima_here = maxima_.scratch(m, blocks);
  const auto sums_here = sums_.scratch(m, blocks), o_here = o_.scratch(Y.nonzeros(), 1);
  for (Size b = 0; b < blocks; ++b) {
    const Size first = b * block;
    const auto O = E.columns(std::min(b, kept_) * block, std::min(block, D - first));
    compute_block(first, O);
    backend.read_at(O, first, Y, o_here);
    backend.exponentiate_rows(O, maxima_here.columns(b, 1), sums_here.columns(b, 1));
  }

  const auto maxima = this->template on_host<T>(maxima_here, host_maxima_);
  const auto sums = this->template on_host<double>(sums_here, host_sums_);
  const auto o = this->template on_host<double>(o_here, host_o_);
  peaks_.assign(static_cast<std::size_t>(m), -std::numeric_limits<double>::infinity());
  log_Z_.assign(static_cast<std::size_t>(m), 0.0);  // Z exp(−peak), until the end
  for (Size b = 0; b < blocks; ++b) {
    for (Size j = 0; j < m; ++j) {
      auto& peak = peaks_[static_cast<std::size_t>(j)];
      auto& Z = log_Z_[static_cast<std::size_t>(j)];
      const auto top = static_cast<double>(maxima(j, b));
      if (top > peak) {
        Z = Z * std::exp(peak - top) + sums(j, b);
        peak = top;
      } else {
        Z += sums(j, b) * std::exp(top - peak);
      }
    }
  }
  for (std::size_t j = 0; j < log_Z_.size(); ++j) log_Z_[j] = peaks_[j] + std::log(log_Z_[j]);
  log_p_.resize(static_cast<std::size_t>(Y.nonzeros()));
  for (Size e = 0; e < Y.nonzeros(); ++e) {
    log_p_[static_cast<std::size_t>(e)] = o(e, 0) - log_Z_[static_cast<std::size_t>(Y.entry(e).example)];
  }
}

// ── second pass: ∇H, and the step ───────────────────────────────────────────────────────────────

/// What makes R of the exponentials: w s exp(max − log Z) for every example and block, and −Y diag(w).
template <class T>
void SoftmaxLayer<T>::prepare_residual(const SparseBatch<T>& targets) {
  const auto& Y = this->Y();
  const Size m = targets.examples(), block = rows_per_block(), blocks = (this->outputs() + block - 1) / block;
  const MatrixView<const T> maxima(this->backend().memory().is_host() ? maxima_.data() : host_maxima_.data(), m,
                                   blocks);
  const auto factors = factors_.scratch(m, blocks);
  for (Size b = 0; b < blocks; ++b) {
    for (Size j = 0; j < m; ++j) {
      factors(j, b) = static_cast<T>(static_cast<double>(targets.weight(j)) * this->mass(j) *
                                     std::exp(static_cast<double>(maxima(j, b)) - log_Z_[static_cast<std::size_t>(j)]));
    }
  }
  minus_Y_.resize(static_cast<std::size_t>(Y.nonzeros()));
  for (Size e = 0; e < Y.nonzeros(); ++e) {
    minus_Y_[static_cast<std::size_t>(e)] = -(targets.weight(Y.entry(e).example) * Y.entry(e).value);
  }
}

template <class T>
void SoftmaxLayer<T>::pass_back(ConstView<T> H, const SparseBatch<T>& targets, Update update, T eta,
                                MatrixView<T> grad_H) {
  auto& backend = this->backend();
  const Size d = this->dim(), D = this->outputs(), m = H.cols, block = rows_per_block(),
             blocks = (D + block - 1) / block;
  prepare_residual(targets);
  const auto factors = backend.template reach<T>(MatrixView<const T>(factors_.data(), m, blocks), factors_room_);
  const auto minus_Y = backend.template reach<T>(std::span<const T>(minus_Y_), minus_Y_room_);
  const MatrixView<T> E(E_.data(), m, std::min(D, (kept_ + 1) * block));
  const MatrixView<T> maxima(maxima_.data(), m, blocks);
  const MatrixView<double> sums(sums_.data(), m, blocks);
  const auto grad_T = grad_T_.scratch(m, d);

  for (Size first = 0, b = 0; first < D; first += block, ++b) {
    const auto W = this->W().columns(first, std::min(block, D - first));
    const auto R = E.columns(std::min(b, kept_) * block, W.cols);
    if (b >= kept_) {
      compute_block(first, R);
      backend.exponentiate_rows(R, maxima.columns(b, 1), sums.columns(b, 1));
    }
    backend.scale_rows(factors.columns(b, 1), R);  // p s diag(w) …
    backend.add_at(this->Y(), minus_Y, first, R);  // … − Y diag(w)
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
