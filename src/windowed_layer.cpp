#include "widehead/windowed_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "widehead/errors.h"
#include "widehead/random.h"
#include "widehead/synthetic.h"

namespace widehead {
namespace {

constexpr std::uint32_t probe_stream = 0x70;  // "p"

/// Rows treated at once when a window closes: bounds the scratch for any K.
constexpr std::size_t rows_at_once = 1024;

template <class Work>
void for_each_group(std::span<const Index> rows, const Work& work) {
  for (std::size_t first = 0; first < rows.size(); first += rows_at_once) {
    work(rows.subspan(first, std::min(rows_at_once, rows.size() - first)));
  }
}

}  // namespace

template <class T>
WindowedLayer<T>::WindowedLayer(const LayerOptions& options, const WindowedOptions& windowed,
                                std::shared_ptr<Backend<T>> backend)
    : OutputLayer<T>(options, std::move(backend)),
      windowed_(windowed),
      store_(options.outputs, options.dim, windowed.rows_file),
      timeline_(this->backend(), store_, options.initial == Initial::zero, windowed.timeline),
      pivots_(static_cast<std::size_t>(options.dim)) {
  if (windowed.window < 0) {
    throw std::invalid_argument(
        fmt::format("windowed layer: window = {}, but it must not be negative", windowed.window));
  }
  if (!(windowed.absorb_limit >= 1)) {
    throw std::invalid_argument(
        fmt::format("windowed layer: absorb_limit = {}, but it must be at least 1", windowed.absorb_limit));
  }
  if (!(windowed.deflate_below >= 0 && windowed.deflate_below < 1)) {
    throw std::invalid_argument(
        fmt::format("windowed layer: deflate_below = {}, but it must be 0 … 1", windowed.deflate_below));
  }
  if (windowed.probes < 1) {
    throw std::invalid_argument(fmt::format("windowed layer: probes = {}, but it must be at least 1", windowed.probes));
  }
  const Size d = options.dim;
  if (windowed_.window == 0) windowed_.window = d + 3 * d / 10;
  windowed_.probes = std::min(windowed_.probes, timeline_.options().panel_rank);  // what one deflation may add
  S_T_ = Matrix<T>(d, 2 * d + windowed_.window);
  set_identity(U_T());
  if (options.initial != Initial::zero) {
    this->fill_initial(store_.view());
    this->gram_of_rows(store_.view(), Q());
  }
  probes_ = Matrix<T>(d, windowed_.probes);
  ritz_vectors_ = Matrix<T>(windowed_.probes, windowed_.probes);
  squared_sigma_.resize(static_cast<std::size_t>(windowed_.probes));
  start_probes();
}

template <class T>
void WindowedLayer<T>::start_probes() {
  const Random random(this->options().seed, probe_stream);
  for (Size i = 0; i < probes_.size(); ++i) {
    probes_.data()[i] = static_cast<T>(random.normal(static_cast<std::uint64_t>(i), 0).first);
  }
}

// ── the step (docs/algorithm.md, section 3) ─────────────────────────────────────────────────────

/// sums ← columns · (Y_w)_i for each output i of `rows` (d x rows.size(); columns: d x n), which is
/// (Y_w E)_i when the columns are E's rows. Returns false, with no sums, when the window has none of them.
template <class T>
bool WindowedLayer<T>::sum_window(ConstView<T> columns, std::span<const Index> rows, MatrixView<T>& sums) {
  sum_offsets_.assign(1, 0);
  sum_columns_.clear();
  sum_values_.clear();
  for (const Index row : rows) {
    if (const auto slot = window_.find(row); slot != Window<T>::none) {
      for (auto e = window_.first_entry(static_cast<std::size_t>(slot)); e != Window<T>::none;
           e = window_.entry(e).next) {
        sum_columns_.push_back(static_cast<Index>(window_.entry(e).column));
        sum_values_.push_back(window_.entry(e).value);
      }
    }
    sum_offsets_.push_back(static_cast<std::int64_t>(sum_columns_.size()));
  }
  if (sum_columns_.empty()) return false;
  sums = sums_.scratch(this->dim(), static_cast<Size>(rows.size()));
  this->backend().gather(columns, SparseBatch<T>(window_.columns(), sum_offsets_, sum_columns_, sum_values_), sums);
  return true;
}

/// Ŷ = WᵀY = Uᵀ(VᵀY) + Eᵀ(Y_wᵀY), C = Ĥ/2 − Ŷ and L = 2 tr(HᵀC) + tr(YᵀY), summed in double.
template <class T>
double WindowedLayer<T>::squared_error(ConstView<T> H, const SparseBatch<T>& targets, ConstView<T> H_hat) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols;
  groups_.assign(targets);
  rows_.clear();
  for (Size group = 0; group < groups_.count(); ++group) rows_.push_back(groups_.row(group));
  const auto Z = Z_.scratch(d, groups_.count());
  timeline_.gather(rows_, Z);

