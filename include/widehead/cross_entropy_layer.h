#pragma once
/// What the softmax heads have in common: W itself (D x d), and the cross-entropy with sparse targets y ≥ 0,
///   L = − Σⱼ wⱼ Σ_t y_t log p(t | hⱼ)        0 for an example without targets
/// where p is what an implementation says. Such a loss is outside the spherical family, so no O(d²) step is known for
/// it: these heads are what the others are compared with.
///
/// options().loss is not read, and must be left at its default.

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "widehead/output_layer.h"

namespace widehead {

template <class T>
class CrossEntropyLayer : public OutputLayer<T> {
 public:
  std::string head() const override { return head_; }
  std::string loss_name() const override { return "cross-entropy"; }
  bool has_probabilities() const override { return true; }
  /// diag(p) − ppᵀ ≤ I/2 is the curvature of a target of value 1, and 2a I that of the squared error times a.
  double curvature() const override { return 0.25; }
  Matrix<T> gram() override;

 protected:
  /// @param further_rows  rows of the head's own behind those of W
  /// @throws std::invalid_argument for a loss other than the default
  CrossEntropyLayer(std::string_view head, const LayerOptions& options, std::shared_ptr<Backend<T>> backend,
                    Size further_rows = 0);

  void begin_scores(ConstView<T> H) override;
  void write_scores(std::span<const Index> rows, MatrixView<T> out) override;
  void write_weights(Size first, MatrixView<T> out) override;
  void visit_own_state(StateVisitor& visitor) override;

  MatrixView<T> W() { return rows_.view().columns(0, this->outputs()); }  // d x D
  MatrixView<T> further_rows() { return rows_.view().columns(this->outputs(), rows_.cols() - this->outputs()); }
  MatrixView<T> all_rows() { return rows_; }
  ConstView<T> H_scored() const { return H_scored_; }

  /// For heads whose step touches few rows. @throws std::invalid_argument where there is a weight decay
  void refuse_weight_decay() const;
  /// Takes the targets of a minibatch: Y, and Σ_t y_t of each example.
  void take_targets(const SparseBatch<T>& targets);
  /// The same where L is asked for. @throws std::invalid_argument for a negative value
  void take_non_negative_targets(const SparseBatch<T>& targets);
  const RowGroups<T>& Y() const { return Y_; }
  double mass(Size example) const { return mass_[static_cast<std::size_t>(example)]; }

  /// L from log p of every entry of Y.
  /// @throws NumericalError where it is not finite, or one of the normalisers log Z (m)
  double loss_of(const SparseBatch<T>& targets, std::span<const double> log_p, std::span<const double> log_Z) const;
  /// Values by entry of Y go to the targets as they were given.
  void spread(const SparseBatch<T>& targets, std::span<const double> by_entry, std::span<double> out) const;

  /// To be called before anything is written by a step, and then `grow_by` what it returned. After it nothing can fail:
  /// L, ∇H and the new W are finite.
  /// @throws NumericalError where one of them might not be
  double require_no_overflow(ConstView<T> H, const SparseBatch<T>& targets, T eta);
  void grow_by(double growth) { norm_bound_ += growth; }
  /// After a step that was not preceded by it: the bound is taken anew when it is next needed.
  void forget_bound() { norm_bound_ = std::numeric_limits<double>::infinity(); }

 private:
  std::string head_;
  Matrix<T> rows_;         // d x (D + further rows), of the backend's memory
  double norm_bound_ = 0;  // ≥ ‖rows_‖_F; infinite: not known

  // of the minibatch
  RowGroups<T> Y_;
  std::vector<double> mass_;  // m
  ConstView<T> H_scored_;
};

}  // namespace widehead
