#include "widehead/windowed_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "widehead/errors.h"

namespace widehead {
namespace {

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
    : SphericalLayer<T>(options, std::move(backend)),
      windowed_(windowed),
      store_(options.outputs, options.dim, windowed.rows_file),
      timeline_(this->backend(), store_, options.initial == Initial::zero, windowed.timeline),
      common_(options.outputs, options.dim, this->uses_sum()),
      deflation_(this->backend(), options.dim, windowed.deflation, options.seed) {
  if (windowed.window < 0) {
    throw std::invalid_argument(
        fmt::format("windowed layer: window = {}, but it must not be negative", windowed.window));
  }
  if (!(windowed.absorb_limit >= 1)) {
    throw std::invalid_argument(
        fmt::format("windowed layer: absorb_limit = {}, but it must be at least 1", windowed.absorb_limit));
  }
  const Size d = options.dim;
  if (windowed_.window == 0) windowed_.window = d + 3 * d / 10;
  S_T_ = Matrix<T>(d, 2 * d + windowed_.window);
  high_ = Matrix<T>(d, 2 * d);
  low_ = Matrix<T>(d, 2 * d);
  set_identity(U_T());
  if (options.initial != Initial::zero) {
    this->fill_initial(store_.view());
    this->gram_of_rows(store_.view(), Q());
    if (common_.in_use()) {
      Matrix<double> w_bar(d, 1);
      this->sum_rows(store_.view(), w_bar);
      common_.set_sum_of_rows(w_bar);
    }
  }
  this->backend().copy(S_T_.view().columns(0, 2 * d), high_);
}

// ── the step (docs/algorithm.md, section 3) ─────────────────────────────────────────────────────

/// sums ← columns · (Γ_w)_i for each output i of `rows` (d x rows.size(); columns: d x n), which is
/// (Γ_w E)_i when the columns are E's rows. Returns false, with no sums, when the window has none of them.
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

/// [QH; UH; EH] by one product, and what the loss depends on: q = diag(HᵀĤ),
/// o_t = V_i·(UH)_j + (Γ_w)_i·(EH)_j + ωᵀh_j.
template <class T>
void WindowedLayer<T>::observe(ConstView<T> H, const RowGroups<T>& targets, Statistics& statistics) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols, n = window_.columns(), height = 2 * d + n;
  const auto SH = T_.scratch(height, m);
  backend.gemm(Op::transpose, Op::none, T(1), S_T_.view().columns(0, height), H, T(0), SH);
  backend.column_dots(H, SH.block(0, 0, d, m), statistics.q);
  const auto common = common_.observe(H, statistics.s);

  const auto Z = Z_.scratch(d, targets.count());
  timeline_.gather(targets.rows(), Z);
  backend.dots_at(Z, targets, SH.block(d, 0, d, m), statistics.o);
  const auto EH = SH.block(2 * d, 0, n, m);
  Size e = 0;
  for (Size group = 0; group < targets.count(); ++group) {
    for (const auto& target : targets.entries(group)) {
      statistics.o[static_cast<std::size_t>(e++)] +=
          common[static_cast<std::size_t>(target.example)] + window_.dot(targets.row(group), EH.column(target.example));
    }
  }
}

/// ∇H = 2Ĥ diag(a) + w̄bᵀ + Γ̂,  Γ̂ = WᵀΓ = Uᵀ(VᵀΓ) + Eᵀ(Γ_wᵀΓ) + ωγᵀ.
template <class T>
void WindowedLayer<T>::backpropagate(ConstView<T> H, const Derivatives<T>& by, MatrixView<T> grad_H) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols;
  const auto Z = Z_.scratch(d, by.Gamma.count()), VtG = VtG_.scratch(d, m), Gamma_hat = Gamma_hat_.scratch(d, m);
  backend.scale(T(0), VtG);
  backend.add_combination(Z, by.Gamma, VtG);
  backend.gemm(Op::none, Op::none, T(1), U_T(), VtG, T(0), Gamma_hat);
  if (MatrixView<T> sums; sum_window(E_T(), by.Gamma.rows(), sums)) {
    backend.add_combination(sums, by.Gamma, Gamma_hat);
  }
  common_.add_to_Gamma_hat(backend, by, Gamma_hat);
  const auto H_hat = T_.scratch(2 * d + window_.columns(), m).block(0, 0, d, m);
  if (by.a_is_one) {
    backend.add(T(2), H_hat, T(1), Gamma_hat, grad_H);
  } else {
    backend.add_columns(T(2), H_hat, by.a, T(1), Gamma_hat, grad_H);
  }
  common_.add_to_gradient(backend, by, grad_H);
}

