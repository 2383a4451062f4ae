/// Layers trained with each loss, beside the definition.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "compare.h"
#include "errors.h"
#include "heads_under_test.h"
#include "loss_oracle.h"
#include "losses_under_test.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

INSTANTIATE_TEST_SUITE_P(All, HeadTest, testing::ValuesIn(heads_with_losses()), case_name);

double counter(const Diagnostics& figures, const std::string& name) {
  const auto found =
      std::find_if(figures.begin(), figures.end(), [&](const auto& figure) { return figure.name == name; });
  EXPECT_NE(found, figures.end()) << name;
  return found->value;
}

TEST_P(HeadTest, StepIsThatOfTheDefinitionWithEveryLoss) {
  run([&]<class T>() {
    double absorbs = 0, flips = 0, deflated = 0;
    std::uint64_t seed = 70 * seeds(1).front();
    for (const auto& loss : losses_under_test()) {
      for (const double weight_decay : {0.0, 0.01}) {
        for (const Initial initial : {Initial::normal, Initial::zero}) {
          for (const bool weighted : {false, true}) {
            for (const Size K : {1, 7}) {
              if (initial == Initial::zero && !loss.leaves_zero) continue;
              SCOPED_TRACE(fmt::format("seed {}: {}, weight decay {}, initial W {}, {}, K = {}", ++seed, loss.label,
                                       weight_decay, initial == Initial::zero ? "zero" : "normal",
                                       weighted ? "weighted" : "alike", K));
              Dice dice(seed);
              LayerOptions options{.outputs = 40, .dim = 8, .weight_decay = weight_decay, .initial = initial};
              BesideLossOracle<T> pair(GetParam(), loss, options);
              for (int t = 0; t < 60 && !HasFailure(); ++t) {
                pair.step(pair.make(dice, {40, 8, 5, K, weighted}));
                if (t % 20 == 7) pair.compare_state();
              }
              if (HasFailure()) return;
              pair.compare_state();
              if (GetParam().options.head == "windowed") {
                const auto figures = pair.layer->counters();
                absorbs += counter(figures, "absorbs");
                flips += counter(figures, "flips");
                deflated += counter(figures, "deflated");
              }
            }
          }
        }
      }
    }
    if (GetParam().options.head != "windowed") return;  // else: windows have closed in the way that the case is for
    const auto& windowed = GetParam().options.windowed;
    const bool flips_only = windowed.absorb_limit == 1 || GetParam().device != "cpu";
    EXPECT_GT(flips_only ? flips : absorbs, 500);
    if (!flips_only && windowed.deflation.below > 0.5) {
      EXPECT_GT(deflated, 50);
    }
  });
}

TEST_P(HeadTest, StepOfEveryLossFollowsAChangingMAndExamplesWithoutTargets) {
  run([&]<class T>() {
    for (const auto& loss : losses_under_test()) {
      SCOPED_TRACE(loss.label);
      Dice dice(71 * seeds(1).front());
      BesideLossOracle<T> pair(GetParam(), loss,
                               {.outputs = 30, .dim = 7, .weight_decay = 0.01, .initial = Initial::normal});
      for (const Size m : {3, 20, 1, 5, 30, 2, 1, 9}) {  // more than the window, more than d
        for (const Size K : {2, 0}) {
          auto batch = pair.make(dice, {30, 7, m, K, true});
          if (m == 5) batch.offsets[1] = 0;  // the first example gives its targets to the second
          pair.step(batch);
        }
      }
      pair.compare_state();
      if (HasFailure()) return;
    }
  });
}

TEST_P(HeadTest, StepOfEveryLossIsExactAtTheEdgesOfEveryExtent) {
  run([&]<class T>() {
    for (const auto& loss : losses_under_test()) {
      for (const auto& [D, d] : {std::pair<Size, Size>{1, 1}, {1, 6}, {40, 1}, {3, 9}}) {
        if (D == 1 && std::holds_alternative<ZLoss>(loss.loss)) continue;  // one output does not vary
        for (const Size m : {1, 11}) {
          SCOPED_TRACE(fmt::format("{}, D = {}, d = {}, m = {}", loss.label, D, d, m));
          Dice dice(72 * seeds(1).front());
          BesideLossOracle<T> pair(GetParam(), loss, {.outputs = D, .dim = d, .initial = Initial::normal});
          for (int t = 0; t < 6; ++t) pair.step(pair.make(dice, {D, d, m, 2, true}));
          pair.compare_state();
          if (HasFailure()) return;
        }
      }
    }
  });
}

