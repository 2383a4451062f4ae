#pragma once
/// The output layer: D linear outputs o = W h, W (D x d), trained with squared error
///   L = Σⱼ wⱼ ‖W hⱼ − yⱼ‖²      (summed over the minibatch; wⱼ the weight of example j, 1 unless given)
/// by exact gradient descent with weight decay λ:
///   W ← (1 − ηλ) W − 2η (W H − Y) diag(w) Hᵀ.
/// How W is represented, and hence what a step costs, is the business of the implementations:
/// windowed (W = V U + Y_w E, O(d²), the default), factored (W = V U, the paper, O(d²)), dense (W
/// itself, O(Dd)), reference (the paper's text).

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "widehead/backend.h"
#include "widehead/matrix.h"
#include "widehead/sparse_batch.h"

namespace widehead {

/// How W starts.
enum class Initial {
  zero,    ///< W = 0: nothing is computed, no memory is touched
  normal,  ///< independent normal values; a value depends on (seed, output, unit) only
};

/// What every layer is made from.
struct LayerOptions {
  Size outputs = 0;         ///< D
  Size dim = 0;             ///< d
  double weight_decay = 0;  ///< λ ≥ 0
  Initial initial = Initial::zero;
  double initial_scale = 0;  ///< standard deviation for `normal`; 0 means 1/√D, which makes ‖Wh‖ ≈ ‖h‖
  std::uint64_t seed = 0;
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

  /// One exact gradient step on H (d x m) and its targets. Returns the loss before the step; writes
  /// ∂L/∂H (d x m), also before the step, to grad_H unless that is empty.
  /// A step happens wholly or not at all: whatever it throws, the layer is as before.
  double step(ConstView<T> H, const SparseBatch<T>& targets, double eta, MatrixView<T> grad_H = {});

  /// The same loss and gradient without the step.
  double evaluate(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H = {});

  /// W[rows] H (rows.size() x m): the outputs named by `rows`.
  void scores(ConstView<T> H, std::span<const Index> rows, MatrixView<T> out);

  /// The k highest outputs of each example: O(Dd) each, streamed in blocks.
  TopK<T> top_k(ConstView<T> H, Size k);

  /// Rows first … first + out.cols − 1 of W, one per column of out (d x count).
  void weights(Size first, MatrixView<T> out);
  /// All of W as d x D: O(Dd) memory, O(Dd²) work where W is implicit.
  Matrix<T> weights();

  /// Visits all of W in blocks of rows, visit(first, W_block) with W_block as d x rows: one block at a
  /// time is in memory.
  void for_each_block_of_rows(const std::function<void(Size, ConstView<T>)>& visit);

  /// Q = WᵀW (d x d), as the layer has it; a layer that does not keep it computes it.
  virtual Matrix<T> gram() = 0;

  std::int64_t steps() const { return steps_; }  ///< steps taken

  /// What the layer has counted so far: steps, fixes, seconds spent on them. Free of charge.
  virtual Diagnostics counters() const { return {{"steps", static_cast<double>(steps_)}}; }
  /// The counters and figures about the numerical state. May be expensive (O(Dd²)).
  virtual Diagnostics diagnostics() { return counters(); }

  /// The matrix products of one step with m examples: what the step would cost at the GEMM rate.
  virtual std::vector<GemmShape> step_products(Size m) const = 0;

 protected:
  OutputLayer(const LayerOptions& options, std::shared_ptr<Backend<T>> backend);

  // What an implementation provides. Arguments are validated, weights are folded into H and the
  // values of the targets.
  virtual double take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) = 0;
  virtual double compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) = 0;
  /// Takes the H whose outputs write_scores will be asked for.
  virtual void begin_scores(ConstView<T> H) = 0;
  /// out (rows.size() x m) ← W[rows] H.
  virtual void write_scores(std::span<const Index> rows, MatrixView<T> out) = 0;
  virtual void write_weights(Size first, MatrixView<T> out) = 0;

  /// out ← R[rows] G for a matrix R of all outputs, given as d x D: a view where rows are consecutive.
  void multiply_rows(ConstView<T> R, std::span<const Index> rows, ConstView<T> G, MatrixView<T> out);
  /// Fills a d x D matrix as options().initial says.
  void fill_initial(MatrixView<T> W) const;
  /// G = RᵀR (d x d) in blocks of rows, R given as d x D.
  void gram_of_rows(ConstView<T> rows, MatrixView<T> G);
  /// ‖Q − WᵀW‖_F / ‖WᵀW‖_F: how far a kept Q has drifted. O(Dd²).
  double drift_of(ConstView<T> Q);
  /// c = 1 − ηλ.
  T shrinkage(T eta) const { return T(1) - eta * static_cast<T>(options_.weight_decay); }

 private:
  template <class Compute>
  double with_weights_folded(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H,
                             const Compute& compute);
  void check_hidden(ConstView<T> H, const char* what) const;
  void check_batch(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) const;

  LayerOptions options_;
  std::int64_t steps_ = 0;
  std::shared_ptr<Backend<T>> backend_;
  Matrix<T> weighted_H_;            // d x m
  std::vector<T> weighted_values_;  // nonzeros
  Matrix<T> selected_;              // d x rows, for scores
};

}  // namespace widehead
