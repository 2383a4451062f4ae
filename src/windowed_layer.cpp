#include "widehead/windowed_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "widehead/device_state.h"
#include "widehead/errors.h"

namespace widehead {
namespace {

/// Of a window that nobody has set, in units of d: a device's, and the longest there ever was.
constexpr Size device_window = 3, longest_window = 4;

/// Where U is never factored, windows are always flipped.
template <class T>
TimelineOptions timeline_options(const Backend<T>& backend, const WindowedOptions& windowed) {
  auto options = windowed.timeline;
  if (!backend.factorizes_fast()) options.keeps_products = true;
  return options;
}

}  // namespace

template <class T>
WindowedLayer<T>::WindowedLayer(const LayerOptions& options, const WindowedOptions& windowed,
                                std::shared_ptr<Backend<T>> backend)
    : SphericalLayer<T>(options, std::move(backend)),
      windowed_(windowed),
      store_(this->backend(), options.outputs, options.dim, windowed.rows_file, windowed.rows),
      timeline_(this->backend(), store_, options.initial == Initial::zero, timeline_options(this->backend(), windowed)),
      window_(this->backend()),
      common_(this->backend(), options.outputs, options.dim, this->uses_sum()),
      deflation_(this->backend(), options.dim, windowed.deflation, options.seed),
      reflection_(this->backend(), options.dim),
      gram_update_(this->backend()) {
  if (windowed.window < 0) {
    throw std::invalid_argument(
        fmt::format("windowed layer: window = {}, but it must not be negative", windowed.window));
  }
  if (!(windowed.absorb_limit >= 1)) {
    throw std::invalid_argument(
        fmt::format("windowed layer: absorb_limit = {}, but it must be at least 1", windowed.absorb_limit));
  }
  const Size d = options.dim;
  if (windowed_.window == 0) windowed_.window = is_host() ? d + 3 * d / 10 : device_window * d;
  auto& memory = this->backend().memory();
  S_T_ = Matrix<T>(d, in_tiles(2 * d + windowed_.window), memory);
  if (!is_host()) high_ = Matrix<T>(d, 2 * d, memory);
  low_ = Matrix<T>(d, 2 * d, memory);
  for (auto* scratch : {&T_, &Z_, &Z_next_, &VtG_, &Gamma_hat_, &sums_, &UH_}) *scratch = Matrix<T>(memory);
  this->backend().set_identity(U_T());
  if (options.initial != Initial::zero) {
    this->fill_initial(store_.view_to_fill());
    this->gram_of_rows(store_.view(), Q());
    if (common_.in_use()) {
      common_.set_sum_of_rows(this->sum_rows(store_.view()));
    }
  }
  if (high_.size() > 0) this->backend().copy(S_T_.view().columns(0, 2 * d), high_);
}

// ── the step (docs/algorithm.md, section 3) ─────────────────────────────────────────────────────

/// A host multiplies as many rows of the stack as fill tiles of the GEMM library, whatever stands behind the last one.
template <class T>
Size WindowedLayer<T>::in_tiles(Size rows) const {
  return is_host() ? (rows + rows_in_tile - 1) / rows_in_tile * rows_in_tile : rows;
}

/// [QH; UH; EH] of the minibatch at hand, (2d + n) x m; then what the commit half multiplies with Hᵀ. (A host has it in
/// two parts, below.)
template <class T>
MatrixView<T> WindowedLayer<T>::stack_product(Size m) {
  return T_.scratch(2 * this->dim() + window_.columns(), m);
}

/// Its first d rows, QH, which become P.
template <class T>
MatrixView<T> WindowedLayer<T>::H_hat(Size m) {
  return is_host() ? H_hat_.scratch(this->dim(), m) : stack_product(m).block(0, 0, this->dim(), m);
}

/// On a host the others, [UH; EH], as Hᵀ[U; E]ᵀ, m x (d + n): so Hᵀ and rows of the stack, and then H and (UH)ᵀ, are
/// multiplied as they lie in memory, where libraries are fastest.
template <class T>
MatrixView<T> WindowedLayer<T>::UEH_T(Size m) {
  const Size d = this->dim(), height = 2 * d + window_.columns();
  return T_.scratch(m, in_tiles(height) - d).columns(0, height - d);
}

/// Some rows of the stack times H: those of Q, which is symmetric, to H_hat, others to UEH_T, or what is behind it.
template <class T>
void WindowedLayer<T>::multiply_rows(Size first, Size count, ConstView<T> H) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols;
  if (!is_host()) {
    backend.gemm(Op::transpose, Op::none, T(1), S_T_.view().columns(first, count), H, T(0),
                 stack_product(m).block(first, 0, count, m));
    return;
  }
  if (const Size in_Q = std::clamp<Size>(d - first, 0, count); in_Q > 0) {
    backend.gemm(Op::none, Op::none, T(1), Q().block(first, 0, in_Q, d), H, T(0), H_hat(m).block(first, 0, in_Q, m));
    first += in_Q;
    count -= in_Q;
  }
  if (count == 0) return;
  backend.gemm(Op::none, Op::none, T(1), H_T_.scratch(m, d), S_T_.view().columns(first, count), T(0),
               MatrixView<T>(UEH_T(m).column(first - d), m, count));
}