  const auto VtY = VtY_.scratch(d, m), Y_hat = Y_hat_.scratch(d, m), C = C_.scratch(d, m);
  backend.scale(T(0), VtY);
  backend.add_combination(Z, groups_, VtY);
  backend.gemm(Op::none, Op::none, T(1), U_T(), VtY, T(0), Y_hat);
  if (MatrixView<T> sums; sum_window(E_T(), rows_, sums)) backend.add_combination(sums, groups_, Y_hat);
  backend.add(T(0.5), H_hat, T(-1), Y_hat, C);
  return 2 * backend.dot(H, C) + groups_.squared_norm();
}

template <class T>
double WindowedLayer<T>::compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) {
  auto& backend = this->backend();
  const auto H_hat = T_.scratch(this->dim(), H.cols);
  backend.gemm(Op::none, Op::none, T(1), Q(), H, T(0), H_hat);
  const double L = squared_error(H, targets, H_hat);
  if (!grad_H.empty()) backend.add(T(2), H_hat, T(-2), Y_hat_.scratch(H.rows, H.cols), grad_H);
  return L;
}

template <class T>
std::string WindowedLayer<T>::describe_rate(ConstView<T> H, T eta) const {
  return fmt::format("eta = {}, λ₁ = 2η‖H‖₂² = {:.4g}", eta,
                     2 * static_cast<double>(eta) * spectral_norm_squared<T>(H));
}

/// Whether the commit half stays finite: the stack grows by 2η‖SH‖‖H‖ and the appended rows 2η‖H‖ at
/// most. The bound follows it, and the norm itself is taken only where the bound does not settle it.
/// (V needs no bound: its rows are W's, whose squares add up to tr Q, times the inverse of a U with
/// condition below absorb_limit.)
template <class T>
bool WindowedLayer<T>::fits(ConstView<T> H, ConstView<T> SH, T eta) {
  auto& backend = this->backend();
  const double limit = static_cast<double>(std::numeric_limits<T>::max()) / 1024;
  const double growth =
      2 * static_cast<double>(eta) * std::sqrt(backend.dot(H, H)) * (1 + std::sqrt(backend.dot(SH, SH)));
  if (!(stack_bound_ + growth < limit)) {
    const auto S_T = S_T_.view().columns(0, SH.rows);
    stack_bound_ = std::sqrt(backend.dot(S_T, S_T));
  }
  if (!(stack_bound_ + growth < limit)) return false;
  stack_bound_ += growth;
  return true;
}

template <class T>
double WindowedLayer<T>::take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols, height = 2 * d + window_.columns();
  const T c = this->shrinkage(eta);

  // ── the read-only half ────────────────────────────────────────────────────────────────────────
  const auto SH = T_.scratch(height, m);
  backend.gemm(Op::transpose, Op::none, T(1), S_T_.view().columns(0, height), H, T(0), SH);  // [QH; UH; EH]
  const auto H_hat = SH.block(0, 0, d, m);
  const double L = squared_error(H, targets, H_hat);
  const auto Y_hat = Y_hat_.scratch(d, m), C = C_.scratch(d, m);
  if (!std::isfinite(L)) {
    throw NumericalError(fmt::format("step {}: the loss is {}: the run has diverged ({}); the step was not taken",
                                     this->steps() + 1, L, describe_rate(H, eta)));
  }
  const auto M = M_.scratch(m, m);  // M = HᵀC + CᵀH + YᵀY
  backend.gemm(Op::transpose, Op::none, T(2), H, C, T(0), M);
  backend.symmetrize(M);
  backend.add_gram(groups_, M);
  if (!grad_H.empty()) backend.add(T(2), H_hat, T(-2), Y_hat, grad_H);  // ∇H = 2Ẑ, Ẑ = Ĥ − Ŷ
  const auto two_P = H_hat;                                             // P = cẐ − ηHM
  backend.add(2 * c, H_hat, -2 * c, Y_hat, two_P);
  backend.gemm(Op::none, Op::none, -2 * eta, H, M, T(1), two_P);
  if (!fits(H, SH, eta)) {
    throw NumericalError(fmt::format("step {}: the update overflows (loss = {}, {}); the step was not taken",
                                     this->steps() + 1, L, describe_rate(H, eta)));
  }

  // ── the commit half ───────────────────────────────────────────────────────────────────────────
  timeline_.catch_up(rows_, Z_.scratch(d, groups_.count()));
  commit(H, SH, eta);
  if (window_.columns() + m > windowed_.window) close_window();
  return L;
}

