/// softmax, hierarchical, sampled: each against its definition.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cross_entropy_heads.h"
#include "errors.h"
#include "widehead/dense_layer.h"
#include "widehead/errors.h"
#include "widehead/synthetic.h"

namespace widehead::test {
namespace {

INSTANTIATE_TEST_SUITE_P(All, SoftmaxHeadTest, testing::ValuesIn(softmax_cases()), softmax_case_name);

// ── the step ────────────────────────────────────────────────────────────────────────────────────

TEST_P(SoftmaxHeadTest, StepFollowsTheDefinition) {
  run([&]<class T>() {
    for (const auto& shape : {MinibatchShape{1, 1, 1, 1},
                              {1, 2, 3, 2, true},
                              {7, 3, 1, 0},
                              {7, 3, 1, 1},
                              {7, 3, 4, 5},
                              {53, 5, 6, 5, true},
                              {40, 8, 70, 1},
                              {300, 16, 130, 2, true}}) {
      for (const double weight_decay : {0.0, 0.1}) {
        if (weight_decay > 0 && !is("softmax")) continue;
        SCOPED_TRACE(fmt::format("D = {}, d = {}, m = {}, K = {}, λ = {}", shape.outputs, shape.dim, shape.batch,
                                 shape.nonzeros, weight_decay));
        BesideDefinition<T> pair(GetParam(), {.outputs = shape.outputs,
                                              .dim = shape.dim,
                                              .weight_decay = weight_decay,
                                              .initial = Initial::normal,
                                              .initial_scale = 0.5});
        Dice dice(11);
        for (int t = 0; t < 5; ++t) {
          const auto minibatch = make_positive_minibatch(dice, shape);
          pair.step(minibatch, eta_for(minibatch, 0.5));
          pair.compare_state();
        }
      }
    }
  });
}

TEST_P(SoftmaxHeadTest, WeightsAreThoseOfTheDefinitionAfter200Steps) {
  run([&]<class T>() {
    BesideDefinition<T> pair(GetParam(), {.outputs = 60, .dim = 8});
    Dice dice(12);
    for (int t = 0; t < 200; ++t) {
      const auto minibatch = make_positive_minibatch(dice, {60, 8, dice.between(1, 9), dice.between(0, 3), true});
      pair.step(minibatch, eta_for(minibatch, 0.5));
    }
    EXPECT_GT(norm(pair.oracle.W), 0.3) << "the test has no power";
    pair.compare_state();
    EXPECT_EQ(pair.layer->steps(), 200);
  });
}

/// L as a step sees it, without the step: a new layer each time, so that a head that samples draws the same.
double loss_seen_by_step(const SoftmaxCase& c, const LayerOptions& options, const Minibatch& minibatch,
                         Matrix<double>& grad_H) {
  const TypedMinibatch<double> typed(minibatch);
  return make_softmax_layer<double>(c, options)->step(typed.H, typed.targets(), 0, grad_H);
}

TEST(SoftmaxHeads, GradientIsTheDerivativeOfTheLossOfTheStep) {
  for (const auto* head : {"softmax", "hierarchical", "sampled"}) {
    SCOPED_TRACE(head);
    const SoftmaxCase c{head, Dtype::f64, 1};
    Dice dice(13);
    const LayerOptions options{.outputs = 30, .dim = 4, .initial = Initial::normal, .initial_scale = 1};
    auto minibatch = make_positive_minibatch(dice, {30, 4, 3, 3, true});
    minibatch.weights[1] = 0.7;
    Matrix<double> grad_H(4, 3), ignored(4, 3);
    loss_seen_by_step(c, options, minibatch, grad_H);
    constexpr double h = 1e-5;
    for (Size i = 0; i < grad_H.size(); ++i) {
      double& x = minibatch.H.data()[i];
      const double before = x;
      x = before + h;
      const double above = loss_seen_by_step(c, options, minibatch, ignored);
      x = before - h;
      const double below = loss_seen_by_step(c, options, minibatch, ignored);
      x = before;
      EXPECT_NEAR(grad_H.data()[i], (above - below) / (2 * h), 1e-8) << i;
    }
  }
}

TEST_P(SoftmaxHeadTest, EvaluateIsTheExactCrossEntropyAndChangesNothing) {
  run([&]<class T>() {
    Dice dice(14);
    const auto layer =
        make_softmax_layer<T>(GetParam(), {.outputs = 37, .dim = 5, .initial = Initial::normal, .initial_scale = 0.7});
    for (const Size K : {0, 1, 5}) {
      const auto minibatch = make_positive_minibatch(dice, {37, 5, 4, K, true});
      const TypedMinibatch<T> typed(minibatch);
      const auto oracle = oracle_of<T>(*layer);  // not sampled: the full softmax
      const auto truth = oracle.evaluate(minibatch);
      Padded<T> grad_H(5, 4);
      const double with_gradient = layer->evaluate(typed.H, typed.targets(), grad_H);
      EXPECT_TRUE(is_near(with_gradient, truth.loss, tolerance::product<T>(20), truth.mass * 10));
      EXPECT_TRUE(is_near<T>(grad_H, truth.grad_H, tolerance::product<T>(20), truth.mass * 10));
      EXPECT_EQ(layer->evaluate(typed.H, typed.targets()), with_gradient);
      EXPECT_TRUE(is_near<T>(layer->weights(), oracle.W, 0, 1));
      EXPECT_EQ(layer->steps(), 0);
      if (K == 0) {
        EXPECT_EQ(with_gradient, 0);
      }
    }
  });
}

TEST_P(SoftmaxHeadTest, RunsRepeatBitForBit) {
  run([&]<class T>() {
    const auto go = [&] {
      auto layer = make_softmax_layer<T>(GetParam(), {.outputs = 500, .dim = 40, .initial = Initial::normal});
      Dice dice(15);
      for (int t = 0; t < 6; ++t) {
        const TypedMinibatch<T> typed(make_positive_minibatch(dice, {500, 40, 90, 3}));
        layer->step(typed.H, typed.targets(), 1e-3);
      }
      return layer->weights();
    };
    EXPECT_TRUE(is_identical<T>(go(), go()));
  });
}

TEST_P(SoftmaxHeadTest, StepWithoutAGradientIsTheSameStep) {
  run([&]<class T>() {
    Dice dice(16);
    const TypedMinibatch<T> typed(make_positive_minibatch(dice, {50, 6, 7, 2, true}));
    const LayerOptions options{.outputs = 50, .dim = 6, .initial = Initial::normal};
    const auto a = make_softmax_layer<T>(GetParam(), options), b = make_softmax_layer<T>(GetParam(), options);
    Matrix<T> grad_H(6, 7);
    EXPECT_EQ(a->step(typed.H, typed.targets(), 0.1, grad_H), b->step(typed.H, typed.targets(), 0.1));
    EXPECT_TRUE(is_identical<T>(a->weights(), b->weights()));
  });
}

TEST_P(SoftmaxHeadTest, EnqueuedStepsAreTheSameSteps) {
  run([&]<class T>() {
    constexpr Size d = 6, m = 7;
    Dice dice(26);
    const LayerOptions options{.outputs = 50, .dim = d, .initial = Initial::normal};
    const auto a = make_softmax_layer<T>(GetParam(), options), b = make_softmax_layer<T>(GetParam(), options);
    auto& memory = b->backend().memory();
    double loss = 0;
    Matrix<T> grad_a(d, m), grad_b(d, m), H_there(d, m, memory), grad_there(d, m, memory);
    for (int t = 0; t < 3; ++t) {
      const TypedMinibatch<T> typed(make_positive_minibatch(dice, {50, d, m, 2, true}));
      loss += a->step(typed.H, typed.targets(), 0.1, grad_a);
      b->backend().template transfer<T>(typed.H, H_there);
      b->enqueue_step(H_there, typed.targets(), 0.1, grad_there);
      b->backend().template transfer<T>(grad_there.view(), grad_b);
      EXPECT_TRUE(is_identical<T>(grad_a, grad_b));
    }
    EXPECT_NEAR(b->settle(), loss, 8 * tolerance::epsilon<T> * loss);
    EXPECT_EQ(b->settle(), 0);
    EXPECT_TRUE(is_identical<T>(a->weights(), b->weights()));
    EXPECT_EQ(b->steps(), 3);
    const TypedMinibatch<T> typed(make_positive_minibatch(dice, {50, d, m, 2}));  // and a step that looks
    EXPECT_EQ(b->step(typed.H, typed.targets(), 0.1), a->step(typed.H, typed.targets(), 0.1));
    EXPECT_TRUE(is_identical<T>(a->weights(), b->weights()));
  });
}

template <class T>
void expect_nan_is_told() {
  const auto layer = make_softmax_layer<T>({"hierarchical", Dtype::f64, 1, "cuda"},
                                           {.outputs = 50, .dim = 6, .initial = Initial::normal});
  Dice dice(27);
  TypedMinibatch<T> typed(make_positive_minibatch(dice, {50, 6, 7, 2}));
  typed.H(3, 4) = std::numeric_limits<T>::quiet_NaN();
  Matrix<T> H_there(6, 7, layer->backend().memory());
  layer->backend().template transfer<T>(typed.H, H_there);
  layer->enqueue_step(H_there, typed.targets(), 0.1, {});
  EXPECT_THROW(layer->settle(), NumericalError);
  EXPECT_EQ(layer->settle(), 0);
}
TEST(SoftmaxHeads, EnqueuedStepThatIsNotFiniteIsTold_Cuda) {
  if (cuda_devices() == 0) GTEST_SKIP() << "there is no GPU here";
  expect_nan_is_told<float>();
  expect_nan_is_told<double>();
}

// ── probabilities and scores ────────────────────────────────────────────────────────────────────

TEST_P(SoftmaxHeadTest, ProbabilitiesAreThoseOfTheDefinitionAndSumToOne) {
  run([&]<class T>() {
    constexpr Size D = 61, d = 6, m = 3;
    const auto layer =
        make_softmax_layer<T>(GetParam(), {.outputs = D, .dim = d, .initial = Initial::normal, .initial_scale = 1});
    Dice dice(17);
    const auto minibatch = make_minibatch(dice, {D, d, m, 4});  // values of any sign: log p does not depend on them
    const TypedMinibatch<T> typed(minibatch);
    const auto oracle = oracle_of<T>(*layer);

    std::vector<Index> rows(D);
    std::iota(rows.begin(), rows.end(), 0);
    Matrix<double> p(D, m);
    layer->probabilities(typed.H, rows, p);
    std::vector<double> log_p(minibatch.indices.size());
    layer->log_prob(typed.H, typed.targets(), log_p);
    for (Size j = 0; j < m; ++j) {
      const auto truth = oracle.log_p(minibatch.H, j);
      double sum = 0;
      for (Size i = 0; i < D; ++i) {
        sum += p(i, j);
        EXPECT_NEAR(std::log(p(i, j)), truth[static_cast<std::size_t>(i)], 200 * tolerance::epsilon<T>);
      }
      EXPECT_NEAR(sum, 1, 100 * tolerance::epsilon<T>);
      for (auto e = static_cast<std::size_t>(minibatch.offsets[static_cast<std::size_t>(j)]);
           e < static_cast<std::size_t>(minibatch.offsets[static_cast<std::size_t>(j) + 1]); ++e) {
        EXPECT_NEAR(log_p[e], truth[static_cast<std::size_t>(minibatch.indices[e])], 200 * tolerance::epsilon<T>);
      }
    }
  });
}

TEST_P(SoftmaxHeadTest, PerplexityIsTheExponentialOfTheLossPerTarget) {
  run([&]<class T>() {
    Dice dice(18);
    const auto minibatch = make_positive_minibatch(dice, {30, 4, 5, 2});
    const TypedMinibatch<T> typed(minibatch);
    const auto layer = make_softmax_layer<T>(GetParam(), {.outputs = 30, .dim = 4, .initial = Initial::normal});
    const double mass = std::accumulate(minibatch.values.begin(), minibatch.values.end(), 0.0);
    const double loss = layer->evaluate(typed.H, typed.targets());
    EXPECT_NEAR(layer->perplexity(typed.H, typed.targets()), std::exp(loss / mass), 1e4 * tolerance::epsilon<T>);
  });
}

TEST_P(SoftmaxHeadTest, TopKRanksByProbability) {
  run([&]<class T>() {
    constexpr Size D = 90, d = 5, m = 3, k = 12;
    const auto layer =
        make_softmax_layer<T>(GetParam(), {.outputs = D, .dim = d, .initial = Initial::normal, .initial_scale = 1});
    Dice dice(19);
    const auto H = dice.matrix<double>(d, m);
    Matrix<T> H_T(d, m);
    for (Size i = 0; i < H.size(); ++i) H_T.data()[i] = static_cast<T>(H.data()[i]);
    const auto best = layer->top_k(H_T, k);
    const std::vector<Index> rows{77, 0, 78, 5, 77};
    Matrix<T> scores(5, m);
    layer->scores(H_T, rows, scores);
    for (Size j = 0; j < m; ++j) {
      const auto log_p = oracle_of<T>(*layer).log_p(H, j);
      std::vector<Index> order(D);
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](Index a, Index b) {
        return log_p[static_cast<std::size_t>(a)] > log_p[static_cast<std::size_t>(b)];
      });
      for (Size i = 0; i < k; ++i) EXPECT_EQ(best.outputs(i, j), order[static_cast<std::size_t>(i)]);
      // Scores are log p, but for a constant of the example where the head has W h.
      const double shift = is("hierarchical") ? 0 : static_cast<double>(scores(0, j)) - log_p[77];
      for (Size r = 0; r < 5; ++r) {
        const auto truth = log_p[static_cast<std::size_t>(rows[static_cast<std::size_t>(r)])] + shift;
        EXPECT_NEAR(static_cast<double>(scores(r, j)), truth, 200 * tolerance::epsilon<T>);
      }
    }
  });
}

