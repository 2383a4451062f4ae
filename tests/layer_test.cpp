/// Every head against the definition: W, Q, ∇H and the loss beside the explicit update in double.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "beside_oracle.h"
#include "compare.h"
#include "heads_under_test.h"
#include "oracle.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

INSTANTIATE_TEST_SUITE_P(All, HeadTest, testing::ValuesIn(in_each_dtype(all_heads())), case_name);

/// Calls body(options, weighted) with and without weight decay, an initial W, and weights.
template <class Body>
void for_each_setting(const std::vector<double>& weight_decays, const Body& body) {
  for (const double weight_decay : weight_decays) {
    for (const Initial initial : {Initial::zero, Initial::normal}) {
      for (const bool weighted : {false, true}) {
        SCOPED_TRACE(fmt::format("weight decay {}, initial W {}, {}", weight_decay,
                                 initial == Initial::zero ? "zero" : "normal", weighted ? "weighted" : "not weighted"));
        LayerOptions options;
        options.weight_decay = weight_decay;
        options.initial = initial;
        options.seed = 5;
        body(options, weighted);
      }
    }
  }
}

TEST_P(HeadTest, StepKeepsImpliedWeightsEqualToDense) {
  run([&]<class T>() {
    for_each_setting(weight_decays(), [&](LayerOptions options, bool weighted) {
      for (const auto seed : seeds(2)) {
        SCOPED_TRACE(fmt::format("seed {}", seed));
        Dice dice(seed);
        options.outputs = dice.between(2, 60);
        options.dim = dice.between(2, 12);
        BesideOracle<T> pair(GetParam(), options);
        for (int t = 0; t < 20; ++t) {  // m grows and shrinks, and exceeds d
          const Size m = dice.between(1, 2 * options.dim), K = dice.between(0, 5);
          pair.step(make_minibatch(dice, {options.outputs, options.dim, m, K, weighted}));
        }
        pair.compare_state();
      }
    });
  });
}

TEST_P(HeadTest, StepIsExactAtTheEdgesOfEveryExtent) {
  run([&]<class T>() {
    for_each_setting(weight_decays(), [&](LayerOptions options, bool weighted) {
      for (const auto& [D, d] : {std::pair<Size, Size>{1, 1}, {1, 6}, {40, 1}, {3, 9}}) {
        for (const Size m : {1, 2, 11}) {
          for (const Size K : {0, 1, 5}) {
            SCOPED_TRACE(fmt::format("D = {}, d = {}, m = {}, K = {}", D, d, m, K));
            Dice dice(31);
            options.outputs = D;
            options.dim = d;
            BesideOracle<T> pair(GetParam(), options);
            for (int t = 0; t < 6; ++t) pair.step(make_minibatch(dice, {D, d, m, K, weighted}));
            pair.compare_state();
          }
        }
      }
    });
  });
}

TEST_P(HeadTest, StepFollowsAChangingM) {
  run([&]<class T>() {
    Dice dice(32);
    BesideOracle<T> pair(GetParam(), {.outputs = 30, .dim = 7, .initial = Initial::normal});
    for (const Size m : {3, 20, 1, 5, 21, 2, 1}) pair.step(make_minibatch(dice, {30, 7, m, 3, true}));
    pair.compare_state();
  });
}

TEST_P(HeadTest, StepAddsRepeatedTargetsUp) {
  run([&]<class T>() {
    Dice dice(33);
    BesideOracle<T> pair(GetParam(), {.outputs = 9, .dim = 4});
    for (int t = 0; t < 6; ++t) {
      auto minibatch = make_minibatch(dice, {9, 4, 3, 4});
      std::fill(minibatch.indices.begin(), minibatch.indices.end(), t % 9);  // one output, twelve times
      pair.step(minibatch);
    }
    pair.compare_state();
  });
}

TEST_P(HeadTest, ExampleOfWeightZeroIsAsIfAbsent) {
  run([&]<class T>() {
    Dice dice(34);
    BesideOracle<T> pair(GetParam(), {.outputs = 20, .dim = 5, .initial = Initial::normal});
    auto minibatch = make_minibatch(dice, {20, 5, 4, 2});
    minibatch.weights = {0, 0, 0, 0};
    const auto before = pair.layer->weights();
    pair.step(minibatch);
    EXPECT_TRUE(is_identical<T>(pair.layer->weights(), before));
    EXPECT_EQ(pair.oracle.evaluate(minibatch).loss, 0);
  });
}

