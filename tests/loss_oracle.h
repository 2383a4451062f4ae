#pragma once
/// The definition of a step for any loss: all outputs, the whole gradient by them, W itself, in double and in
/// plain loops. Beside it, a layer that takes the same steps.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "compare.h"
#include "heads_under_test.h"
#include "loss_definitions.h"
#include "oracle.h"

namespace widehead::test {

/// The targets of example j, each output once.
std::vector<Target> targets_of(const Minibatch& batch, Size j);

class LossOracle {
 public:
  /// @param W_transposed  W as layers hold it, d x D
  LossOracle(Matrix<double> W_transposed, LossCase loss, double weight_decay)
      : W(std::move(W_transposed)), W_scale(norm(W)), loss_(std::move(loss)), weight_decay_(weight_decay) {}

  struct Result {
    double loss = 0;        ///< Σⱼ wⱼ ℓ(Whⱼ)
    Matrix<double> R;       // D x m: its gradient by the outputs
    Matrix<double> grad_H;  // d x m
    // What may cancel, hence what roundings are relative to:
    double loss_scale = 0, grad_scale = 0, step_scale = 0;
    double largest_a = 0;  ///< of w|∂ℓ/∂q|
  };

  Result evaluate(const Minibatch& batch) const;

  /// A float η at which a step contracts W by `lambda` at most and moves no output by more than 1/2.
  double eta_for(const Minibatch& batch, const Result& result, double lambda) const;

  /// W ← (1 − ηλ) W − η R Hᵀ.
  void step(const Minibatch& batch, const Result& result, double eta);

  /// W H (D x m).
  Matrix<double> outputs(const Matrix<double>& H) const;
  /// WᵀW (d x d).
  Matrix<double> Q() const { return Oracle(Matrix<double>::copy_of(W)).Q(); }
  /// Wᵀ1 (d x 1).
  Matrix<double> sum_of_rows() const;
  const LossCase& loss() const { return loss_; }

  Matrix<double> W;  // d x D
  double W_scale;    ///< the largest ‖W‖_F so far, or step of it: their roundings are still there

 private:
  /// |a|, |b| and Σ|g|. From the library, as only the scale of roundings and the rate hang on them.
  std::array<double, 3> parts_of(std::span<const double> o, const std::vector<Target>& targets) const;

  LossCase loss_;
  double weight_decay_;
};

/// A layer and the oracle, which start from the same W and take the same steps.
template <class T>
class BesideLossOracle {
 public:
  BesideLossOracle(const HeadCase& head, const LossCase& loss, LayerOptions options)
      : layer([&] {
          options.loss = loss.loss;
          return make_layer<T>(head, options);
        }()),
        oracle(to_double(layer->weights()), loss, options.weight_decay),
        limit_(sizeof(T) == 4 ? 1e-5 : 1e-13) {}

  /// A minibatch for the loss: weights of targets are positive, and no target is near a pole, where a rounding
  /// of o is no longer small (what happens there is loss_test's business).
  Minibatch make(Dice& dice, const MinibatchShape& shape) const {
    auto batch = make_minibatch(dice, shape);
    const auto& loss = oracle.loss();
    if (!loss.y_is_a_value) {
      for (auto& y : batch.values) y = static_cast<double>(static_cast<float>(0.2 + std::abs(y)));
    }
    const auto O = oracle.outputs(batch.H);
    for (Size j = 0; j < batch.examples(); ++j) {
      for (auto e = batch.offsets[static_cast<std::size_t>(j)]; e < batch.offsets[static_cast<std::size_t>(j) + 1];
           ++e) {
        auto& output = batch.indices[static_cast<std::size_t>(e)];
        for (Size tries = 0; tries < shape.outputs; ++tries) {
          if (!(std::abs(O(output, j) - loss.pole) < std::abs(loss.pole) / 2)) break;
          output = static_cast<Index>((output + 1) % shape.outputs);
        }
      }
    }
    return batch;
  }

  void step(const Minibatch& minibatch) {
    const TypedMinibatch<T> typed(minibatch);
    const auto truth = oracle.evaluate(minibatch);
    const double eta = oracle.eta_for(minibatch, truth, 0.1);
    Padded<T> grad_H(minibatch.H.rows(), minibatch.H.cols());
    const double loss = layer->step(typed.H, typed.targets(), eta, grad_H);
    oracle.step(minibatch, truth, eta);
    ++steps_;
    EXPECT_TRUE(is_near(loss, truth.loss, limit_, truth.loss_scale)) << "loss of step " << steps_;
    EXPECT_TRUE(is_near<T>(grad_H, truth.grad_H, limit_, truth.grad_scale)) << "∇H of step " << steps_;
    EXPECT_TRUE(grad_H.rim_is_intact());
  }

  void compare_state() {
    const double scale = oracle.W_scale;
    EXPECT_TRUE(is_near<T>(layer->weights(), oracle.W, limit_, scale)) << "W after " << steps_ << " steps";
    EXPECT_TRUE(is_near<T>(layer->gram(), oracle.Q(), limit_, scale * scale)) << "Q after " << steps_ << " steps";
    EXPECT_TRUE(is_near<T>(layer->sum_of_rows(), oracle.sum_of_rows(), limit_,
                           std::sqrt(static_cast<double>(layer->outputs())) * scale))
        << "w̄ after " << steps_ << " steps";
    EXPECT_EQ(layer->steps(), steps_);
  }
  double limit() const { return limit_; }

  std::unique_ptr<OutputLayer<T>> layer;
  LossOracle oracle;

 private:
  double limit_;  // of the dtype, for some tens of steps at which no output moves far
  std::int64_t steps_ = 0;
};

}  // namespace widehead::test
