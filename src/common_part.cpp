#include "widehead/common_part.h"

#include <algorithm>
#include <utility>

#include "widehead/device_state.h"

namespace widehead {

template <class T>
CommonPart<T>::CommonPart(Backend<T>& backend, Size outputs, Size dim, bool in_use)
    : backend_(backend),
      outputs_(outputs),
      in_use_(in_use),
      common_(dim, in_use ? 2 : 0, backend.memory()),
      next_(dim, common_.cols(), backend.memory()),
      rounded_(dim, common_.cols(), backend.memory()),
      next_rounded_(dim, common_.cols(), backend.memory()),
      factors_(backend.memory()),
      v_(backend.memory()),
      scored_in_double_(backend.memory()),
      scored_(backend.memory()),
      ones_(backend.memory()) {}

template <class T>
void CommonPart<T>::set_sum_of_rows(ConstView<double> w_bar) {
  backend_.template transfer<double>(w_bar, common_.view().columns(1, 1));
  backend_.round(common_, rounded_);
}

template <class T>
void CommonPart<T>::observe(ConstView<T> H, const RowGroups<T>& targets, const Statistics& statistics) {
  if (!in_use_) return;
  ts_ = {statistics.t.data, H.cols, 2};  // t, and s behind it
  backend_.multiply_in_double(Op::transpose, H, common_, 0, {}, ts_);
  backend_.add_by_example(statistics.t, targets, statistics.o);
}

template <class T>
void CommonPart<T>::add_to_Gamma_hat(const Derivatives<T>& by, MatrixView<T> Gamma_hat) const {
  if (in_use_) backend_.gemm(Op::none, Op::transpose, T(1), omega_T(), by.gamma, T(1), Gamma_hat);
}

template <class T>
void CommonPart<T>::write_gradient(const Derivatives<T>& by, ConstView<T> H_hat, ConstView<T> Gamma_hat,
                                   MatrixView<T> grad_H) const {
  if (by.a_is_one) {
    backend_.add(T(2), H_hat, T(1), Gamma_hat, grad_H);
  } else {
    backend_.add_columns(T(2), H_hat, by.a, T(1), Gamma_hat, grad_H);
  }
  add_to_gradient(by, grad_H);
}

template <class T>
void CommonPart<T>::add_to_gradient(const Derivatives<T>& by, MatrixView<T> grad_H) const {
  if (in_use_) backend_.gemm(Op::none, Op::transpose, T(1), w_bar_T(), by.b, T(1), grad_H);
}

template <class T>
void CommonPart<T>::add_to_N(const Derivatives<T>& by, double eta, MatrixView<T> N) {
  if (!in_use_) return;
  const auto v = v_.scratch(N.rows, 1);
  backend_.common_factors(eta, outputs_, by.a, by.b, by.gamma, ts_, factors_.scratch(N.rows, 2), v);
  backend_.gemm(Op::none, Op::transpose, T(1), by.b, v, T(1), N);
}

template <class T>
void CommonPart<T>::prepare(ConstView<T> H, double c) {
  if (!in_use_) return;
  backend_.multiply_in_double(Op::none, H, factors_.scratch(H.cols, 2), c, common_, next_);
  backend_.round(next_, next_rounded_);
}

template <class T>
void CommonPart<T>::commit() {
  if (!in_use_) return;
  std::swap(common_, next_);
  std::swap(rounded_, next_rounded_);
}

// ── questions ───────────────────────────────────────────────────────────────────────────────────

template <class T>
void CommonPart<T>::begin_scores(ConstView<T> H) {
  if (!in_use_) return;
  const auto t = scored_in_double_.scratch(H.cols, 1);
  backend_.multiply_in_double(Op::transpose, H, common_.view().columns(0, 1), 0, {}, t);
  backend_.round(t, scored_.scratch(H.cols, 1));
}

template <class T>
void CommonPart<T>::add_to_scores(MatrixView<T> scores) {
  if (!in_use_) return;
  if (ones_.rows() < scores.rows) {
    ones_ = Matrix<T>(scores.rows, 1, backend_.memory());
    Matrix<T> ones(scores.rows, 1);
    std::fill_n(ones.data(), ones.size(), T(1));
    backend_.template transfer<T>(ones.view(), ones_);
  }
  const auto t = scored_.scratch(scores.cols, 1);
  backend_.gemm(Op::none, Op::transpose, T(1), ones_.view().block(0, 0, scores.rows, 1), t, T(1), scores);
}

template <class T>
void CommonPart<T>::add_to_weights(MatrixView<T> W) const {
  if (in_use_) backend_.add_to_rows(omega_T(), W);
}

template <class T>
Matrix<T> CommonPart<T>::sum_of_rows() const {
  Matrix<T> w_bar(rounded_.rows(), 1);
  backend_.template transfer<T>(w_bar_T(), w_bar);
  return w_bar;
}

template <class T>
void CommonPart<T>::visit_state(StateVisitor& visitor) {
  visitor.agree("uses_sum", in_use_);
  if (!in_use_) return;
  visit_block(visitor, backend_, "omega", common_.view().columns(0, 1));
  visit_block(visitor, backend_, "w_bar", common_.view().columns(1, 1));
  backend_.round(common_, rounded_);
}

template class CommonPart<float>;
template class CommonPart<double>;

}  // namespace widehead