/// Whether the commit half stays finite: U and E grow by 2ηa‖S‖‖H‖², Q by 2η‖P‖‖H‖ and the appended
/// rows η‖H‖ at most. The bound follows, from rough norms; careful ones are taken only where it does not
/// settle the matter. (V needs no bound: its rows are W's, whose squares add up to tr Q, times the inverse
/// of a U with condition below absorb_limit.)
template <class T>
bool WindowedLayer<T>::fits(ConstView<T> H, const Derivatives<T>& by, ConstView<T> SH, T eta) {
  auto& backend = this->backend();
  const double limit = static_cast<double>(std::numeric_limits<T>::max()) / 1024;
  const double a = std::max(1.0, static_cast<double>(by.largest_a)), twice_eta = 2 * static_cast<double>(eta);
  const auto P = SH.block(0, 0, this->dim(), SH.cols);
  const auto rough_norm = [&](ConstView<T> A) {  // some 1% above the truth, for what it leaves out
    return 1.01 * std::sqrt(static_cast<double>(backend.rough_squared_norm(A)));
  };
  const double rough_H = rough_norm(H);
  double growth = twice_eta * rough_H * (1 + rough_norm(P) + a * stack_bound_ * rough_H);
  if (!(stack_bound_ + growth < limit)) {
    const auto S_T = S_T_.view().columns(0, SH.rows);
    stack_bound_ = std::sqrt(backend.dot(S_T, S_T));
    growth = twice_eta * std::sqrt(backend.dot(H, H)) * (1 + a * std::sqrt(backend.dot(SH, SH)));
  }
  if (!(stack_bound_ + growth < limit)) return false;
  stack_bound_ += growth;
  return true;
}

template <class T>
void WindowedLayer<T>::update(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) {
  backpropagate(H, by, grad_H);
  update_after_backpropagate(H, by, eta, grad_H);
}

template <class T>
void WindowedLayer<T>::update_after_backpropagate(ConstView<T> H, const Derivatives<T>& by, T eta,
                                                  MatrixView<T> grad_H) {
  const Size d = this->dim(), m = H.cols;
  const double c = 1 - static_cast<double>(eta) * this->options().weight_decay;

  // ── the read-only half ────────────────────────────────────────────────────────────────────────
  const auto SH = T_.scratch(2 * d + window_.columns(), m);
  gram_update_.replace_by_P(this->backend(), H, by, common_, Gamma_hat_.scratch(d, m), grad_H, eta, static_cast<T>(c),
                            SH.block(0, 0, d, m));
  if (!fits(H, by, SH, eta) || !common_.prepare(H, by, static_cast<double>(eta), c)) {
    throw NumericalError(fmt::format("step {}: the update overflows ({}); the step was not taken", this->steps() + 1,
                                     this->describe_rate(H, eta)));
  }

  // ── the commit half ───────────────────────────────────────────────────────────────────────────
  timeline_.catch_up(by.Gamma.rows(), Z_.scratch(d, by.Gamma.count()));
  commit(H, by, SH, eta, c);
  common_.commit();
  if (window_.columns() + m > windowed_.window) close_window();
}

/// [Q; U; E] ← [c²Q; cU; cE] − 2η [P; UH diag(a); EH diag(a)] Hᵀ, Q its symmetric part; then E gains the
/// rows −ηHᵀ and Γ_w the columns Γ. The changes of Q and U go to their low parts.
template <class T>
void WindowedLayer<T>::commit(ConstView<T> H, const Derivatives<T>& by, MatrixView<T> SH, T eta, double c) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols, n = window_.columns(), height = 2 * d + n;
  if (height + m > S_T_.cols()) {  // a minibatch larger than any before
    Matrix<T> larger(d, height + m);
    backend.copy(S_T_.view().columns(0, height), larger.view().columns(0, height));
    S_T_ = std::move(larger);
  }
  if (!by.a_is_one) backend.scale_columns(by.a, SH.block(d, 0, d + n, m));
  if (c != 1) {  // c − 1 may be far below T's ε, and is the same in many steps: no rounding of c may add up
    const auto shrink = [&](Size first, double factor_minus_1) {
      const auto low = low_.view().columns(first, d);
      backend.add(static_cast<T>(factor_minus_1), high_.view().columns(first, d), static_cast<T>(1 + factor_minus_1),
                  low, low);
    };
    shrink(0, (c - 1) * (c + 1));
    shrink(d, c - 1);
    backend.scale(static_cast<T>(c), E_T());
  }
  backend.gemm(Op::none, Op::transpose, -2 * eta, H, SH.block(0, 0, 2 * d, m), T(1), low_);
  if (n > 0) backend.gemm(Op::none, Op::transpose, -2 * eta, H, SH.block(2 * d, 0, n, m), T(1), E_T());
  backend.symmetrize(low_.view().columns(0, d));
  backend.add(T(1), high_, T(1), low_, S_T_.view().columns(0, 2 * d));
  backend.add(-eta, H, T(0), H, S_T_.view().columns(height, m));
  window_.append(by.Gamma, m);
}

// ── closing a window (docs/algorithm.md, section 4) ─────────────────────────────────────────────

