#pragma once
/// Algorithms 1, 2 and 3 of the paper as they are printed there, in double, in plain loops: slow,
/// obvious, and the first link in the chain of trust (definition → reference → every other layer).

#include <vector>

#include "widehead/output_layer.h"
#include "widehead/stabilizer.h"

namespace widehead {

/// The paper's state and procedures. No library, no blocking, no cleverness; y is a dense vector.
class Reference {
 public:
  using Vector = std::vector<double>;
  using Table = std::vector<Vector>;  ///< row by row

  Reference(Size outputs, Size dim);

  /// Algorithm 1, one example: returns L, adds nothing else to its text. ∇h goes to grad_h.
  double online_step(const Vector& h, const Vector& y, double eta, Vector& grad_h);
  /// Algorithm 2, m examples given as the columns of H (d x m) and Y (D x m).
  double minibatch_step(const Table& H, const Table& Y, double eta, Table& grad_H);
  /// Eq. 1 and 2 alone.
  double loss(const Vector& h, const Vector& y, Vector& grad_h) const;

  /// Algorithm 3.
  void singular_stabilize(double sigma_low, double sigma_high);
  void fix_singular_value(double sigma, const Vector& u, double sigma_star);
  /// V ← V U, U ← I, U⁻ᵀ ← I.
  void restore_pristine();

  Table W() const;  ///< V U
  bool is_finite() const;
  Table V, U, U_inv_T, Q;
};

/// The same behind the interface of all layers: Algorithm 1 for m = 1, Algorithm 2 otherwise,
/// Algorithm 3 (by full SVD) every n_check steps. Squared error only; the paper has no weight decay.
class ReferenceLayer final : public OutputLayer<double> {
 public:
  ReferenceLayer(const LayerOptions& options, const StabilizerOptions& stabilizer,
                 std::shared_ptr<Backend<double>> backend);

  std::string head() const override { return "reference"; }
  Matrix<double> gram() override;
  std::vector<GemmShape> step_products(Size m) const override;
  const Reference& state() const { return reference_; }

 protected:
  double take_step(ConstView<double> H, const SparseBatch<double>& targets, double eta,
                   MatrixView<double> grad_H) override;
  double compute_loss(ConstView<double> H, const SparseBatch<double>& targets, MatrixView<double> grad_H) override;
  void visit_own_state(StateVisitor& visitor) override;
  void begin_scores(ConstView<double> H) override;
  void write_scores(std::span<const Index> rows, MatrixView<double> out) override;
  void write_weights(Size first, MatrixView<double> out) override;

 private:
  double take_unweighted_step(ConstView<double> H, const SparseBatch<double>& targets, double eta,
                              MatrixView<double> grad_H);
  void refresh_W();

  Reference reference_;
  StabilizerOptions stabilizer_;
  Matrix<double> W_;  // d x D, as of the last question asked
  ConstView<double> H_scored_;
};

}  // namespace widehead