/// sums ← (Γ_w E)_i for each output i of `rows` (d x rows.size()), which may be rows of E themselves. Returns false,
/// with no sums, when the window has none of them.
template <class T>
bool WindowedLayer<T>::sum_window(std::span<const Index> rows, MatrixView<T>& sums) {
  sum_offsets_.assign(1, 0);
  sum_columns_.clear();
  sum_entries_.clear();
  // Rows of the window itself are its slots, in their order.
  const auto all = window_.rows();
  const bool in_window =
      !rows.empty() && !std::less<>{}(rows.data(), all.data()) && std::less<>{}(rows.data(), all.data() + all.size());
  auto next_slot = in_window ? static_cast<std::int32_t>(rows.data() - all.data()) : Window<T>::none;
  if (in_window && window_.is_plain()) {
    sums = E_T().columns(next_slot, static_cast<Size>(rows.size()));
    return true;
  }
  for (const Index row : rows) {
    if (const auto slot = in_window ? next_slot++ : window_.find(row); slot != Window<T>::none) {
      for (auto e = window_.first_entry(static_cast<std::size_t>(slot)); e != Window<T>::none;
           e = window_.entry(e).next) {
        sum_columns_.push_back(window_.entry(e).column);
        sum_entries_.push_back(e);
      }
    }
    sum_offsets_.push_back(static_cast<std::int64_t>(sum_columns_.size()));
  }
  if (sum_columns_.empty()) return false;
  sums = sums_.scratch(this->dim(), static_cast<Size>(rows.size()));
  this->backend().gather(E_T(), Selection{sum_offsets_, sum_columns_, sum_entries_}, window_.values(), sums);
  return true;
}

/// W ← V U + sums, with fewer rows of V than of W: the others were never touched, and are zero.
template <class T>
void WindowedLayer<T>::add_known_rows(ConstView<T> V) {
  auto& backend = this->backend();
  if (!touches_window_) backend.clear(W_);
  const auto VU = VtG_.scratch(this->dim(), V.cols);
  backend.gemm(Op::none, Op::none, T(1), U_T(), V, T(0), VU);
  backend.add_to_columns(T(1), VU, known_columns_, W_);
}

template <class T>
void WindowedLayer<T>::reserve_for_update(Size m) {
  Gamma_hat_.scratch(this->dim(), m);
  gram_update_.reserve(this->dim(), m);
}

