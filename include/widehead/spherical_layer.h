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

/// What a loss may depend on, for a minibatch; in the backend's memory.
struct Statistics {
  MatrixView<double> q;  ///< m
  MatrixView<double> t;  ///< m: Hᵀω, what all outputs of an example share (CommonPart); where the loss uses s
  MatrixView<double> s;  ///< m, right behind t; only where the loss uses it
  MatrixView<double> o;  ///< outputs at the targets, by entry of the RowGroups
};

/// The derivatives of L by them, likewise.
template <class T>
struct Derivatives {
  MatrixView<T> a;       ///< ∂L/∂q, m
  MatrixView<T> b;       ///< ∂L/∂s, m
  MatrixView<T> gamma;   ///< γ = Γᵀ1, m
  RowGroups<T> Gamma;    ///< the pattern of Γ and of Y, and the values of Y
  MatrixView<T> g;       ///< the values of Γ: ∂L/∂o_t
  bool a_is_one = true;  ///< for all examples, as with the squared error
  double largest_a = 1;  ///< in magnitude
};

/// Statistics on the host, o by entry of the targets as given.
struct HostStatistics {
  std::vector<double> q, s, o;
};

/// Derivatives by them, from a loss that is computed elsewhere, as by automatic differentiation.
struct GivenDerivatives {
  std::span<const double> a;  ///< ∂L/∂q, m
  std::span<const double> b;  ///< ∂L/∂s, m; empty where it is 0
  std::span<const double> g;  ///< ∂L/∂o_t, by entry of the targets as given; those of an output named twice add up
};

template <class T>
class SphericalLayer : public OutputLayer<T> {
 public:
  bool enqueues() const override { return can_update_later(); }

  // ── a step in parts, for a loss that is computed elsewhere ──────────────────────────────────
  // q, s, o = observe_batch → the caller's loss and its derivatives → backpropagate_batch → update_batch. Weights of
  // examples are the caller's business, too; options().loss only says whether there is s.

  /// What is known of a minibatch already, with nothing else asked of the layer since: it is not computed again.
  enum class Known { nothing, statistics, gradient };

  /// What a loss may depend on.
  void observe_batch(ConstView<T> H, const SparseBatch<T>& targets, HostStatistics& statistics);
  /// ∂L/∂H of the derivatives by that.
  /// @param known  nothing, or statistics: the last call was observe_batch with these H and targets
  void backpropagate_batch(ConstView<T> H, const SparseBatch<T>& targets, const GivenDerivatives& given,
                           MatrixView<T> grad_H, Known known = Known::nothing);
  /// The step of W, which is counted. Wholly or not at all, as `step`.
  /// @param grad_H  ∂L/∂H is written there; may be empty
  /// @param known   as above, or gradient: the last call was backpropagate_batch with these arguments
  void update_batch(ConstView<T> H, const SparseBatch<T>& targets, const GivenDerivatives& given, double eta,
                    MatrixView<T> grad_H = {}, Known known = Known::nothing);

 protected:
  SphericalLayer(const LayerOptions& options, std::shared_ptr<Backend<T>> backend);

  double take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) override;
  double compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) override;
  bool take_step_later(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) override;
  double settle_steps() override;
  void compute_log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out) override;

  /// These outputs are asked for next: what is kept of them far apart in the host's memory may be on its way meanwhile.
  virtual void expect(std::span<const Index> /*rows*/) const {}
  /// q and o of H, and s where the loss uses it. `statistics` has the right sizes.
  virtual void observe(ConstView<T> H, const RowGroups<T>& targets, const Statistics& statistics) = 0;
  /// ∇H, after observe with the same H.
  virtual void backpropagate(ConstView<T> H, const Derivatives<T>& by, MatrixView<T> grad_H) = 0;
  /// ∇H and the step of W, after observe with the same H.
  /// @throws NumericalError with the layer as before
  virtual void update(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) = 0;
  /// The same where backpropagate was called last.
  virtual void update_after_backpropagate(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) {
    update(H, by, eta, grad_H);
  }

  /// Whether `update_later` exists: the same update without looking at any result.
  virtual bool can_update_later() const { return false; }
  /// Room for an update of so many examples: a device's matrices that grow end its program, and what is rounded depends
  /// on that between observing and the gradient.
  virtual void reserve_for_update(Size /*m*/) {}
  virtual void update_later(ConstView<T>, const Derivatives<T>&, T /*eta*/, MatrixView<T> /*grad_H*/) {}

  /// Observes and judges; returns L. `eta` is for the error message, if there is one.
  double judge(ConstView<T> H, const SparseBatch<T>& targets, const T* eta);
  const Statistics& statistics() const { return statistics_; }
  bool uses_sum() const { return uses_sum_; }
  /// "eta = …, λ₁ = …" for error messages, λ₁ = 2ηa‖H‖₂² with the largest a.
  std::string describe_rate(ConstView<T> H, T eta) const;

 private:
  void observe_targets(ConstView<T> H, const SparseBatch<T>& targets);
  Judged<T> room_for_judgement(const SparseBatch<T>& targets);
  ConstView<double> statistics_on_host();
  template <class Visit>
  void for_each_target(const SparseBatch<T>& targets, const Visit& visit) const;
  void take(const SparseBatch<T>& targets, const GivenDerivatives& given, const char* what);

  bool uses_sum_;
  Statistics statistics_;
  Derivatives<T> derivatives_;
  Matrix<double> statistics_room_;  // q, t, s and o, one after another
  Matrix<T> derivatives_room_;      // a, b, γ and g likewise
  Matrix<double> ledger_;           // Backend::judge_later
  Matrix<T> grad_H_;                // d x m, where the caller wants none
  Matrix<double> host_statistics_;  // the same on the host
  Matrix<T> host_derivatives_;      // a, b, γ and g there
  std::vector<double> given_g_;     // g by entry, before it is rounded
};

}  // namespace widehead