template <class T>
void WindowedLayer<T>::close_window() {
  const auto start = std::chrono::steady_clock::now();
  const Size d = this->dim();
  this->backend().carry(S_T_.view().columns(0, 2 * d), high_, low_);
  const double sigma_min = deflation_.examine(U_T());
  if (sigma_min * windowed_.absorb_limit >= 1 && deflation_.sees_all() && timeline_.has_room(deflation_.count())) {
    absorb();
  } else {
    flip();
  }
  window_.clear();
  stack_bound_ += std::sqrt(static_cast<double>(d));  // a flip or a deflation makes rows of U orthonormal
  account_.close_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// V ← V R + Γ_w (E U′⁻¹), with U′ = R⁻¹U what deflation makes of U (U′ = U where there is none). U′⁻¹ goes
/// to the sums of E's rows by output, or to E's rows, whichever are fewer.
template <class T>
void WindowedLayer<T>::absorb() {
  auto& backend = this->backend();
  const Size d = this->dim();
  const auto low_U_T = low_.view().columns(d, d);
  deflation_.deflate(U_T(), low_U_T);
  const bool deflated = deflation_.rank() > 0;
  if (deflated) backend.add(T(1), high_.view().columns(d, d), T(1), low_U_T, U_T());
  const bool by_output = static_cast<Size>(window_.rows().size()) < window_.columns();
  if (!by_output) deflation_.multiply_by_inverse(E_T());
  for_each_group(window_.rows(), [&](std::span<const Index> rows) {
    const auto Z = Z_.scratch(d, static_cast<Size>(rows.size()));
    timeline_.gather(rows, Z);
    deflation_.apply(Z);
    if (MatrixView<T> sums; sum_window(E_T(), rows, sums)) {
      if (by_output) deflation_.multiply_by_inverse(sums);
      backend.add(T(1), Z, T(1), sums, Z);
    }
    if (deflated) {
      timeline_.store_ahead(rows, Z);
    } else {
      timeline_.store(rows, Z);
    }
  });
  if (deflated) timeline_.advance(deflation_.a(), deflation_.b());
  account_.deflated += deflation_.rank();
  ++account_.absorbs;
}

/// V_i ← V_i U + (Γ_w E)_i for the rows of the window; for all others U becomes a transition.
template <class T>
void WindowedLayer<T>::flip() {
  auto& backend = this->backend();
  const Size d = this->dim();
  for_each_group(window_.rows(), [&](std::span<const Index> rows) {
    const auto Z = Z_.scratch(d, static_cast<Size>(rows.size())), W = VtG_.scratch(d, Z.cols);
    timeline_.gather(rows, Z);
    backend.gemm(Op::none, Op::none, T(1), U_T(), Z, T(0), W);
    account_.flip_flops += GemmShape{Op::none, Op::none, d, Z.cols, d}.flops();
    if (MatrixView<T> sums; sum_window(E_T(), rows, sums)) backend.add(T(1), W, T(1), sums, W);
    timeline_.store_ahead(rows, W);
  });
  timeline_.advance_dense(U_T());
  set_identity(U_T());
  backend.copy(U_T(), high_.view().columns(d, d));
  backend.scale(T(0), low_.view().columns(d, d));
  ++account_.flips;
}

/// The timeline comes first: it knows which rows were ever touched. The stack holds as many rows of E as the
/// window has examples.
template <class T>
void WindowedLayer<T>::visit_own_state(StateVisitor& visitor) {
  visitor.part("timeline", timeline_);
  visitor.part("rows", store_, [&](Size from) { return timeline_.next_used_row(from); });
  visitor.part("window", window_, this->outputs(), S_T_.cols() - 2 * this->dim());
  visitor.part("deflation", deflation_);
  common_.visit_state(visitor);
  visitor.block("S", S_T_.view().columns(0, 2 * this->dim() + window_.columns()));
  visitor.block("high", high_.view());
  visitor.block("low", low_.view());
  visitor.scalar("stack_bound", stack_bound_);
  visitor.count("absorbs", account_.absorbs);
  visitor.count("flips", account_.flips);
  visitor.count("deflated", account_.deflated);
  visitor.scalar("flip_flops", account_.flip_flops);
}

// ── questions ───────────────────────────────────────────────────────────────────────────────────

template <class T>
void WindowedLayer<T>::begin_scores(ConstView<T> H) {
  const Size d = this->dim(), height = d + window_.columns();
  common_.begin_scores(H);
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
    if (window_.find(rows[k]) == Window<T>::none) continue;
    for (Size j = 0; j < m; ++j) {
      out(static_cast<Size>(k), j) += static_cast<T>(window_.dot(rows[k], EH.column(j)));
    }
  }
  common_.add_to_scores(out);
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
    if (MatrixView<T> sums; sum_window(E_T(), rows, sums)) backend.add(T(1), W, T(1), sums, W);  // … + Γ_w E
    done += W.cols;
  });
  common_.add_to_weights(backend, out);
}

template <class T>
Matrix<T> WindowedLayer<T>::sum_of_rows() {
  return common_.in_use() ? common_.sum_of_rows() : OutputLayer<T>::sum_of_rows();
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
          {"upkeep_flops", deflation_.flops() + account_.flip_flops + timeline.products},
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
      {Op::none, Op::none, d, m, d},            // Γ̂
      {Op::transpose, Op::none, m, m, d},       // N
      {Op::none, Op::none, d, m, m},            // HN
      {Op::none, Op::transpose, d, height, m},  // the commit
  };
}

template class WindowedLayer<float>;
template class WindowedLayer<double>;

}  // namespace widehead