/// [QH; UH; EH] by one product, or two on a host, and what the loss depends on: q = diag(HᵀĤ) and o_t = W_i·h_j +
/// ωᵀh_j. Of W_i = V_i U + (Γ_w E)_i, U is multiplied with whichever are fewer: rows, to W_i itself, or examples,
/// V_i·(UH)_j + (Γ_w E)_i·h_j. A device that works on several things at once makes V_i U and (Γ_w E)_i each by itself,
/// and has V_i of this minibatch in other memory than of the one before, which it may still be at work on.
template <class T>
void WindowedLayer<T>::observe(ConstView<T> H, const RowGroups<T>& targets, const Statistics& statistics) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols, height = 2 * d + window_.columns(), rows = in_tiles(height);
  const auto H_hat = this->H_hat(m);
  if (is_host()) {
    backend.transpose(H, H_T_.scratch(m, d));
    UEH_T(m);  // room, before several threads ask for it
  }
  MatrixView<T> Z;
  knows_W_ = targets.count() <= m;
  const bool aside = knows_W_ && backend.overlaps({Op::none, Op::none, d, targets.count(), d});
  if (knows_W_) W_ = (aside ? VtG_ : sums_).scratch(d, targets.count());
  if (aside) std::swap(Z_, Z_next_);
  // A host leaves out rows of V that are zero, and makes o where W is; a device has better use for its time.
  const bool on_host = knows_W_ && !aside && is_host();
  const auto multiply = [&](Size first, Size count) { multiply_rows(first, count, H); };
  const auto fetch = [&] {
    if (on_host) {
      timeline_.find_nonzero(targets.rows(), known_rows_, known_columns_);
    } else {
      known_rows_.assign(targets.rows().begin(), targets.rows().end());
    }
    Z = Z_.scratch(d, static_cast<Size>(known_rows_.size()));
    timeline_.gather(known_rows_, Z);
    MatrixView<T> sums;
    touches_window_ = sum_window(targets.rows(), sums);
    if (Z.cols < targets.count()) {
      add_known_rows(Z);
    } else if (knows_W_) {
      backend.gemm(Op::none, Op::none, T(1), U_T(), Z, touches_window_ && !aside ? T(1) : T(0), W_);
    }
    apart_ = aside || !knows_W_ ? sums : MatrixView<T>();
    if (on_host) backend.dots_at(W_, targets, H, 0, statistics.o);
  };
  const double flops = GemmShape{Op::transpose, Op::none, height, m, d}.flops();
  backend.share(rows, rows_in_piece, flops, std::ref(multiply), std::ref(fetch));
  account_.target_columns += std::min(static_cast<Size>(known_rows_.size()), m);
  account_.stack_rows += height;
  ++account_.observed;
  if (on_host) {
    backend.column_dots(H, H_hat, statistics.q);
  } else if (knows_W_) {
    backend.observe_targets(H, H_hat, H, W_, apart_, targets, statistics.q, statistics.o);
  } else {
    const auto UH = is_host() ? VtG_.scratch(d, m) : stack_product(m).block(d, 0, d, m);
    if (is_host()) backend.transpose(UEH_T(m).columns(0, d), UH);
    backend.observe_targets(H, H_hat, UH, Z, apart_, targets, statistics.q, statistics.o);
  }
  common_.observe(H, targets, statistics);
}

/// Γ̂ = WᵀΓ + ωγᵀ, where the rows of W are not known Uᵀ(VᵀΓ) + Eᵀ(Γ_wᵀΓ) + ωγᵀ.
template <class T>
MatrixView<T> WindowedLayer<T>::compute_Gamma_hat(Size m, const Derivatives<T>& by) {
  auto& backend = this->backend();
  const Size d = this->dim();
  const auto Gamma_hat = Gamma_hat_.scratch(d, m);
  if (knows_W_) {
    backend.combine_targets(W_, apart_, by.Gamma, by.g, Gamma_hat, {});
  } else {
    const auto VtG = VtG_.scratch(d, m);
    backend.combine_targets(Z_.scratch(d, by.Gamma.count()), apart_, by.Gamma, by.g, VtG, Gamma_hat);
    backend.gemm(Op::none, Op::none, T(1), U_T(), VtG, touches_window_ ? T(1) : T(0), Gamma_hat);
  }
  common_.add_to_Gamma_hat(by, Gamma_hat);
  return Gamma_hat;
}