/// [Q; U; E] ← [c²Q; cU; cE] − 2η [2P; UH; EH] Hᵀ, Q its symmetric part; then E gains the rows 2ηHᵀ.
template <class T>
void WindowedLayer<T>::commit(ConstView<T> H, ConstView<T> stack_update, T eta) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols, height = stack_update.rows;
  if (height + m > S_T_.cols()) {  // a minibatch larger than any before
    Matrix<T> larger(d, height + m);
    backend.copy(S_T_.view().columns(0, height), larger.view().columns(0, height));
    S_T_ = std::move(larger);
  }
  const T c = this->shrinkage(eta);
  const auto S_T = S_T_.view().columns(0, height);
  backend.scale(c * c, Q());
  backend.scale(c, S_T.columns(d, height - d));
  backend.gemm(Op::none, Op::transpose, -2 * eta, H, stack_update, T(1), S_T);
  backend.symmetrize(Q());
  backend.add(2 * eta, H, T(0), H, S_T_.view().columns(height, m));
  window_.append(groups_, m);
}

// ── closing a window (docs/algorithm.md, section 4) ─────────────────────────────────────────────

template <class T>
void WindowedLayer<T>::close_window() {
  const auto start = std::chrono::steady_clock::now();
  const Size d = this->dim();
  const auto LU = LU_.scratch(d, d);
  this->backend().copy(U_T(), LU);
  const bool regular = this->backend().lu_factorize(LU, pivots_);
  account_.close_flops += 2.0 / 3 * static_cast<double>(d) * static_cast<double>(d) * static_cast<double>(d);
  if (regular && smallest_singular_value() * windowed_.absorb_limit >= 1) {
    absorb();
  } else {
    flip();
  }
  window_.clear();
  stack_bound_ += std::sqrt(static_cast<double>(d));  // a flip or a deflation makes rows of U orthonormal
  account_.close_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// V ← V + Y_w (E U⁻¹), by the LU factors of Uᵀ: (E U⁻¹)ᵀ = U⁻ᵀEᵀ. Rows of the window go through the
/// deflation at once, being at hand.
template <class T>
void WindowedLayer<T>::absorb() {
  auto& backend = this->backend();
  const Size d = this->dim();
  // U⁻ᵀ goes to the sums of E's rows by output, or to E's rows, whichever are fewer.
  const bool by_output = static_cast<Size>(window_.rows().size()) < window_.columns();
  if (!by_output) backend.lu_solve(Op::none, LU_, pivots_, E_T());
  account_.close_flops += square_flops(by_output ? static_cast<Size>(window_.rows().size()) : window_.columns());
  const Size r = deflate();
  const auto a = a_.scratch(d, std::max<Size>(r, 1)), b = b_.scratch(d, std::max<Size>(r, 1));
  if (r > 0) timeline_.make_room(r);
  for_each_group(window_.rows(), [&](std::span<const Index> rows) {
    const auto Z = Z_.scratch(d, static_cast<Size>(rows.size()));
    timeline_.gather(rows, Z);
    if (MatrixView<T> sums; sum_window(E_T(), rows, sums)) {
      if (by_output) backend.lu_solve(Op::none, LU_, pivots_, sums);
      backend.add(T(1), Z, T(1), sums, Z);
    }
    if (r > 0) {  // z ← (I + b aᵀ) z
      const auto projections = R_.scratch(r, Z.cols);
      backend.gemm(Op::transpose, Op::none, T(1), a, Z, T(0), projections);
      backend.gemm(Op::none, Op::none, T(1), b, projections, T(1), Z);
      timeline_.store_ahead(rows, Z);
    } else {
      timeline_.store(rows, Z);
    }
  });
  if (r > 0) timeline_.advance(a, b);
  ++account_.absorbs;
}

/// V_i ← V_i U + (Y_w E)_i for the rows of the window; for all others U becomes a transition.
template <class T>
void WindowedLayer<T>::flip() {
  auto& backend = this->backend();
  const Size d = this->dim();
  for_each_group(window_.rows(), [&](std::span<const Index> rows) {
    const auto Z = Z_.scratch(d, static_cast<Size>(rows.size())), W = VtY_.scratch(d, Z.cols);
    timeline_.gather(rows, Z);
    backend.gemm(Op::none, Op::none, T(1), U_T(), Z, T(0), W);
    account_.close_flops += square_flops(Z.cols);
    if (MatrixView<T> sums; sum_window(E_T(), rows, sums)) backend.add(T(1), W, T(1), sums, W);
    timeline_.store_ahead(rows, W);
  });
  timeline_.advance_dense(U_T());
  set_identity(U_T());
  ++account_.flips;
}

/// The smallest singular value of U, from above: the probes X follow the directions in which U is
/// smallest by a step of inverse iteration, with the LU at hand, from where the last window left them.
template <class T>
double WindowedLayer<T>::smallest_singular_value() {
  auto& backend = this->backend();
  const Size d = this->dim(), p = probes_.cols();
  backend.lu_solve(Op::transpose, LU_, pivots_, probes_);  // X ← orth((U Uᵀ)⁻¹ X)
  backend.lu_solve(Op::none, LU_, pivots_, probes_);
  account_.close_flops += square_flops(3 * p);  // with the images
  if (backend.find_non_finite(probes_) >= 0) {  // U is as good as singular
    start_probes();
    return 0;
  }
  backend.qr(probes_, {});
  const auto images = probe_images_.scratch(d, p), ritz = ritz_.scratch(p, p);
  backend.gemm(Op::none, Op::none, T(1), U_T(), probes_, T(0), images);
  backend.gemm(Op::transpose, Op::none, T(1), images, images, T(0),
               ritz);  // its eigenvalues: the squares of Ritz values
  backend.svd(ritz, squared_sigma_, ritz_vectors_);
  return std::sqrt(static_cast<double>(squared_sigma_.back()));
}

/// Takes the r directions in which U has shrunk most out of it, W = V U = (V R) U′ unchanged: with U_s
/// (d x r) an orthonormal basis of them among the left singular vectors, and QR U_sᵀU = B Q̃,
///   U′ = U + U_s (Q̃ − U_sᵀU),   R = I + U_s (B − I) U_sᵀ.
/// Any orthonormal U_s keeps W; that it is nearly the right subspace only matters to the condition of
/// U′, so the probes are good enough.
/// Leaves a = U_s and b = U_s (B − I)ᵀ, the transition z ← (I + b aᵀ) z of the columns of Vᵀ.
template <class T>
Size WindowedLayer<T>::deflate() {
  auto& backend = this->backend();
  const Size d = this->dim(), p = probes_.cols();
  const double limit = windowed_.deflate_below * windowed_.deflate_below;
  const auto r = static_cast<Size>(
      std::count_if(squared_sigma_.begin(), squared_sigma_.end(), [&](T s) { return static_cast<double>(s) < limit; }));
  if (r == 0) return 0;

  const auto a = a_.scratch(d, r), b = b_.scratch(d, r), UtUs = probe_images_.scratch(d, r), R = R_.scratch(r, r);
  backend.gemm(Op::none, Op::none, T(1), probes_, ritz_vectors_.view().columns(p - r, r), T(0), a);  // U_s
  backend.qr(a, {});                                                   // orthonormal to rounding
  backend.gemm(Op::none, Op::none, T(1), U_T(), a, T(0), UtUs);        // UᵀU_s = Q̃ᵀBᵀ
  backend.gemm(Op::none, Op::transpose, T(-1), UtUs, a, T(1), U_T());  // U′ᵀ = Uᵀ − UᵀU_s U_sᵀ …
  backend.qr(UtUs, R);                                                 // Q̃ᵀ, and Bᵀ in R
  backend.gemm(Op::none, Op::transpose, T(1), UtUs, a, T(1), U_T());   // … + Q̃ᵀU_sᵀ
  for (Size k = 0; k < r; ++k) R(k, k) -= T(1);
  backend.gemm(Op::none, Op::none, T(1), a, R, T(0), b);
  account_.deflated += r;
  return r;
}

// ── questions ───────────────────────────────────────────────────────────────────────────────────

template <class T>
void WindowedLayer<T>::begin_scores(ConstView<T> H) {
  const Size d = this->dim(), height = d + window_.columns();
  stack_H_scored_ = stack_H_.scratch(height, H.cols);
  this->backend().gemm(Op::transpose, Op::none, T(1), S_T_.view().columns(d, height), H, T(0),
                       stack_H_scored_);  // [UH; EH]
}

template <class T>
void WindowedLayer<T>::write_scores(std::span<const Index> rows, MatrixView<T> out) {
  const Size d = this->dim(), m = stack_H_scored_.cols;
  const auto UH = stack_H_scored_.block(0, 0, d, m), EH = stack_H_scored_.block(d, 0, window_.columns(), m);
  const auto Z = Z_.scratch(d, static_cast<Size>(rows.size()));
  timeline_.gather(rows, Z);
  this->backend().gemm(Op::transpose, Op::none, T(1), Z, UH, T(0), out);
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const auto slot = window_.find(rows[k]);
    if (slot == Window<T>::none) continue;
    for (auto e = window_.first_entry(static_cast<std::size_t>(slot)); e != Window<T>::none;
         e = window_.entry(e).next) {
      for (Size j = 0; j < m; ++j) {
        out(static_cast<Size>(k), j) += window_.entry(e).value * EH(window_.entry(e).column, j);
      }
    }
  }
}

