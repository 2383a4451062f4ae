#pragma once
/// The explicit O(Dd) layer: W itself, and three matrix products per step of squared error,
///   O = W H,   R = 2 (O − Y),   ∇H = WᵀR,   W ← c W − η R Hᵀ        6 D d m flops.
/// It is the definition the other layers are tested against, and the baseline every speed-up is
/// measured against, so it is made as fast as the GEMM allows: one pass over W, in blocks of rows
/// that stay in cache through all three products, never more than a block of outputs in memory.
/// Other losses need ‖o‖² and Σo before R = 2 O diag(a) + 1bᵀ + Γ is known: a pass for them comes first.

#include <vector>

#include "widehead/spherical_layer.h"

namespace widehead {

template <class T>
class DenseLayer final : public SphericalLayer<T> {
 public:
  DenseLayer(const LayerOptions& options, std::shared_ptr<Backend<T>> backend);

  std::string head() const override { return "dense"; }
  Matrix<T> gram() override;
  std::vector<GemmShape> step_products(Size m) const override;

 protected:
  double take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) override;
  void observe(ConstView<T> H, const RowGroups<T>& targets, const Statistics& statistics) override;
  void backpropagate(ConstView<T> H, const Derivatives<T>& by, MatrixView<T> grad_H) override;
  void update(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) override;
  void visit_own_state(StateVisitor& visitor) override;
  void begin_scores(ConstView<T> H) override;
  void write_scores(std::span<const Index> rows, MatrixView<T> out) override;
  void write_weights(Size first, MatrixView<T> out) override;

 private:
  enum class Update { no, yes };
  double pass_over_rows(ConstView<T> H, const Derivatives<T>& by, Update update, T eta, MatrixView<T> grad_H);
  double take_squared_error_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H);
  void refuse_overflow(ConstView<T> H, const SparseBatch<T>& targets, T eta);

  bool is_squared_error_;
  Matrix<T> W_;            // d x D
  double norm_bound_ = 0;  // ≥ ‖W‖_F

  // scratch
  Derivatives<T> squared_error_;  // a = 1, b = 0, Γ = −2Y: known before the outputs are
  ConstView<T> H_scored_;
  Matrix<T> H_a_;                   // d x m: H diag(a)
  Matrix<T> H_T_;                   // m x d
  Matrix<T> R_;                     // m x block: R of the block at work, one output per column
  Matrix<T> grad_T_;                // m x d
  std::vector<T> minus_twice_Y_;    // by entry
  Matrix<T> g_;                     // the same in the backend's memory
  Matrix<T> host_derivatives_;      // copies of a, b and g on the host
  Matrix<double> host_statistics_;  // of q
};

}  // namespace widehead
