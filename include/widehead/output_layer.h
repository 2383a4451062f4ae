#pragma once
/// The output layer: D linear outputs o = W h, W (D x d), trained with a loss of the spherical family (or the
/// cross-entropy)
///   L = Σⱼ wⱼ ℓ(W hⱼ, yⱼ)      (summed over the minibatch; wⱼ the weight of example j, 1 unless given)
/// by exact gradient descent with weight decay λ:
///   W ← (1 − ηλ) W − η ∂L/∂W,   for the squared error, ℓ = ‖o − y‖²:  ∂L/∂W = 2 (W H − Y) diag(w) Hᵀ.
/// How W is represented, and hence what a step costs, is the business of the implementations:
/// windowed (W = V U + Y_w E, O(d²), the default), factored (W = V U, the paper, O(d²)), dense (W
/// itself, O(Dd)), reference (the paper's text). Three more are what it is compared with, trained with the
/// cross-entropy: softmax (O(Dd)), hierarchical (O(√D d)) and sampled (cross_entropy_layer.h).

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "widehead/backend.h"
#include "widehead/loss.h"
#include "widehead/matrix.h"
#include "widehead/sparse_batch.h"
#include "widehead/state.h"

namespace widehead {

/// How W starts.
enum class Initial {
  zero,    ///< W = 0: nothing is computed, no memory is touched
  normal,  ///< independent normal values; a value depends on (seed, output, unit) only
  given,   ///< what LayerOptions::initial_weights says
};

/// What every layer is made from.
struct LayerOptions {
  Size outputs = 0;  ///< D
  Size dim = 0;      ///< d
  Loss loss = SquaredError{};
  double weight_decay = 0;  ///< λ ≥ 0
  Initial initial = Initial::zero;
  double initial_scale = 0;  ///< standard deviation for `normal`; 0 means 1/√D, which makes ‖Wh‖ ≈ ‖h‖
  std::uint64_t seed = 0;
  /// For `given`: writes the row of W that an output starts with (d values). Called once for each output, in order,
  /// while the layer is made, and never again. Left empty, W is zero until a state is loaded.
  std::function<void(Size output, std::span<double> row)> initial_weights = {};
};

/// A named figure about a layer's state; docs/algorithm.md explains each name.
struct Diagnostic {
  std::string name;
  double value;
};
using Diagnostics = std::vector<Diagnostic>;

/// The k best outputs of each example, best first; equal scores are ordered by output.
template <class T>
struct TopK {
  Matrix<Index> outputs;  // k x m
  Matrix<T> scores;       // k x m
};

/// Views given to a layer may be of the host's memory or of its backend's, whichever device that is; results go where
/// the view points. What a layer returns as a Matrix is the host's.
template <class T>
class OutputLayer {
 public:
  virtual ~OutputLayer() = default;
  OutputLayer(const OutputLayer&) = delete;
  OutputLayer& operator=(const OutputLayer&) = delete;

  virtual std::string head() const = 0;  ///< "dense", "factored", …
  Size outputs() const { return options_.outputs; }
  Size dim() const { return options_.dim; }
  const LayerOptions& options() const { return options_; }
  Backend<T>& backend() const { return *backend_; }
  /// What is minimised: the name of options().loss unless the head has a loss of its own.
  virtual std::string loss_name() const { return name_of(options_.loss); }
  /// Whether log_prob and perplexity can be asked for.
  virtual bool has_probabilities() const { return widehead::has_probabilities(options_.loss); }
  /// a of eta_for: half a bound of the curvature of L by o, where there is one.
  virtual double curvature() const { return widehead::curvature(options_.loss); }

  /// One exact gradient step on H (d x m) and its targets. Returns the loss before the step; writes
  /// ∂L/∂H (d x m), also before the step, to grad_H unless that is empty.
  /// A step happens wholly or not at all: whatever it throws, the layer is as before.
  double step(ConstView<T> H, const SparseBatch<T>& targets, double eta, MatrixView<T> grad_H = {});

  /// The same step for a device that works by itself: nobody waits, neither for the loss, which is added to what the
  /// next `settle` returns, nor to see whether H and the step are finite. `settle` tells that too; a layer that went
  /// wrong so has taken steps it should not have, and must be loaded or made anew. Views must be of the backend's
  /// memory. The device may put the step off until there is more to do, or until Backend::submit. Heads that look at
  /// their results in between, and all heads on the CPU, take the step at once.
  void enqueue_step(ConstView<T> H, const SparseBatch<T>& targets, double eta, MatrixView<T> grad_H);
  /// Whether it is so here: a step that is enqueued is not waited for.
  virtual bool enqueues() const { return false; }
  /// Waits for the steps enqueued, and returns their loss, summed. @throws NumericalError where one of them diverged
  double settle();