template <class T>
void WindowedLayer<T>::write_weights(Size first, MatrixView<T> out) {
  auto& backend = this->backend();
  const Size d = this->dim();
  std::vector<Index> all(static_cast<std::size_t>(out.cols));
  std::iota(all.begin(), all.end(), static_cast<Index>(first));
  Size done = 0;
  for_each_group(all, [&](std::span<const Index> rows) {
    const auto W = out.columns(done, static_cast<Size>(rows.size()));
    const auto Z = Z_.scratch(d, W.cols);
    timeline_.gather(rows, Z);
    backend.gemm(Op::none, Op::none, T(1), U_T(), Z, T(0), W);                                   // V U …
    if (MatrixView<T> sums; sum_window(E_T(), rows, sums)) backend.add(T(1), W, T(1), sums, W);  // … + Y_w E
    done += W.cols;
  });
}

template <class T>
Diagnostics WindowedLayer<T>::counters() const {
  const auto& timeline = timeline_.account();
  const auto number = [](auto value) { return static_cast<double>(value); };
  return {{"steps", number(this->steps())},
          {"absorbs", number(account_.absorbs)},
          {"flips", number(account_.flips)},
          {"deflated", number(account_.deflated)},
          {"close_seconds", account_.close_seconds},
          {"window_fill", number(window_.columns())},
          {"panel_rank", number(timeline_.panel_rank())},
          {"blocks_alive", number(timeline_.alive_blocks())},
          {"blocks_made", number(timeline.blocks)},
          {"merges", number(timeline.merges)},
          {"rows_caught_up", number(timeline.rows_caught_up)},
          {"rows_moved", number(timeline.rows_moved)},
          {"upkeep_flops", account_.close_flops + timeline.products},
          {"timeline_bytes", number(timeline_.bytes())},
          {"rows_read", number(store_.rows_read())},
          {"rows_written", number(store_.rows_written())}};
}