/// ∇H = 2Ĥ diag(a) + w̄bᵀ + Γ̂.
template <class T>
void WindowedLayer<T>::backpropagate(ConstView<T> H, const Derivatives<T>& by, MatrixView<T> grad_H) {
  const Size m = H.cols;
  const auto Gamma_hat = compute_Gamma_hat(m, by);
  common_.write_gradient(by, H_hat(m), Gamma_hat, grad_H);
}

/// Whether a minibatch gives each output of it a row of E of its own, to which later ones of the window add, instead
/// of a row for each example: −η(ΓHᵀ)_i, with 1 in Γ_w. There are never more of those where outputs are no more than
/// examples, and all products with E are smaller. (A device has better use for its time than to look for equal
/// targets.)
template <class T>
bool WindowedLayer<T>::appends_by_output(const RowGroups<T>& targets, Size m) const {
  return is_host() && targets.count() <= m;
}

/// At least ‖P‖, with nothing of the size of P read: P = cWᵀR − (η/2)HRᵀR with R = 2WH diag(a) + Γ, ‖W‖² = tr Q ≤
/// √d‖Q‖ and ‖WH‖² = Σq, which is as exact as the product it comes from.
template <class T>
double WindowedLayer<T>::bound_P(double a, double eta, double norm_H, double norm_Gamma) const {
  const auto d = static_cast<double>(this->dim());
  const auto q = this->statistics().q;
  double sum = static_cast<double>(std::numeric_limits<T>::epsilon()) * d * stack_bound_ * norm_H * norm_H;
  for (Size j = 0; j < q.rows; ++j) sum += std::abs(q(j, 0));
  const double norm_R = 2 * a * std::sqrt(sum) + norm_Gamma;
  const double c = 1 + eta * this->options().weight_decay;
  return c * std::sqrt(std::sqrt(d) * stack_bound_) * norm_R + eta / 2 * norm_H * norm_R * norm_R;
}

/// Whether the commit half stays finite: U and E grow by 2ηa‖S‖‖H‖², Q by 2η‖P‖‖H‖ and E's new
/// rows by η‖H‖ or η‖Γ‖‖H‖ at most. The bound follows, from rough norms; careful ones are taken only where it does not
/// settle the matter. (V needs no bound: its rows are W's, whose squares add up to tr Q, times the inverse
/// of a U with condition below absorb_limit.)
template <class T>
bool WindowedLayer<T>::fits(ConstView<T> H, const Derivatives<T>& by, T eta) {
  auto& backend = this->backend();
  const double limit = static_cast<double>(std::numeric_limits<T>::max()) / 1024;
  const double a = std::max(1.0, by.largest_a), twice_eta = 2 * static_cast<double>(eta);
  const auto root = [](T squared) {
    return 1.01 * std::sqrt(static_cast<double>(squared));
  };  // 1% for what it leaves out
  const auto rough_norm = [&](ConstView<T> A) { return root(backend.rough_squared_norm(A)); };
  const bool by_output = appends_by_output(by.Gamma, H.cols);
  const double rough_H = root(this->rough_squared_norm_of_batch(H)), rough_Gamma = rough_norm(by.g);
  const bool is_bounded = backend.memory().is_host() && !common_.in_use();
  const double norm_P =
      is_bounded ? bound_P(a, static_cast<double>(eta), rough_H, rough_Gamma) : rough_norm(H_hat(H.cols));
  double growth = twice_eta * rough_H * (1 + rough_Gamma + norm_P + a * stack_bound_ * rough_H);
  if (!(stack_bound_ + growth < limit)) {
    const auto square = [&](ConstView<T> A) { return backend.dot(A, A); };
    stack_bound_ = std::sqrt(square(S_T_.view().columns(0, 2 * this->dim() + window_.columns())));
    const double norm_Gamma = by_output ? std::sqrt(square(by.g)) : 0;
    const double norm_SH =
        std::sqrt(is_host() ? square(H_hat(H.cols)) + square(UEH_T(H.cols)) : square(stack_product(H.cols)));
    growth = twice_eta * std::sqrt(square(H)) * (1 + norm_Gamma + a * norm_SH);
  }
  if (!(stack_bound_ + growth < limit)) return false;
  stack_bound_ += growth;
  return true;
}

