#include "widehead/common_part.h"

#include <algorithm>
#include <cmath>

namespace widehead {
namespace {

template <class T>
MatrixView<const T> as_column(std::span<const T> values) {
  return {values.data(), static_cast<Size>(values.size()), 1};
}

}  // namespace

template <class T>
CommonPart<T>::CommonPart(Size outputs, Size dim, bool in_use)
    : outputs_(static_cast<double>(outputs)),
      in_use_(in_use),
      omega_(static_cast<std::size_t>(dim)),
      w_bar_(omega_.size()),
      new_omega_(omega_.size()),
      new_w_bar_(omega_.size()),
      omega_T_(dim, 1),
      w_bar_T_(dim, 1) {}

template <class T>
void CommonPart<T>::set_sum_of_rows(ConstView<double> w_bar) {
  std::copy_n(w_bar.column(0), w_bar.rows, w_bar_.begin());
  std::copy_n(w_bar.column(0), w_bar.rows, w_bar_T_.data());
}

/// s ← Hᵀw̄, t ← Hᵀω.
template <class T>
void CommonPart<T>::multiply(ConstView<T> H, std::vector<double>& s, std::vector<double>& t) const {
  s.assign(static_cast<std::size_t>(H.cols), 0.0);
  t.assign(s.size(), 0.0);
  if (!in_use_) return;
  for (Size j = 0; j < H.cols; ++j) {
    const T* h = H.column(j);
    double s_j = 0, t_j = 0;
#pragma omp simd reduction(+ : s_j, t_j)
    for (Size i = 0; i < H.rows; ++i) {
      const auto value = static_cast<double>(h[i]);
      s_j += value * w_bar_[static_cast<std::size_t>(i)];
      t_j += value * omega_[static_cast<std::size_t>(i)];
    }
    s[static_cast<std::size_t>(j)] = s_j;
    t[static_cast<std::size_t>(j)] = t_j;
  }
}

template <class T>
std::span<const double> CommonPart<T>::observe(ConstView<T> H, std::span<double> s) {
  multiply(H, s_, t_);
  std::copy(s_.begin(), s_.end(), s.begin());
  return t_;
}

template <class T>
void CommonPart<T>::begin_scores(ConstView<T> H) {
  multiply(H, scored_s_, scored_t_);
}

template <class T>
void CommonPart<T>::add_to_scores(MatrixView<T> scores) const {
  if (!in_use_) return;
  for (Size j = 0; j < scores.cols; ++j) {
    for (Size i = 0; i < scores.rows; ++i) scores(i, j) += static_cast<T>(scored_t_[static_cast<std::size_t>(j)]);
  }
}

template <class T>
void CommonPart<T>::add_to_weights(Backend<T>& backend, MatrixView<T> W) const {
  if (in_use_) backend.add_to_rows({omega_T_.data(), omega_.size()}, W);
}

template <class T>
void CommonPart<T>::add_to_Gamma_hat(Backend<T>& backend, const Derivatives<T>& by, MatrixView<T> Gamma_hat) const {
  if (in_use_) {
    backend.gemm(Op::none, Op::transpose, T(1), omega_T_, as_column<T>(by.gamma), T(1), Gamma_hat);
  }
}

template <class T>
void CommonPart<T>::add_to_gradient(Backend<T>& backend, const Derivatives<T>& by, MatrixView<T> grad_H) const {
  if (in_use_) backend.gemm(Op::none, Op::transpose, T(1), w_bar_T_, as_column<T>(by.b), T(1), grad_H);
}

template <class T>
void CommonPart<T>::add_to_N(Backend<T>& backend, const Derivatives<T>& by, MatrixView<T> N) {
  if (!in_use_) return;
  const auto v = v_.scratch(N.rows, 1);
  for (Size j = 0; j < N.rows; ++j) {
    const auto k = static_cast<std::size_t>(j);
    v(j, 0) = static_cast<T>(4 * static_cast<double>(by.a[k]) * s_[k] + 2 * static_cast<double>(by.gamma[k]) +
                             outputs_ * static_cast<double>(by.b[k]));
  }
  backend.gemm(Op::none, Op::transpose, T(1), as_column<T>(by.b), v, T(1), N);
}

template <class T>
bool CommonPart<T>::prepare(ConstView<T> H, const Derivatives<T>& by, double eta, double c) {
  if (!in_use_) return true;
  for (std::size_t i = 0; i < omega_.size(); ++i) {
    new_omega_[i] = c * omega_[i];
    new_w_bar_[i] = c * w_bar_[i];
  }
  for (Size j = 0; j < H.cols; ++j) {
    const auto k = static_cast<std::size_t>(j);
    const auto a = static_cast<double>(by.a[k]), b = static_cast<double>(by.b[k]);
    const double omega_factor = -eta * (2 * a * t_[k] + b);
    const double w_bar_factor = -eta * (2 * a * s_[k] + outputs_ * b + static_cast<double>(by.gamma[k]));
    const T* h = H.column(j);
#pragma omp simd
    for (Size i = 0; i < H.rows; ++i) {
      const auto value = static_cast<double>(h[i]);
      new_omega_[static_cast<std::size_t>(i)] += omega_factor * value;
      new_w_bar_[static_cast<std::size_t>(i)] += w_bar_factor * value;
    }
  }
  const auto is_finite = [](double value) { return std::isfinite(static_cast<T>(value)); };
  return std::all_of(new_omega_.begin(), new_omega_.end(), is_finite) &&
         std::all_of(new_w_bar_.begin(), new_w_bar_.end(), is_finite);
}

template <class T>
void CommonPart<T>::commit() {
  if (!in_use_) return;
  std::swap(omega_, new_omega_);
  std::swap(w_bar_, new_w_bar_);
  std::copy(omega_.begin(), omega_.end(), omega_T_.data());
  std::copy(w_bar_.begin(), w_bar_.end(), w_bar_T_.data());
}

template <class T>
void CommonPart<T>::visit_state(StateVisitor& visitor) {
  visitor.agree("uses_sum", in_use_);
  if (!in_use_) return;
  const auto column_of = [](std::vector<double>& v) {
    return MatrixView<double>(v.data(), static_cast<Size>(v.size()), 1);
  };
  visitor.block("omega", column_of(omega_));
  visitor.block("w_bar", column_of(w_bar_));
  std::copy(omega_.begin(), omega_.end(), omega_T_.data());
  std::copy(w_bar_.begin(), w_bar_.end(), w_bar_T_.data());
}

template class CommonPart<float>;
template class CommonPart<double>;

}  // namespace widehead