template <class T>
Diagnostics WindowedLayer<T>::diagnostics() {
  auto figures = counters();
  std::vector<T> sigma(static_cast<std::size_t>(this->dim()));
  auto copy = Matrix<T>::copy_of(U_T());
  this->backend().svd(copy, sigma, {});
  figures.push_back({"sigma_min", static_cast<double>(sigma.back())});
  figures.push_back({"sigma_max", static_cast<double>(sigma.front())});
  figures.push_back({"Q_drift", this->drift_of(Q())});
  return figures;
}

/// What every step multiplies, with E at its mean height over a window. Closing and catching up are upkeep.
template <class T>
std::vector<GemmShape> WindowedLayer<T>::step_products(Size m) const {
  const Size d = this->dim(), steps = std::max<Size>(1, windowed_.window / m), height = 2 * d + (steps - 1) * m / 2;
  return {
      {Op::transpose, Op::none, height, m, d},  // [QH; UH; EH]
      {Op::none, Op::none, d, m, d},            // Ŷ
      {Op::transpose, Op::none, m, m, d},       // M
      {Op::none, Op::none, d, m, m},            // HM
      {Op::none, Op::transpose, d, height, m},  // the commit
  };
}

template class WindowedLayer<float>;
template class WindowedLayer<double>;

}  // namespace widehead
