#pragma once
/// The paper's layer: W = V U with Q = WᵀW kept up to date, so that loss, ∇H and the exact update
/// cost O(d²) per example whatever D is. Algorithm 2, of which Algorithm 1 is the case m = 1, in the
/// form of docs/algorithm.md: 7 d² multiply-adds per example instead of 12, two large products. Losses
/// that use Σo add 1ωᵀ to W and keep w̄ = Wᵀ1.
///
/// In float32 its accuracy is bounded by the condition of U (measured in docs/algorithm.md): V's
/// rounding is relative to its largest coordinate, and U contracts by 1 − λ₁ per step.

#include <limits>

#include "widehead/common_part.h"
#include "widehead/gram_update.h"
#include "widehead/spherical_layer.h"
#include "widehead/stabilizer.h"

namespace widehead {

/// Where U⁻ᵀH comes from.
enum class Inverse {
  woodbury,  ///< U⁻ᵀ kept by Sherman-Morrison / Woodbury, as in the paper; 2 d² per example
  solve,     ///< no U⁻ᵀ: one LU of U per step
  refresh,   ///< woodbury, with a fresh inverse every `refresh_every` steps
};

struct FactoredOptions {
  Inverse inverse = Inverse::woodbury;
  std::int64_t refresh_every = 10;
  StabilizerOptions stabilizer;
};

template <class T>
class FactoredLayer final : public SphericalLayer<T> {
 public:
  FactoredLayer(const LayerOptions& options, const FactoredOptions& factored, std::shared_ptr<Backend<T>> backend);

  std::string head() const override { return "factored"; }
  Matrix<T> gram() override { return this->host_copy(Q()); }
  Matrix<T> sum_of_rows() override;
  Diagnostics counters() const override;
  Diagnostics diagnostics() override;
  std::vector<GemmShape> step_products(Size m) const override;

 protected:
  void observe(ConstView<T> H, const RowGroups<T>& targets, const Statistics& statistics) override;
  void backpropagate(ConstView<T> H, const Derivatives<T>& by, MatrixView<T> grad_H) override;
  void update(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) override;
  void update_after_backpropagate(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) override;
  void visit_own_state(StateVisitor& visitor) override;
  void begin_scores(ConstView<T> H) override;
  void write_scores(std::span<const Index> rows, MatrixView<T> out) override;
  void write_weights(Size first, MatrixView<T> out) override;

 private:
  // The stack S = [Q; U; U⁻ᵀ], 3d x d in one buffer: one product with H gives all three.
  MatrixView<T> Q() { return S_.view().block(0, 0, this->dim(), this->dim()); }
  MatrixView<T> U() { return S_.view().block(this->dim(), 0, this->dim(), this->dim()); }
  MatrixView<T> U_inv_T() { return S_.view().block(2 * this->dim(), 0, this->dim(), this->dim()); }
  bool keeps_inverse() const { return factored_.inverse != Inverse::solve; }
  Size stack_height() const { return (keeps_inverse() ? 3 : 2) * this->dim(); }

  MatrixView<T> compute_Gamma_hat(Size m, const Derivatives<T>& by);
  T compute_U_inv_T_H(ConstView<T> H, T eta, T c, MatrixView<T> X);
  bool fits(ConstView<T> H, const Derivatives<T>& by, ConstView<T> S, ConstView<T> TH, T eta, T c);
  void maintain(std::int64_t steps);

  FactoredOptions factored_;
  Matrix<T> V_;  // d x D: column i is V's row i
  Matrix<T> S_;  // 3d x d
  CommonPart<T> common_;
  Stabilizer<T> stabilizer_;
  std::int64_t inversions_ = 0;
  double stack_bound_ = std::numeric_limits<double>::infinity();  // ≥ ‖S‖_F
  double V_bound_ = 0;                                            // ≥ ‖V‖_F

  // scratch
  GramUpdate<T> gram_update_;
  Matrix<T> T_;          // 3d x m: S H, then what the commit half multiplies with Hᵀ
  Matrix<T> Z_;          // d x rows of the minibatch: their V
  Matrix<T> VtG_;        // d x m: VᵀΓ
  Matrix<T> Gamma_hat_;  // d x m
  Matrix<T> G_;          // m x m: 2η diag(a) HᵀH
  Matrix<T> UH_;         // d x m, for scores
  MatrixView<T> UH_scored_;
  Matrix<T> square_;    // d x d
  Matrix<int> pivots_;  // d
  Matrix<T> host_g_;    // a copy of Γ's values on the host
};

}  // namespace widehead
