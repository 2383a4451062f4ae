#pragma once
/// Layers trained with any loss of the spherical family (loss.h). A step has four parts; the second is
/// the same for every representation of W and lives here, the others are what an implementation provides:
///   observe        q = diag(HᵀQH), s = Hᵀw̄, o_t                 what the loss may depend on
///   judge          L, a, b, g                                    the loss itself
///   backpropagate  ∇H = 2Ĥ diag(a) + w̄bᵀ + Γ̂,  Γ̂ = WᵀΓ          Γ (D x m, sparse) holds g
///   update         W ← cW − η (2WH diag(a) + 1bᵀ + Γ) Hᵀ, and ∇H   wholly or not at all
/// The weight of an example multiplies its L, a, b and g, which makes it exact for every loss.

#include <vector>

#include "widehead/output_layer.h"

namespace widehead {

/// What a loss may depend on, for a minibatch.
struct Statistics {
  std::vector<double> q;  ///< m
  std::vector<double> s;  ///< m; only where the loss uses it
  std::vector<double> o;  ///< outputs at the targets, by entry of the RowGroups
};

/// The derivatives of L by them.
template <class T>
struct Derivatives {
  std::vector<T> a;      ///< ∂L/∂q, m
  std::vector<T> b;      ///< ∂L/∂s, m
  std::vector<T> gamma;  ///< γ = Γᵀ1, m
  RowGroups<T> Gamma;    ///< Γ: ∂L/∂o_t where Y has its values
  bool a_is_one = true;  ///< for all examples, as with the squared error
  T largest_a = 1;       ///< in magnitude
};

/// The same from a loss that is computed elsewhere, as by automatic differentiation.
struct GivenDerivatives {
  std::span<const double> a;  ///< ∂L/∂q, m
  std::span<const double> b;  ///< ∂L/∂s, m; empty where it is 0
  std::span<const double> g;  ///< ∂L/∂o_t, by entry of the targets as given; those of an output named twice add up
};

template <class T>
class SphericalLayer : public OutputLayer<T> {
 public:
  // ── a step in parts, for a loss that is computed elsewhere ──────────────────────────────────
  // q, s, o = observe_batch → the caller's loss and its derivatives → backpropagate_batch → update_batch. Weights of
  // examples are the caller's business, too; options().loss only says whether there is s.

  /// What is known of a minibatch already, with nothing else asked of the layer since: it is not computed again.
  enum class Known { nothing, statistics, gradient };

  /// What a loss may depend on; o by entry of the targets as given.
  void observe_batch(ConstView<T> H, const SparseBatch<T>& targets, Statistics& statistics);
  /// ∂L/∂H of the derivatives by that.
  /// @param known  nothing, or statistics: the last call was observe_batch with these H and targets
  void backpropagate_batch(ConstView<T> H, const SparseBatch<T>& targets, const GivenDerivatives& given,
                           MatrixView<T> grad_H, Known known = Known::nothing);
  /// The step of W, which is counted. Wholly or not at all, as `step`.
  /// @param grad_H  ∂L/∂H is written there, or is there already if `known` says so; may be empty else
  /// @param known   as above, or gradient: the last call was backpropagate_batch with these arguments
  void update_batch(ConstView<T> H, const SparseBatch<T>& targets, const GivenDerivatives& given, double eta,
                    MatrixView<T> grad_H = {}, Known known = Known::nothing);

 protected:
  SphericalLayer(const LayerOptions& options, std::shared_ptr<Backend<T>> backend);

  double take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) override;
  double compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) override;
  void compute_log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out) override;

  /// q and o of H, and s where the loss uses it. `statistics` has the right sizes.
  virtual void observe(ConstView<T> H, const RowGroups<T>& targets, Statistics& statistics) = 0;
  /// ∇H, after observe with the same H.
  virtual void backpropagate(ConstView<T> H, const Derivatives<T>& by, MatrixView<T> grad_H) = 0;
  /// ∇H and the step of W, after observe with the same H.
  /// @throws NumericalError with the layer as before
  virtual void update(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) = 0;
  /// The same where backpropagate was called last, and grad_H is its result.
  virtual void update_after_backpropagate(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) {
    update(H, by, eta, grad_H);
  }

  /// Observes and judges; returns L. `eta` is for the error message, if there is one.
  double judge(ConstView<T> H, const SparseBatch<T>& targets, const T* eta);
  const Statistics& statistics() const { return statistics_; }
  bool uses_sum() const { return uses_sum_; }
  /// "eta = …, λ₁ = …" for error messages, λ₁ = 2ηa‖H‖₂² with the largest a.
  std::string describe_rate(ConstView<T> H, T eta) const;

 private:
  void observe_targets(ConstView<T> H, const SparseBatch<T>& targets);
  template <class Visit>
  void for_each_target(const SparseBatch<T>& targets, const Visit& visit) const;
  void take(const SparseBatch<T>& targets, const GivenDerivatives& given, const char* what);

  bool uses_sum_;
  Statistics statistics_;
  Derivatives<T> derivatives_;
  Matrix<T> grad_H_;               // d x m, where the caller wants none
  std::vector<double> o_, y_, g_;  // of one example
};

}  // namespace widehead
