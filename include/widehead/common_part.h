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
  CommonPart(Backend<T>& backend, Size outputs, Size dim, bool in_use);

  bool in_use() const { return in_use_; }
  /// Before the first step: w̄ of the initial W (d x 1), on the host.
  void set_sum_of_rows(ConstView<double> w_bar);

  /// s ← Hᵀw̄, and o_t ← o_t + Hᵀω, what every output of an example has in common.
  void observe(ConstView<T> H, const RowGroups<T>& targets, const Statistics& statistics);
  /// Γ̂ += ωγᵀ.
  void add_to_Gamma_hat(const Derivatives<T>& by, MatrixView<T> Gamma_hat) const;
  /// ∇H = 2Ĥ diag(a) + w̄bᵀ + Γ̂ (docs/algorithm.md, section 3).
  void write_gradient(const Derivatives<T>& by, ConstView<T> H_hat, ConstView<T> Gamma_hat, MatrixView<T> grad_H) const;
  /// ∇H += w̄bᵀ.
  void add_to_gradient(const Derivatives<T>& by, MatrixView<T> grad_H) const;
  /// N += b (4a∘s + 2γ + D b)ᵀ, whose symmetric part is D bbᵀ + 2(B + Bᵀ) + bγᵀ + γbᵀ, B = (a∘s)bᵀ.
  /// After observe with the same H; and before prepare.
  void add_to_N(const Derivatives<T>& by, double eta, MatrixView<T> N);

  /// Computes the step, without taking it.
  void prepare(ConstView<T> H, double c);
  /// Whether what it computed is finite.
  bool fits() const { return !in_use_ || backend_.find_non_finite(next_rounded_) < 0; }
  void commit();

  /// ω and w̄, where they are in use.
  void visit_state(StateVisitor& visitor);

  // For the questions a layer is asked.
  void begin_scores(ConstView<T> H);
  void add_to_scores(MatrixView<T> scores);    ///< scores (rows x m) + 1(Hᵀω)ᵀ
  void add_to_weights(MatrixView<T> W) const;  ///< rows of W, as d x rows, + ω
  Matrix<T> sum_of_rows() const;               ///< w̄, d x 1, on the host

 private:
  ConstView<T> omega_T() const { return rounded_.view().columns(0, 1); }
  ConstView<T> w_bar_T() const { return rounded_.view().columns(1, 1); }

  Backend<T>& backend_;
  Size outputs_;
  bool in_use_;
  Matrix<double> common_, next_;      // d x 2: ω and w̄, now and after the step
  Matrix<T> rounded_, next_rounded_;  // the same
  MatrixView<double> ts_;             // m x 2: Hᵀω and Hᵀw̄ of the H observed last, among its statistics
  Matrix<double> factors_;            // m x 2: what H is multiplied with in a step
  Matrix<T> v_;                       // m
  Matrix<double> scored_in_double_;   // Hᵀω for the H of scores, m
  Matrix<T> scored_, ones_;           // the same, rounded; as many ones as there are rows
};

}  // namespace widehead