TEST_P(SoftmaxHeadTest, WeightsStartAsThoseOfTheDenseHead) {
  run([&]<class T>() {
    const LayerOptions options{.outputs = 30, .dim = 4, .initial = Initial::normal, .seed = 5};
    const auto layer = make_softmax_layer<T>(GetParam(), options);
    DenseLayer<T> dense(options, backend_of<T>(GetParam().device, 1));
    EXPECT_TRUE(is_identical<T>(layer->weights(), dense.weights()));
    EXPECT_TRUE(is_identical<T>(layer->gram(), dense.gram()));
    EXPECT_EQ(norm(make_softmax_layer<T>(GetParam(), {.outputs = 30, .dim = 4})->weights()), 0);
  });
}

TEST_P(SoftmaxHeadTest, LearningRateGoesByTheCurvatureOfTheSoftmax) {
  run([&]<class T>() {
    Dice dice(20);
    const TypedMinibatch<T> typed(make_positive_minibatch(dice, {9, 3, 4, 1}));
    const auto layer = make_softmax_layer<T>(GetParam(), {.outputs = 9, .dim = 3});
    const double eta = layer->eta_for(typed.H, typed.targets(), 0.5);
    EXPECT_NEAR(2 * eta * 0.25 * spectral_norm_squared<T>(typed.H), 0.5, 1e-6);
    EXPECT_EQ(layer->loss_name(), "cross-entropy");
    EXPECT_TRUE(layer->has_probabilities());
    EXPECT_EQ(layer->head(), GetParam().head);
  });
}

