/// What a windowed layer says of itself: scores, W, and figures.

#include <algorithm>
#include <numeric>

#include "widehead/windowed_layer.h"

namespace widehead {

template <class T>
void WindowedLayer<T>::begin_scores(ConstView<T> H) {
  common_.begin_scores(H);
  H_scored_ = H;
  UH_scored_ = UH_.scratch(this->dim(), H.cols);
  this->backend().gemm(Op::transpose, Op::none, T(1), U_T(), H, T(0), UH_scored_);
}

template <class T>
void WindowedLayer<T>::write_scores(std::span<const Index> rows, MatrixView<T> out) {
  auto& backend = this->backend();
  const auto Z = Z_.scratch(this->dim(), static_cast<Size>(rows.size()));
  timeline_.gather(rows, Z);
  backend.gemm(Op::transpose, Op::none, T(1), Z, UH_scored_, T(0), out);  // V_i·(UH)_j …
  if (MatrixView<T> sums; sum_window(rows, sums)) {
    backend.gemm(Op::transpose, Op::none, T(1), sums, H_scored_, T(1), out);  // … + (Γ_w E)_i·h_j
  }
  common_.add_to_scores(out);
}

template <class T>
void WindowedLayer<T>::write_weights(Size first, MatrixView<T> out) {
  auto& backend = this->backend();
  const Size d = this->dim();
  constexpr Size at_once = 1024;
  std::vector<Index> rows;
  for (Size done = 0; done < out.cols; done += at_once) {
    rows.resize(static_cast<std::size_t>(std::min(at_once, out.cols - done)));
    std::iota(rows.begin(), rows.end(), static_cast<Index>(first + done));
    const auto W = out.columns(done, static_cast<Size>(rows.size()));
    const auto Z = Z_.scratch(d, W.cols);
    timeline_.gather(rows, Z);
    backend.gemm(Op::none, Op::none, T(1), U_T(), Z, T(0), W);                            // V U …
    if (MatrixView<T> sums; sum_window(rows, sums)) backend.add(T(1), W, T(1), sums, W);  // … + Γ_w E
  }
  common_.add_to_weights(out);
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
  Matrix<T> copy(this->dim(), this->dim(), this->backend().memory());
  this->backend().copy(U_T(), copy);
  this->backend().svd(copy, sigma, {});
  figures.push_back({"sigma_min", static_cast<double>(sigma.back())});
  figures.push_back({"sigma_max", static_cast<double>(sigma.front())});
  figures.push_back({"Q_drift", this->drift_of(Q())});
  return figures;
}

/// What every step multiplies, with E at its mean height over a window and as many columns of targets as steps had in
/// the mean. Closing and catching up are upkeep.
template <class T>
std::vector<GemmShape> WindowedLayer<T>::step_products(Size m) const {
  const Size d = this->dim(), steps = std::max<Size>(1, windowed_.window / m);
  const Size height = account_.observed > 0 ? account_.stack_rows / account_.observed : 2 * d + (steps - 1) * m / 2;
  const Size targets = account_.observed > 0 ? std::max<Size>(1, account_.target_columns / account_.observed) : m;
  const GemmShape at_targets{Op::none, Op::none, d, targets, d};  // W of the targets, or Γ̂
  const GemmShape H_N{Op::none, Op::none, d, m, m};
  if (!is_host()) {
    return {
        {Op::transpose, Op::none, height, m, d},  // [QH; UH; EH]
        at_targets,
        {Op::transpose, Op::none, m, m, d},  // N
        H_N,
        {Op::none, Op::transpose, d, height, m},  // the commit
    };
  }
  return {
      {Op::none, Op::none, d, m, d},           // QH
      {Op::none, Op::none, m, height - d, d},  // [UH; EH], transposed
      at_targets,
      {Op::none, Op::none, m, m, d},  // N
      H_N,
      {Op::none, Op::none, d, d, m},           // the commit of Q
      {Op::none, Op::none, d, height - d, m},  // and of U and E
  };
}

#define WIDEHEAD_INSTANTIATE(T)                                                        \
  template void WindowedLayer<T>::begin_scores(ConstView<T>);                          \
  template void WindowedLayer<T>::write_scores(std::span<const Index>, MatrixView<T>); \
  template void WindowedLayer<T>::write_weights(Size, MatrixView<T>);                  \
  template Matrix<T> WindowedLayer<T>::sum_of_rows();                                  \
  template Diagnostics WindowedLayer<T>::counters() const;                             \
  template Diagnostics WindowedLayer<T>::diagnostics();                                \
  template std::vector<GemmShape> WindowedLayer<T>::step_products(Size) const
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