/// The rest of the read-only half, but for Γ̂ where that is at hand: ∇H, and QH becomes P, which the commit half
/// multiplies with Hᵀ as it does UH and EH. Returns c.
template <class T>
double WindowedLayer<T>::prepare(ConstView<T> H, const Derivatives<T>& by, T eta, bool has_Gamma_hat,
                                 MatrixView<T> grad_H) {
  const Size d = this->dim(), m = H.cols;
  const double c = 1 - static_cast<double>(eta) * this->options().weight_decay;
  store_.reserve(by.Gamma.rows());  // all that this or a later step writes to V: rows that were targets once
  const bool at_targets = !has_Gamma_hat && knows_W_ && !common_.in_use();
  if (!has_Gamma_hat && !at_targets) compute_Gamma_hat(m, by);
  const auto H_T = is_host() ? H_T_.scratch(m, d) : MatrixView<T>();
  gram_update_.replace_by_P(this->backend(), H, H_T, by, common_, Gamma_hat_.scratch(d, m),
                            at_targets ? W_ : ConstView<T>(), apart_, eta, static_cast<T>(c), H_hat(m), grad_H);
  common_.prepare(H, c);
  return c;
}

template <class T>
void WindowedLayer<T>::commit_all(ConstView<T> H, const Derivatives<T>& by, T eta, double c) {
  timeline_.catch_up(known_rows_, Z_.scratch(this->dim(), static_cast<Size>(known_rows_.size())));
  const bool is_last = commit(H, by, eta, c);
  common_.commit();
  if (is_last) close_window();
}

template <class T>
void WindowedLayer<T>::update(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) {
  finish_step(H, by, eta, false, grad_H);
}

template <class T>
void WindowedLayer<T>::update_after_backpropagate(ConstView<T> H, const Derivatives<T>& by, T eta,
                                                  MatrixView<T> grad_H) {
  finish_step(H, by, eta, true, grad_H);
}

template <class T>
void WindowedLayer<T>::finish_step(ConstView<T> H, const Derivatives<T>& by, T eta, bool has_Gamma_hat,
                                   MatrixView<T> grad_H) {
  const double c = prepare(H, by, eta, has_Gamma_hat, grad_H);
  if (!fits(H, by, eta) || !common_.fits()) {
    throw NumericalError(fmt::format("step {}: the update overflows ({}); the step was not taken", this->steps() + 1,
                                     this->describe_rate(H, eta)));
  }
  commit_all(H, by, eta, c);
}

template <class T>
void WindowedLayer<T>::update_later(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) {
  const double c = prepare(H, by, eta, false, grad_H);
  commit_all(H, by, eta, c);
}