// ── what they refuse ────────────────────────────────────────────────────────────────────────────

TEST_P(SoftmaxHeadTest, RefusesNegativeTargetsAndStaysAsItWas) {
  run([&]<class T>() {
    Dice dice(21);
    auto minibatch = make_positive_minibatch(dice, {9, 3, 4, 2});
    minibatch.values[5] = -0.25;
    const TypedMinibatch<T> typed(minibatch);
    const auto layer = make_softmax_layer<T>(GetParam(), {.outputs = 9, .dim = 3, .initial = Initial::normal});
    const auto before = layer->weights();
    const std::vector<std::string> words{"values[5] = -0.25", GetParam().head};
    expect_throw<std::invalid_argument>([&] { layer->step(typed.H, typed.targets(), 0.1); }, words);
    expect_throw<std::invalid_argument>([&] { layer->evaluate(typed.H, typed.targets()); }, words);
    EXPECT_TRUE(is_identical<T>(layer->weights(), before));
  });
}

TEST_P(SoftmaxHeadTest, StepThatWouldOverflowIsNotTaken) {
  run([&]<class T>() {
    const double most = static_cast<double>(std::numeric_limits<T>::max()), root = std::sqrt(most);
    struct Case {
      const char* what;
      double h, y, weight, eta;
    };
    for (const auto& each :
         {Case{"logits", most / 100, 1, 1, 0}, Case{"the update", root, 1, 1, root * 10},
          Case{"weights times values", 1, root * 100, root, 1e-3}, Case{"the gradient", 1, most / 10, 1, 0},
          Case{"an example without targets", most / 100, 0, 1, 0}}) {
      const auto [what, h, y, weight, rate] = each;
      const double eta = rate;  // older compilers do not capture a part of a structure
      SCOPED_TRACE(what);
      Dice dice(22);
      auto minibatch = make_positive_minibatch(dice, {20, 4, 3, 2});
      const LayerOptions options{.outputs = 20, .dim = 4, .initial = Initial::normal, .initial_scale = 1e3};
      const auto a = make_softmax_layer<T>(GetParam(), options), b = make_softmax_layer<T>(GetParam(), options);
      const TypedMinibatch<T> good(minibatch);
      for (Size i = 0; i < minibatch.H.size(); ++i) minibatch.H.data()[i] *= h;
      for (auto& value : minibatch.values) value = y;
      minibatch.weights.assign(3, weight);
      const TypedMinibatch<T> typed(minibatch);
      expect_throw<NumericalError>([&] { a->step(typed.H, typed.targets(), eta); }, {"step 1"});
      EXPECT_EQ(a->steps(), 0);
      EXPECT_TRUE(is_identical<T>(a->weights(), b->weights()));
      Matrix<T> grad_a(4, 3), grad_b(4, 3);  // and it goes on as if nothing had been
      EXPECT_EQ(a->step(good.H, good.targets(), 1e-3, grad_a), b->step(good.H, good.targets(), 1e-3, grad_b));
      EXPECT_TRUE(is_identical<T>(grad_a, grad_b));
      EXPECT_TRUE(is_identical<T>(a->weights(), b->weights()));
    }
  });
}