  /// The same loss and gradient without the step.
  double evaluate(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H = {});

  /// The η at which λ₁ = 2ηa‖H diag(√w)‖₂² has the given value, a the curvature of the loss and w the weights
  /// of the examples: what a step of squared error contracts W by in its strongest direction, hence the
  /// rate that carries over between models. 0 where H is zero.
  double eta_for(ConstView<T> H, const SparseBatch<T>& targets, double lambda, double tolerance = 1e-12);

  /// log p of every target, by entry of `targets` as given: for the losses that are a softmax of sorts.
  /// @throws std::invalid_argument for a loss without probabilities
  void log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out);
  /// exp(−Σ y log p / Σ y) over all targets.
  double perplexity(ConstView<T> H, const SparseBatch<T>& targets);
  /// p of the outputs named by `rows` (rows.size() x m). Over all D outputs they sum to 1.
  void probabilities(ConstView<T> H, std::span<const Index> rows, MatrixView<double> out);

  /// W[rows] H (rows.size() x m): the outputs named by `rows`. For "hierarchical", whose outputs compare within a class
  /// only, log p of them.
  void scores(ConstView<T> H, std::span<const Index> rows, MatrixView<T> out);

  /// The k highest scores of each example: O(Dd) each, streamed in blocks.
  TopK<T> top_k(ConstView<T> H, Size k);

  /// Rows first … first + out.cols − 1 of W, one per column of out (d x count).
  void weights(Size first, MatrixView<T> out);
  /// All of W as d x D: O(Dd) memory, O(Dd²) work where W is implicit.
  Matrix<T> weights();

  /// Visits all of W in blocks of rows, visit(first, W_block) with W_block as d x rows, on the host: one block at a
  /// time is in memory.
  void for_each_block_of_rows(const std::function<void(Size, ConstView<T>)>& visit);

  /// Q = WᵀW (d x d), as the layer has it; a layer that does not keep it computes it.
  virtual Matrix<T> gram() = 0;
  /// w̄ = Wᵀ1 (d x 1), likewise.
  virtual Matrix<T> sum_of_rows();

  std::int64_t steps() const { return steps_; }  ///< steps taken

  /// What the layer has counted so far: steps, fixes, seconds spent on them. Free of charge.
  virtual Diagnostics counters() const { return {{"steps", static_cast<double>(steps_)}}; }
  /// The counters and figures about the numerical state. May be expensive (O(Dd²)).
  virtual Diagnostics diagnostics() { return counters(); }

  /// Saves or loads everything that later steps depend on (state.h): a layer made with the same options and
  /// loaded goes on bit for bit as the saved one does. Options are not part of it.
  /// @throws std::logic_error for a head whose state cannot be saved
  void visit_state(StateVisitor& visitor);

  /// The matrix products of one step with m examples: what the step would cost at the GEMM rate.
  virtual std::vector<GemmShape> step_products(Size m) const = 0;

 protected:
  OutputLayer(const LayerOptions& options, std::shared_ptr<Backend<T>> backend);