TEST_P(HeadTest, EvaluateIsTheLossAndGradientOfTheStepOfEveryLossAndChangesNothing) {
  run([&]<class T>() {
    for (const auto& loss : losses_under_test()) {
      SCOPED_TRACE(loss.label);
      Dice dice(73 * seeds(1).front());
      BesideLossOracle<T> pair(GetParam(), loss, {.outputs = 25, .dim = 6, .initial = Initial::normal});
      for (const Size m : {1, 5, 2, 9, 5, 4}) {
        const auto minibatch = pair.make(dice, {25, 6, m, 3, m == 5});
        const TypedMinibatch<T> typed(minibatch);
        const auto W = pair.layer->weights(), Q = pair.layer->gram(), w_bar = pair.layer->sum_of_rows();
        const auto steps = pair.layer->steps();
        Padded<T> grad_H(6, m);
        const double L = pair.layer->evaluate(typed.H, typed.targets(), grad_H);
        EXPECT_EQ(pair.layer->evaluate(typed.H, typed.targets()), L) << "without a gradient";
        EXPECT_TRUE(is_identical<T>(pair.layer->weights(), W));
        EXPECT_TRUE(is_identical<T>(pair.layer->gram(), Q));
        EXPECT_TRUE(is_identical<T>(pair.layer->sum_of_rows(), w_bar));
        EXPECT_EQ(pair.layer->steps(), steps);
        const auto truth = pair.oracle.evaluate(minibatch);
        EXPECT_TRUE(is_near(L, truth.loss, pair.limit(), truth.loss_scale));
        EXPECT_TRUE(is_near<T>(grad_H, truth.grad_H, pair.limit(), truth.grad_scale));
        EXPECT_TRUE(grad_H.rim_is_intact());
        pair.step(minibatch);  // whose loss and ∇H are compared with the same truth
      }
      pair.compare_state();
    }
  });
}

TEST_P(HeadTest, EtaForGivesTheContractionThatItWasAskedFor) {
  run([&]<class T>() {
    for (const auto& [loss, a] :
         {std::pair{squared_case(), 1.0}, {weighted_case(0.05, 1), 0.05}, {taylor_case(), 1.0}}) {
      SCOPED_TRACE(loss.label);
      LayerOptions options{.outputs = 25, .dim = 2};
      options.loss = loss.loss;
      const auto layer = make_layer<T>(GetParam(), options);
      Minibatch minibatch;
      minibatch.outputs = 25;
      minibatch.offsets = {0, 0, 0};
      minibatch.H = Matrix<double>(2, 2);
      minibatch.H(0, 0) = 2;  // orthogonal: ‖H diag(√w)‖₂² is the larger of 4 w₀ and 9 w₁
      minibatch.H(1, 1) = 3;
      const auto eta = [&](double lambda) {
        const TypedMinibatch<T> typed(minibatch);
        return layer->eta_for(typed.H, typed.targets(), lambda);
      };
      EXPECT_NEAR(2 * a * eta(0.25) * 9, 0.25, 1e-4);
      EXPECT_EQ(eta(0), 0);
      minibatch.weights = {4, 0.5};
      EXPECT_NEAR(2 * a * eta(0.25) * 16, 0.25, 1e-4);
      expect_throw<std::invalid_argument>([&] { eta(-1); }, {"lambda = -1"});
      expect_throw<std::invalid_argument>([&] { eta(NAN); }, {"lambda = nan"});
      minibatch.H = Matrix<double>(2, 2);
      EXPECT_EQ(eta(0.25), 0);
      EXPECT_EQ(layer->steps(), 0);
    }
  });
}

}  // namespace
}  // namespace widehead::test
