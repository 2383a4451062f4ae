#pragma once
/// A feed-forward network: sparse input layer, hidden layers, and an output layer ("head") of any kind.
///   X → A₀ → A₁ → … → H → head
/// Lower layers minimise the mean loss of a minibatch with SGD or Adam; the head takes its own exact gradient step.

#include <memory>
#include <vector>

#include "widehead/heads.h"
#include "widehead/train/head_rate.h"
#include "widehead/train/hidden_layer.h"
#include "widehead/train/input_layer.h"

namespace widehead {

struct NetworkOptions {
  Size features = 0;         ///< F, of the sparse input
  Size slots = 1;            ///< words whose embeddings are concatenated; 1 for sums
  Size embedding = 0;        ///< e, width of the input layer for each slot
  std::vector<Size> hidden;  ///< widths of the dense layers; the last gives H. None: the input layer gives H itself
  Activation activation = Activation::relu;
  double input_scale = 0.1;  ///< standard deviation of initial embeddings
  Optimizer optimizer = Optimizer::adam;
  AdamOptions adam;
  double clip = 0;  ///< largest norm of the lower layers' gradient; 0 for no limit
  HeadRateOptions head_rate;
  HeadOptions head;
  std::uint64_t seed = 0;
};

template <class T>
class Network {
 public:
  /// @throws std::invalid_argument also where the last layer is not as wide as the head's d
  Network(const NetworkOptions& options, std::shared_ptr<Backend<T>> backend);

  /// H (d x m) of a minibatch, valid until the next call.
  /// @throws NumericalError where it is not finite, because the run has diverged
  ConstView<T> hidden(const SparseBatch<T>& X);
  /// Trains on a minibatch with all rates multiplied: returns its loss before the step, summed over examples.
  /// @throws NumericalError where the run has diverged: then the lower layers are as before, the head may not be
  double step(const SparseBatch<T>& X, const SparseBatch<T>& targets, double lr, double head_factor);
  /// The loss alone.
  double evaluate(const SparseBatch<T>& X, const SparseBatch<T>& targets) {
    return head_->evaluate(hidden(X), targets);
  }

  OutputLayer<T>& head() { return *head_; }
  Size embedding_width() const { return input_.embeddings().rows; }  ///< e
  /// Embeddings first … first + out.cols − 1, on the host.
  void embeddings(Size first, MatrixView<T> out) const {
    backend_->template transfer<T>(input_.embeddings().columns(first, out.cols), out);
  }
  std::int64_t steps() const { return steps_; }
  double last_eta() const { return eta_; }  ///< of the head, in the last step
  /// Seconds spent in the head, of all steps taken by this object.
  double head_seconds() const { return head_seconds_; }

  void visit_state(StateVisitor& state);

 private:
  SparseBatch<T> by_slot(const SparseBatch<T>& X);
  bool gradient_is_finite() const;
  double squared_gradient_norm() const;

  NetworkOptions options_;
  std::shared_ptr<Backend<T>> backend_;
  InputLayer<T> input_;
  std::vector<HiddenLayer<T>> hidden_;
  std::unique_ptr<OutputLayer<T>> head_;
  HeadRate<T> head_rate_;
  std::int64_t steps_ = 0;
  double eta_ = 0;
  double head_seconds_ = 0;
  std::vector<ConstView<T>> activations_;  // A₀, A₁, …, H
  std::vector<Matrix<T>> gradients_;       // of the same
  std::vector<std::int64_t> slot_offsets_;
};

}  // namespace widehead
