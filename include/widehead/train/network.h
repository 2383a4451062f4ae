#pragma once
/// A feed-forward network: sparse input layer, hidden layers, and an output layer ("head") of any kind.
///   X → A₀ → A₁ → … → H → head
/// Lower layers minimise the mean loss of a minibatch with SGD or Adam; the head takes its own exact gradient step.
///
/// Where the head can enqueue its steps (OutputLayer::enqueues), so can the network: forward, head, backward and update
/// follow one another on the device, and the host prepares the next step meanwhile. Whether all went well it learns
/// from `settle`.

#include <chrono>
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

  /// Whether steps can be enqueued.
  bool enqueues() const { return head_->enqueues(); }
  /// The same step without waiting for the device. A run that diverges so goes on until `settle`, and then the network
  /// is lost.
  /// @param timed  the device is asked when it came to this step, to its head, to what comes after that, and to the
  ///               end, each being begun by itself: clocks of the host say nothing of work that is enqueued
  /// @throws NumericalError where that is known already
  void enqueue_step(const SparseBatch<T>& X, const SparseBatch<T>& targets, double lr, double head_factor,
                    bool timed = false);
  /// Waits for the steps enqueued since the last call, and returns their loss, summed over examples.
  /// @throws NumericalError naming the steps, where the run has diverged
  double settle();
  /// Looks at all parameters of the layers below the head: where nobody has seen the gradients.
  /// @throws NumericalError
  void require_finite();

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
  /// Seconds spent in the head, of all steps taken by this object; of those enqueued only the timed ones that have been
  /// settled count.
  double head_seconds() const { return head_seconds_; }
  /// All seconds of those enqueued steps.
  double timed_seconds() const { return timed_seconds_; }

  void visit_state(StateVisitor& state);
  /// What a run of enqueued steps needs besides to go on as if it had not stopped; after `settle`.
  void visit_enqueued_state(StateVisitor& state) { head_rate_.visit_enqueued_state(state); }

 private:
  using Clock = std::chrono::steady_clock;

  ConstView<T> forward(const SparseBatch<T>& X);
  MatrixView<T> gradient(std::size_t k) { return gradients_[k].scratch(activations_[k].rows, activations_[k].cols); }
  void backward(const SparseBatch<T>& X);
  SparseBatch<T> by_slot(const SparseBatch<T>& X);
  void note_times();
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
  double head_seconds_ = 0, timed_seconds_ = 0;
  std::unique_ptr<Stopwatch> stopwatch_;   // of timed steps
  std::int64_t settled_steps_ = 0;         // as of the last settle
  std::vector<ConstView<T>> activations_;  // A₀, A₁, …, H
  std::vector<Matrix<T>> gradients_;       // of the same
  std::vector<std::int64_t> slot_offsets_;
  Matrix<double> gradient_norm_;  // 1 x 1, squared, on the device
};

}  // namespace widehead