/// [Q; U; E] ← [c²Q; cU; cE] − 2η [P; UH diag(a); EH diag(a)] Hᵀ, Q its symmetric part; then E gains the
/// rows −ηHᵀ and Γ_w the columns Γ, or outputs' own rows of E gain −ηΓHᵀ. The changes of Q and U go to their low parts.
/// Returns whether the window is to be closed.
template <class T>
bool WindowedLayer<T>::commit(ConstView<T> H, const Derivatives<T>& by, T eta, double c) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols, n = window_.columns(), height = 2 * d + n;
  if (height + m > S_T_.cols()) {  // a minibatch larger than any before
    Matrix<T> larger(d, in_tiles(height + m), backend.memory());
    backend.copy(S_T_.view().columns(0, height), larger.view().columns(0, height));
    S_T_ = std::move(larger);
  }
  const auto SH = is_host() ? MatrixView<T>() : stack_product(m), UEH_T = is_host() ? this->UEH_T(m) : MatrixView<T>();
  if (!by.a_is_one && is_host()) backend.scale_rows(by.a, UEH_T);
  if (!by.a_is_one && !is_host()) backend.scale_columns(by.a, SH.block(d, 0, d + n, m));
  if (c != 1) {  // c − 1 may be far below T's ε, and is the same in many steps: no rounding of c may add up
    const auto shrink = [&](Size first, double factor_minus_1) {
      const auto low = low_.view().columns(first, d);
      backend.add(static_cast<T>(factor_minus_1), high().columns(first, d), static_cast<T>(1 + factor_minus_1), low,
                  low);
    };
    shrink(0, (c - 1) * (c + 1));
    shrink(d, c - 1);
    backend.scale(static_cast<T>(c), E_T());
  }
  const bool by_output = appends_by_output(by.Gamma, m);
  const auto S_T = S_T_.view().columns(0, height + (by_output ? 0 : m));
  if (!is_host()) {  // rows of E by example, and windows that nobody examines
    backend.commit_stack(eta, H, SH, high(), low_, S_T);
    window_.append(by.Gamma, by.g, m);
    return is_over(m);
  }
  std::span<const Index> columns;
  if (by_output) {
    columns = window_.append_by_output(by.Gamma, m);
  } else {
    window_.append(by.Gamma, by.g, m);
  }
  const bool is_last = is_over(m);
  if (is_last) {
    commit_and_examine(H, UEH_T, eta, S_T);
  } else {
    backend.commit_stack_by_rows(eta, H, H_T_.scratch(m, d), H_hat(m), UEH_T, low_, S_T);
  }
  if (!by_output) return is_last;
  backend.add_combined(-eta, by.Gamma, by.g, H, columns, n, VtG_.scratch(d, by.Gamma.count()), E_T());
  return is_last;
}

/// As a device has them; a host that loads them carries over what that one has not.
template <class T>
void WindowedLayer<T>::visit_two_parts(StateVisitor& visitor) {
  const auto sum = S_T_.view().columns(0, 2 * this->dim());
  Matrix<T> loaded;
  if (high_.size() == 0 && visitor.loading()) loaded = Matrix<T>(sum.rows, sum.cols, this->backend().memory());
  visit_block(visitor, this->backend(), "high", loaded.size() == 0 ? high() : loaded.view());
  visit_block(visitor, this->backend(), "low", low_.view());
  if (loaded.size() > 0) this->backend().carry(sum, loaded, low_);
}

/// The timeline comes first: it knows which rows were ever touched. The stack holds as many rows of E as the
/// window has columns.
template <class T>
void WindowedLayer<T>::visit_own_state(StateVisitor& visitor) {
  const Size d = this->dim();
  visitor.part("timeline", timeline_);
  visitor.part("rows", store_, [&](Size from) { return timeline_.next_used_row(from); });
  if (visitor.loading()) timeline_.adopt_loaded();
  // What a device has begun may be longer than a window of the host's.
  visitor.part("window", window_, this->outputs(), std::max(S_T_.cols() - 2 * d, longest_window * d));
  if (const Size height = 2 * d + window_.columns(); height > S_T_.cols()) {
    S_T_ = Matrix<T>(d, in_tiles(height), this->backend().memory());
  }
  visitor.part("deflation", deflation_);
  common_.visit_state(visitor);
  visit_block(visitor, this->backend(), "S", S_T_.view().columns(0, 2 * d + window_.columns()));
  visit_two_parts(visitor);
  visitor.scalar("stack_bound", stack_bound_);
  visitor.scalar("reach", reach_);
  if (reach_ < 1) visitor.refuse("reach", fmt::format("is {}, but a window has at least one example", reach_));
  if (!is_host()) reach_ = unlimited;  // what U's condition asked for
  visitor.count("absorbs", account_.absorbs);
  visitor.count("flips", account_.flips);
  visitor.count("deflated", account_.deflated);
  visitor.scalar("flip_flops", account_.flip_flops);
}

template class WindowedLayer<float>;
template class WindowedLayer<double>;

}  // namespace widehead