TEST_P(SoftmaxHeadTest, EvaluateRefusesLogitsThatOverflowWhateverTheTargets) {
  run([&]<class T>() {
    const auto layer =
        make_softmax_layer<T>(GetParam(), {.outputs = 20, .dim = 4, .initial = Initial::normal, .initial_scale = 1e3});
    for (const Size K : {0, 2}) {
      Dice dice(23);
      auto minibatch = make_positive_minibatch(dice, {20, 4, 3, K});
      for (Size i = 0; i < minibatch.H.size(); ++i) {
        minibatch.H.data()[i] *= static_cast<double>(std::numeric_limits<T>::max()) / 100;
      }
      const TypedMinibatch<T> typed(minibatch);
      Matrix<T> grad_H(4, 3);
      expect_throw<NumericalError>([&] { layer->evaluate(typed.H, typed.targets(), grad_H); }, {"log Z"});
    }
  });
}

TEST_P(SoftmaxHeadTest, LogitsFarApartAreNoProblem) {
  run([&]<class T>() {
    const auto layer = make_softmax_layer<T>(GetParam(), {.outputs = 4, .dim = 1});
    const std::vector<std::int64_t> offsets{0, 1};
    const std::vector<Index> first{0}, last{3};
    const std::vector<T> one{1};
    Matrix<T> H(1, 1);
    H(0, 0) = T(1);
    layer->step(H, SparseBatch<T>(4, offsets, first, one), 1000);  // o₀ = 750 or so, the others below −200
    EXPECT_LT(layer->evaluate(H, SparseBatch<T>(4, offsets, first, one)), 1e-30);
    const double loss = layer->evaluate(H, SparseBatch<T>(4, offsets, last, one));
    EXPECT_TRUE(std::isfinite(loss) && loss > 400) << loss;
  });
}

