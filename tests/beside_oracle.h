#pragma once
/// A layer and the oracle side by side.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "compare.h"
#include "heads_under_test.h"
#include "oracle.h"
#include "tolerance.h"

namespace widehead::test {

inline constexpr double lambda = 0.15;  // λ₁ of every step, at most

/// A layer and the oracle, which start from the same W and take the same steps.
template <class T>
class BesideOracle {
 public:
  BesideOracle(const HeadCase& head, const LayerOptions& options, int threads = 1)
      : layer(make_layer<T>(head, options, threads)),
        oracle(to_double(layer->weights()), options.weight_decay),
        head_(head) {}

  void step(const Minibatch& minibatch) {
    const TypedMinibatch<T> typed(minibatch);
    const double eta = eta_for(minibatch, lambda);
    Padded<T> grad_H(minibatch.H.rows(), minibatch.H.cols());
    const double loss = layer->step(typed.H, typed.targets(), eta, grad_H);
    const auto truth = oracle.step(minibatch, eta);
    ++steps_;
    EXPECT_TRUE(is_near(loss, truth.loss, limit(), truth.loss_scale)) << "loss of step " << steps_;
    EXPECT_TRUE(is_near<T>(grad_H, truth.grad_H, limit(), truth.grad_scale)) << "∇H of step " << steps_;
    EXPECT_TRUE(grad_H.rim_is_intact());
  }

  void compare_state() {
    EXPECT_TRUE(is_near<T>(layer->weights(), oracle.W, limit(), oracle.W_scale)) << "W";
    const auto Q = layer->gram();
    EXPECT_TRUE(is_near<T>(Q, oracle.Q(), limit(), oracle.W_scale * oracle.W_scale)) << "Q";
    for (Size j = 0; head_.keeps_Q_symmetric && j < Q.cols(); ++j) {
      for (Size i = 0; i < j; ++i) ASSERT_EQ(Q(i, j), Q(j, i)) << "Q is not symmetric at " << i << ", " << j;
    }
    EXPECT_EQ(layer->steps(), steps_);
  }

  std::unique_ptr<OutputLayer<T>> layer;
  Oracle oracle;

 private:
  /// U contracts by 1 − λ₁ at most in a step, so cond(U) is at most this without a stabiliser.
  double limit() const {
    const double condition = std::pow(1 - lambda, -static_cast<double>(steps_));
    return tolerance::layer<T>(steps_, condition) + tolerance::long_sum<T>(layer->outputs());
  }
  HeadCase head_;
  std::int64_t steps_ = 0;
};

}  // namespace widehead::test
