#include "widehead/gram_update.h"

namespace widehead {

template <class T>
void GramUpdate<T>::replace_by_P(Backend<T>& backend, ConstView<T> H, ConstView<T> H_T, const Derivatives<T>& by,
                                 CommonPart<T>& common, MatrixView<T> Gamma_hat, ConstView<T> W, ConstView<T> apart,
                                 T eta, T c, MatrixView<T> H_hat, MatrixView<T> grad_H) {
  const Size d = H.rows, m = H.cols;
  const auto C = C_.scratch(d, m), N = N_.scratch(m, m);
  H_a_view_ = H;
  if (!by.a_is_one) {
    const auto H_a = H_a_.scratch(d, m);
    backend.add_columns(T(1), H, by.a, T(0), H, H_a);
    H_a_view_ = H_a;
  }
  const auto a = by.a_is_one ? ConstView<T>() : by.a;
  if (W.empty()) {
    backend.split_gradient(a, Gamma_hat, c, H_hat, grad_H, C);
  } else {
    backend.split_gradient_at_targets(a, W, apart, by.Gamma, by.g, Gamma_hat, c, H_hat, grad_H, C);
  }
  if (common.in_use()) {
    common.add_to_gradient(by, grad_H);
    backend.add(c, grad_H, T(0), grad_H, H_hat);
  }
  const bool by_K = d <= 4 * m && backend.overlaps({Op::none, Op::transpose, d, d, m});
  const auto K = by_K ? K_.scratch(d, d) : MatrixView<T>();
  if (by_K) backend.gemm(Op::none, Op::transpose, T(4), H_a_view_, H, T(0), K);
  if (by_K && !common.in_use()) {
    backend.add_with_gram(-eta / 2, K, C, H, by.Gamma, by.g, N, H_hat);
    return;
  }
  backend.gram(by.Gamma, by.g, N);
  if (by_K) {
    common.add_to_N(by, static_cast<double>(eta), N);
    backend.add_products(-eta / 2, K, C, H, N, H_hat);
    return;
  }
  if (by.a_is_one && !H_T.empty()) {
    backend.gemm(Op::none, Op::none, T(4), H_T, C, T(1), N);  // 4 F
  } else {
    backend.gemm(Op::transpose, Op::none, T(4), H_a_view_, C, T(1), N);
  }
  common.add_to_N(by, static_cast<double>(eta), N);
  backend.gemm(Op::none, Op::none, -eta / 2, H, N, T(1), H_hat);
}

template class GramUpdate<float>;
template class GramUpdate<double>;

}  // namespace widehead
