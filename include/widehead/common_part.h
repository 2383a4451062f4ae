#pragma once
/// What all outputs share, for the losses that use Σo: W = … + 1ωᵀ gains the part that every output moves
/// by alike, and w̄ = Wᵀ1 gives s = Hᵀw̄. Both are vectors of d, kept in double. One step:
///   ω ← cω − ηH(2a∘Hᵀω + b),   w̄ ← cw̄ − ηH(2a∘Hᵀw̄ + D b + γ).
/// Losses without Σo leave it idle, and then it costs nothing.

#include <span>
#include <vector>

#include "widehead/backend.h"
#include "widehead/spherical_layer.h"

namespace widehead {

template <class T>
class CommonPart {
 public:
  CommonPart(Size outputs, Size dim, bool in_use);

  bool in_use() const { return in_use_; }
  /// Before the first step: w̄ of the initial W.
  void set_sum_of_rows(ConstView<double> w_bar);

  /// s = Hᵀw̄; returns Hᵀω (m values), what every output of an example has in common.
  std::span<const double> observe(ConstView<T> H, std::span<double> s);
  /// Γ̂ += ωγᵀ.
  void add_to_Gamma_hat(Backend<T>& backend, const Derivatives<T>& by, MatrixView<T> Gamma_hat) const;
  /// ∇H += w̄bᵀ.
  void add_to_gradient(Backend<T>& backend, const Derivatives<T>& by, MatrixView<T> grad_H) const;
  /// N += b (4a∘s + 2γ + D b)ᵀ, whose symmetric part is D bbᵀ + 2(B + Bᵀ) + bγᵀ + γbᵀ, B = (a∘s)bᵀ.
  void add_to_N(Backend<T>& backend, const Derivatives<T>& by, MatrixView<T> N);

  /// Computes the step, without taking it; false when it is not finite. After observe with the same H.
  bool prepare(ConstView<T> H, const Derivatives<T>& by, double eta, double c);
  void commit();

  /// ω and w̄, where they are in use.
  void visit_state(StateVisitor& visitor);

  // For the questions a layer is asked.
  void begin_scores(ConstView<T> H);
  void add_to_scores(MatrixView<T> scores) const;                         ///< scores (rows x m) + 1(Hᵀω)ᵀ
  void add_to_weights(Backend<T>& backend, MatrixView<T> W) const;        ///< rows of W, as d x rows, + ω
  Matrix<T> sum_of_rows() const { return Matrix<T>::copy_of(w_bar_T_); }  ///< w̄, d x 1

 private:
  void multiply(ConstView<T> H, std::vector<double>& s, std::vector<double>& t) const;

  double outputs_;
  bool in_use_;
  std::vector<double> omega_, w_bar_;          // d
  std::vector<double> new_omega_, new_w_bar_;  // d
  std::vector<double> s_, t_;                  // m: Hᵀw̄, Hᵀω
  std::vector<double> scored_s_, scored_t_;    // the same for the H of scores
  Matrix<T> omega_T_, w_bar_T_;                // d x 1, rounded
  Matrix<T> v_;                                // m x 1
};

}  // namespace widehead