TEST_P(HeadTest, StepWithEtaZeroChangesNothing) {
  run([&]<class T>() {
    Dice dice(35);
    BesideOracle<T> pair(GetParam(), {.outputs = 20, .dim = 5, .initial = Initial::normal});
    for (int t = 0; t < 3; ++t) pair.step(make_minibatch(dice, {20, 5, 4, 2}));
    for (const Size m : {1, 4}) {
      const auto minibatch = make_minibatch(dice, {20, 5, m, 2});
      const TypedMinibatch<T> typed(minibatch);
      const auto W = pair.layer->weights(), Q = pair.layer->gram();
      const double loss = pair.layer->step(typed.H, typed.targets(), 0);
      const auto truth = pair.oracle.evaluate(minibatch);
      EXPECT_TRUE(is_near(loss, truth.loss, tolerance::layer<T>(4, 2), truth.loss_scale));
      EXPECT_TRUE(is_near<T>(pair.layer->weights(), to_double(W), tolerance::layer<T>(4, 2))) << "a window may close";
      EXPECT_TRUE(is_identical<T>(pair.layer->gram(), Q));
    }
  });
}

TEST_P(HeadTest, EvaluateIsTheLossAndGradientOfTheStepAndChangesNothing) {
  run([&]<class T>() {
    for (const bool weighted : {false, true}) {
      Dice dice(36);
      BesideOracle<T> pair(GetParam(), {.outputs = 25, .dim = 6, .initial = Initial::normal});
      for (const Size m : {1, 5, 2, 9}) {
        const auto minibatch = make_minibatch(dice, {25, 6, m, 3, weighted});
        const TypedMinibatch<T> typed(minibatch);
        const auto W = pair.layer->weights(), Q = pair.layer->gram();
        const auto steps = pair.layer->steps();
        Padded<T> grad_H(6, m);
        const double loss = pair.layer->evaluate(typed.H, typed.targets(), grad_H);
        EXPECT_EQ(pair.layer->evaluate(typed.H, typed.targets()), loss) << "without a gradient";
        EXPECT_TRUE(is_identical<T>(pair.layer->weights(), W));
        EXPECT_TRUE(is_identical<T>(pair.layer->gram(), Q));
        EXPECT_EQ(pair.layer->steps(), steps);
        const auto truth = pair.oracle.evaluate(minibatch);
        const double limit = tolerance::layer<T>(5, 2);
        EXPECT_TRUE(is_near(loss, truth.loss, limit, truth.loss_scale));
        EXPECT_TRUE(is_near<T>(grad_H, truth.grad_H, limit, truth.grad_scale));
        EXPECT_TRUE(grad_H.rim_is_intact());
        pair.step(minibatch);  // whose loss and ∇H are compared with the same truth
      }
      pair.compare_state();
    }
  });
}

TEST_P(HeadTest, StepReadsStridedHiddenVectorsAndMayGoWithoutAGradient) {
  run([&]<class T>() {
    Dice dice(37);
    const LayerOptions options{.outputs = 25, .dim = 6, .initial = Initial::normal};
    const auto a = make_layer<T>(GetParam(), options), b = make_layer<T>(GetParam(), options);
    for (const Size m : {1, 5, 3}) {
      const auto minibatch = make_minibatch(dice, {25, 6, m, 3, m == 5});
      const TypedMinibatch<T> typed(minibatch);
      Padded<T> H(typed.H);
      Matrix<T> grad_H(6, m);
      const double eta = eta_for(minibatch, lambda);
      const double loss = a->step(H, typed.targets(), eta);
      EXPECT_TRUE(
          is_near(b->step(typed.H, typed.targets(), eta, grad_H), loss, tolerance::layer<T>(3), std::abs(loss) + 1));
      EXPECT_TRUE(is_identical<T>(H, typed.H));
    }
    EXPECT_TRUE(is_near<T>(a->weights(), to_double(b->weights()), tolerance::layer<T>(3)));
  });
}

TEST_P(HeadTest, GradientIsThatOfTheLoss) {
  run([&]<class T>() {
    Dice dice(38);
    BesideOracle<T> pair(GetParam(), {.outputs = 25, .dim = 6, .initial = Initial::normal});
    pair.step(make_minibatch(dice, {25, 6, 4, 2}));
    auto minibatch = make_minibatch(dice, {25, 6, 3, 2, true});
    Matrix<T> grad_H(6, 3);
    {
      const TypedMinibatch<T> typed(minibatch);
      pair.layer->evaluate(typed.H, typed.targets(), grad_H);
    }
    const double scale = pair.oracle.evaluate(minibatch).loss_scale;
    const auto loss_at = [&](Size i, Size j, double shift) {
      minibatch.H(i, j) += shift;
      const TypedMinibatch<T> typed(minibatch);
      minibatch.H(i, j) -= shift;
      return pair.layer->evaluate(typed.H, typed.targets());
    };
    for (Size j = 0; j < 3; ++j) {
      for (Size i = 0; i < 6; ++i) {  // L is quadratic: a central difference is exact but for rounding
        const double slope = loss_at(i, j, 0.5) - loss_at(i, j, -0.5);
        EXPECT_TRUE(is_near(static_cast<double>(grad_H(i, j)), slope, tolerance::layer<T>(2), scale)) << i << ", " << j;
      }
    }
  });
}

}  // namespace
}  // namespace widehead::test