  // What an implementation provides. Arguments are validated, and of the backend's memory.
  virtual double take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) = 0;
  virtual double compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) = 0;
  /// Asked only where the loss has probabilities. @throws std::invalid_argument unless overridden
  virtual void compute_log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out);
  /// The fields of the implementation, for visit_state. @throws std::logic_error unless overridden
  virtual void visit_own_state(StateVisitor& visitor);
  /// Enqueues the step where it can do so without waiting.
  virtual bool take_step_later(ConstView<T>, const SparseBatch<T>&, T /*eta*/, MatrixView<T> /*grad_H*/) {
    return false;
  }
  /// The loss of the steps taken later, since the last call.
  virtual double settle_steps() { return 0; }
  /// Takes the H whose outputs write_scores will be asked for.
  virtual void begin_scores(ConstView<T> H) = 0;
  /// out (rows.size() x m) ← W[rows] H.
  virtual void write_scores(std::span<const Index> rows, MatrixView<T> out) = 0;
  virtual void write_weights(Size first, MatrixView<T> out) = 0;

  /// out ← R[rows] G for a matrix R of all outputs, given as d x D: a view where rows are consecutive.
  void multiply_rows(ConstView<T> R, std::span<const Index> rows, ConstView<T> G, MatrixView<T> out);
  /// Fills a d x D matrix as options().initial says; rows behind the D of W are zero where that is `given`.
  /// @throws std::invalid_argument for a given value that is not finite
  void fill_initial(MatrixView<T> W);
  /// G = RᵀR (d x d) in blocks of rows, R given as d x D, in any memory.
  void gram_of_rows(ConstView<T> rows, MatrixView<T> G);
  /// Σᵢ rᵢ (d x 1) of a matrix R given as d x D.
  Matrix<double> sum_rows(ConstView<T> rows);
  /// ‖Q − WᵀW‖_F / ‖WᵀW‖_F: how far a kept Q has drifted. O(Dd²).
  double drift_of(ConstView<T> Q);
  /// A itself where the host can read it, else a copy in `room`.
  template <class U>
  MatrixView<const U> on_host(MatrixView<const U> A, Matrix<U>& room) const {
    if (backend_->memory().is_host()) return A;
    const auto copy = room.scratch(A.rows, A.cols);
    backend_->template transfer<U>(A, copy);
    return copy;
  }
  /// A copy of A on the host.
  Matrix<T> host_copy(ConstView<T> A) const {
    Matrix<T> copy(A.rows, A.cols);
    backend_->template transfer<T>(A, copy);
    return copy;
  }
  /// c = 1 − ηλ.
  T shrinkage(T eta) const { return T(1) - eta * static_cast<T>(options_.weight_decay); }

  /// Weights by substitution, for layers that know the squared error only: with h' = √w h and y' = √w y,
  /// ‖Wh' − y'‖² = w‖Wh − y‖², the step of W is the weighted one, and ∂L/∂h = √w ∂L/∂h'.
  template <class Compute>
  double with_weights_folded(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H,
                             const Compute& compute);

  // For implementations with a further way to take a step.
  /// Checks what it is given; returns H in the backend's memory.
  /// @param known  the same H was taken before: its values need not be looked at again
  ConstView<T> take_batch(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H, const char* what,
                          bool known = false);
  /// As the backend's; known already where H was just taken.
  T rough_squared_norm_of_batch(ConstView<T> H) {
    return rough_squared_norm_ ? *rough_squared_norm_ : backend_->rough_squared_norm(H);
  }
  void check_rate(double eta) const;
  /// Where a result is computed that goes to `out`: itself, or a room of the backend's memory.
  MatrixView<T> room_for(MatrixView<T> out);
  void deliver(ConstView<T> result, MatrixView<T> out);
  void count_step() { ++steps_; }

 private:
  void check_shape(ConstView<T> H, const char* what) const;
  void check_targets(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H, const char* what) const;
  ConstView<T> take_hidden(ConstView<T> H, const char* what, bool known = false);
  void check_rows(std::span<const Index> rows, Size examples, Size out_rows, Size out_cols, Size out_stride,
                  bool out_empty, const char* what) const;
  /// H diag(√w).
  ConstView<T> weighted(ConstView<T> H, const SparseBatch<T>& targets);
  void scale_by_root_weights(const SparseBatch<T>& targets, MatrixView<T> A);
  /// As for_each_block_of_rows, in the backend's memory.
  template <class Visit>
  void visit_blocks(const Visit& visit);

  LayerOptions options_;
  std::int64_t steps_ = 0;
  std::optional<T> rough_squared_norm_;  // of the H that was taken last, where its values were looked at
  double enqueued_loss_ = 0;             // of steps taken at once all the same
  std::shared_ptr<Backend<T>> backend_;
  Matrix<T> H_room_, out_room_;     // copies of what came from the host, or goes there
  Matrix<T> host_H_;                // a copy on the host, for eta_for
  Matrix<T> weighted_H_;            // d x m
  std::vector<T> weighted_values_;  // nonzeros
  std::vector<T> root_weights_;     // m
  Matrix<T> root_weights_room_;     // m
  Matrix<T> selected_;              // d x rows, for scores
};

template <class T>
template <class Compute>
double OutputLayer<T>::with_weights_folded(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H,
                                           const Compute& compute) {
  if (!targets.weighted()) return compute(H, targets);
  weighted_values_.resize(static_cast<std::size_t>(targets.nonzeros()));
  for (Size j = 0; j < H.cols; ++j) {
    const T root = std::sqrt(targets.weight(j));
    for (Size e = targets.begin(j); e < targets.end(j); ++e) {
      weighted_values_[static_cast<std::size_t>(e)] = root * targets.value(e);
    }
  }
  const double loss = compute(weighted(H, targets), targets.with_values(weighted_values_));
  if (!grad_H.empty()) scale_by_root_weights(targets, grad_H);
  return loss;
}

}  // namespace widehead