TEST_P(SoftmaxHeadTest, RefusesALossThatItWouldNotMinimise) {
  run([&]<class T>() {
    expect_throw<std::invalid_argument>(
        [&] { make_softmax_layer<T>(GetParam(), {.outputs = 9, .dim = 3, .loss = TaylorSoftmax{}}); },
        {GetParam().head, "taylor"});
  });
}

TEST_P(SoftmaxHeadTest, RefusesAWeightDecayWhereAStepTouchesFewRows) {
  run([&]<class T>() {
    const auto make = [&] { make_softmax_layer<T>(GetParam(), {.outputs = 9, .dim = 3, .weight_decay = 0.1}); };
    if (is("softmax")) {
      EXPECT_NO_THROW(make());
    } else {
      expect_throw<std::invalid_argument>(make, {GetParam().head, "weight_decay = 0.1"});
    }
  });
}

TEST(SoftmaxHeads, RefuseImpossibleOptions) {
  const auto refuse = [](const char* head, const std::vector<std::string>& words, const auto& change) {
    auto options = small_options(head, {.outputs = 9, .dim = 3});
    ASSERT_NO_THROW(make_head<float>(options, make_cpu_backend<float>(1)));
    change(options);
    expect_throw<std::invalid_argument>([&] { make_head<float>(options, make_cpu_backend<float>(1)); }, words);
  };
  refuse("softmax", {"logits_bytes = -1"}, [](auto& options) { options.softmax.logits_bytes = -1; });
  refuse("sampled", {"samples = 0"}, [](auto& options) { options.sampled.samples = 0; });
  refuse("hierarchical", {"classes = -1", "D = 9"}, [](auto& options) { options.hierarchical.classes = -1; });
  refuse("hierarchical", {"classes = 10", "D = 9"}, [](auto& options) { options.hierarchical.classes = 10; });
  refuse("hierarchical", {"8 frequencies", "D = 9"}, [](auto& options) { options.hierarchical.frequencies.resize(8); });
}

TEST(SoftmaxHeads, HeadsOfTheCpuAreRefusedElsewhere_Cuda) {
  if (cuda_devices() == 0) GTEST_SKIP() << "there is no GPU here";
  for (const auto* head : {"sampled", "reference"}) {
    const auto make = [&] {
      make_head<double>(small_options(head, {.outputs = 9, .dim = 3}), backend_of<double>("cuda", 1));
    };
    expect_throw<std::invalid_argument>(make, {std::string("head '") + head + "' exists on the CPU only", "cuda"});
  }
}

}  // namespace
}  // namespace widehead::test
