/// How a windowed layer closes a window (docs/algorithm.md, section 4), from the commit of its last minibatch on.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <span>

#include "widehead/windowed_layer.h"

namespace widehead {
namespace {

/// Rows treated at once when a window closes: bounds the scratch for any K.
constexpr std::size_t rows_at_once = 1024;

/// How far from absorb_limit the next window is to close: contractions differ from window to window.
constexpr double reach_margin = 4;

/// Adds the seconds for which it lives.
class TimeSpent {
 public:
  explicit TimeSpent(double& seconds) : seconds_(seconds) {}
  TimeSpent(const TimeSpent&) = delete;
  TimeSpent& operator=(const TimeSpent&) = delete;
  ~TimeSpent() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

template <class Work>
void for_each_group(std::span<const Index> rows, const Work& work) {
  for (std::size_t first = 0; first < rows.size(); first += rows_at_once) {
    work(rows.subspan(first, std::min(rows_at_once, rows.size() - first)));
  }
}

}  // namespace

/// Whether a window has no room for another m examples. Outputs that come again and again do not fill it, but U shrinks
/// with every example.
template <class T>
bool WindowedLayer<T>::is_over(Size m) const {
  const Size examples = window_.examples() + m;
  return window_.columns() + m > windowed_.window || 2 * examples > 3 * windowed_.window || examples > reach_;
}

/// The commit of a window's last minibatch. To examine U takes one thread as long as the commit of some d/4 examples
/// takes two, so the others are given all there is to do meanwhile: pages for the window's rows and, in a large
/// minibatch, Q and E.
template <class T>
void WindowedLayer<T>::commit_and_examine(ConstView<T> H, ConstView<T> UEH_T, T eta, MatrixView<T> S_T) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols, height = d + UEH_T.cols;
  const auto examine_U = [&] { examine(m); };
  const auto touch_rows = [&] { store_.touch(window_.rows()); };
  if (4 * m < d) {
    backend.commit_stack_by_rows(eta, H, H_T_.scratch(m, d), H_hat(m), UEH_T, low_, S_T);
    backend.side_by_side(std::ref(examine_U), std::ref(touch_rows));
    return;
  }
  const auto low_Q = low_.view().columns(0, d), low_U_T = low_.view().columns(d, d);
  const auto P = H_hat(m), H_T = H_T_.scratch(m, d);
  backend.commit_rows(eta, H, UEH_T.columns(0, d), low_U_T, U_T());
  const auto commit_rest = [&](Size first, Size count) {  // rows of [Q; E]
    if (first == 0) touch_rows();
    const Size in_Q = std::clamp<Size>(d - first, 0, count), in_E = count - in_Q;
    if (in_Q > 0) {
      backend.gemm(Op::none, Op::none, -2 * eta, P, H_T.columns(first, in_Q), T(1), low_Q.columns(first, in_Q));
    }
    if (in_E > 0) {
      const auto EH_T = UEH_T.columns(first + in_Q, in_E);
      backend.gemm(Op::none, Op::none, -2 * eta, H, EH_T, T(1), S_T.columns(d + first + in_Q, in_E));
    }
  };
  const double flops = GemmShape{Op::none, Op::transpose, d, height - d, m}.flops();
  backend.share(height - d, rows_in_piece, flops, std::ref(commit_rest), std::ref(examine_U));
  backend.finish_stack(eta, H, Q(), low_Q, Q(), S_T.columns(height, S_T.cols - height));
}

/// Whether U allows that the window is absorbed, and how long the next one may be.
template <class T>
void WindowedLayer<T>::examine(Size m) {
  const TimeSpent timing(account_.close_seconds);
  const double sigma = deflation_.examine(U_T());
  const bool has_basis = timeline_.now() > 0 || deflation_.count() == 0;  // before the first deflation is a flip
  can_absorb_ = has_basis && sigma * windowed_.absorb_limit >= 1 && deflation_.sees_all() &&
                timeline_.has_room(deflation_.count());
  reach_ = reach_after(sigma, m);
}

/// After how many examples the next window closes, whether it is full or not. U's strongest direction contracts by
/// about the same factor in every example, so the σ it ended with says how many are within absorb_limit. A shorter
/// window that is absorbed costs less than a full one that is flipped, unless it is very short, or U is as good as
/// singular.
template <class T>
Size WindowedLayer<T>::reach_after(double sigma, Size m) const {
  const double limit = windowed_.absorb_limit, examples = static_cast<double>(window_.examples());
  const auto least = static_cast<double>(std::max(this->dim() / 2, 4 * m));
  if (sigma * limit * limit < 1 || sigma >= 1 || limit <= reach_margin) return unlimited;
  const double reach = examples * std::log(limit / reach_margin) / -std::log(sigma);
  return reach >= least && reach < static_cast<double>(windowed_.window) ? static_cast<Size>(reach) : unlimited;
}

template <class T>
void WindowedLayer<T>::close_window() {
  const TimeSpent timing(account_.close_seconds);
  if (can_absorb_) {
    absorb();
  } else {
    flip();
  }
  if (high_.size() > 0) {  // a device has flipped: U is I, without a low part
    const Size d = this->dim();
    this->backend().carry(Q(), high_.view().columns(0, d), low_.view().columns(0, d));
  }
  window_.clear();
  stack_bound_ += std::sqrt(static_cast<double>(this->dim()));  // a flip or a deflation makes rows of U orthonormal
}

/// The V of some of the window's rows, expressed now.
template <class T>
MatrixView<T> WindowedLayer<T>::window_rows(std::span<const Index> rows) {
  const auto Z = Z_.scratch(this->dim(), static_cast<Size>(rows.size()));
  timeline_.gather(rows, Z);
  return Z;
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
  if (deflated) backend.carry_over(low_U_T, U_T());
  const bool by_output = static_cast<Size>(window_.rows().size()) < window_.columns();
  if (!by_output) deflation_.multiply_by_inverse(E_T());
  for_each_group(window_.rows(), [&](std::span<const Index> rows) {
    MatrixView<T> sums;
    const bool has_sums = sum_window(rows, sums);
    if (has_sums && by_output) deflation_.multiply_by_inverse(sums);
    if (!deflated && has_sums && timeline_.is_current(rows)) {
      timeline_.add(rows, sums);
      return;
    }
    const auto Z = window_rows(rows);
    deflation_.apply(Z);
    if (has_sums) backend.add(T(1), Z, T(1), sums, Z);
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

/// V_i ← (V_i U + (Γ_w E)_i) P for the rows of the window; for all others U P becomes a transition, and U ← P, with the
/// reflection P = Pᵀ = P⁻¹ that takes the direction in which U shrinks most to the first axis. (A device, which never
/// absorbs, has P = I.)
template <class T>
void WindowedLayer<T>::flip() {
  auto& backend = this->backend();
  const Size d = this->dim();
  const bool by_products = timeline_.options().keeps_products;
  if (by_products && window_.rows().empty()) timeline_.foresee(U_T());
  if (!by_products) reflection_.aim(deflation_.smallest());
  for_each_group(window_.rows(), [&](std::span<const Index> rows) {
    const auto count = static_cast<Size>(rows.size());
    MatrixView<T> W;
    const bool touched = sum_window(rows, W);
    if (!touched) W = sums_.scratch(d, count);
    if (by_products) {
      // The sums come first: a device is at them while it is still at the last step.
      if (rows.data() == window_.rows().data()) timeline_.foresee(U_T());
      timeline_.gather_ahead(rows, touched, W);
    } else {
      backend.gemm(Op::none, Op::none, T(1), U_T(), window_rows(rows), touched ? T(1) : T(0), W);
      account_.flip_flops += GemmShape{Op::none, Op::none, d, count, d}.flops();
      reflection_.apply(W);
    }
    timeline_.store_ahead(rows, W);
  });
  reflection_.apply(U_T());
  timeline_.advance_dense(U_T());
  backend.set_identity(U_T());
  reflection_.apply(U_T());
  if (high_.size() > 0) backend.set_identity(high_.view().columns(d, d));
  backend.clear(low_.view().columns(d, d));
  ++account_.flips;
}

#define WIDEHEAD_INSTANTIATE(T)                                                                     \
  template bool WindowedLayer<T>::is_over(Size) const;                                              \
  template void WindowedLayer<T>::commit_and_examine(ConstView<T>, ConstView<T>, T, MatrixView<T>); \
  template void WindowedLayer<T>::close_window()
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
