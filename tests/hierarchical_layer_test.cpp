/// What is peculiar to hierarchical; what it shares with the other softmax heads is in softmax_layers_test.cpp.

#include <gtest/gtest.h>

#include <algorithm>

#include "cross_entropy_heads.h"

namespace widehead::test {
namespace {

TEST(HierarchicalLayer, FollowsTheDefinitionWithClassesOfAnySize) {
  Dice dice(34);
  for (const Size classes : {1, 2, 7, 50}) {
    HierarchicalOptions hierarchical{.classes = classes, .frequencies = {}};
    for (int i = 0; i < 50; ++i) hierarchical.frequencies.push_back(1.0 / (i + 1));
    HierarchicalLayer<double> layer({.outputs = 50, .dim = 4, .initial = Initial::normal}, hierarchical,
                                    make_cpu_backend<double>(2));
    EXPECT_EQ(layer.classes().count(), classes);
    auto oracle = oracle_of<double>(layer);
    for (int t = 0; t < 4; ++t) {
      const auto minibatch = make_positive_minibatch(dice, {50, 4, 6, 3, true});
      const TypedMinibatch<double> typed(minibatch);
      Matrix<double> grad_H(4, 6);
      const double loss = layer.step(typed.H, typed.targets(), 0.05, grad_H);
      const auto truth = oracle.step(minibatch, 0.05);
      EXPECT_NEAR(loss, truth.loss, 1e-11);
      EXPECT_TRUE(is_near<double>(grad_H, truth.grad_H, 1e-12));
    }
    EXPECT_TRUE(is_near<double>(layer.weights(), oracle.W, 1e-13));
    EXPECT_TRUE(is_near<double>(layer.class_weights(), oracle.A, 1e-13));
  }
}

TEST(HierarchicalLayer, ClassesOnSeveralThreadsGiveWhatOneGives) {
  constexpr Size D = 2500, d = 32, m = 60;  // enough work to be shared out
  const LayerOptions options{.outputs = D, .dim = d, .initial = Initial::normal};
  HierarchicalLayer<double> a(options, {}, make_cpu_backend<double>(1)), b(options, {}, make_cpu_backend<double>(3));
  Dice dice(36);
  for (int t = 0; t < 3; ++t) {
    const TypedMinibatch<double> typed(make_positive_minibatch(dice, {D, d, m, 3}));
    Matrix<double> grad_a(d, m), grad_b(d, m);
    EXPECT_NEAR(a.step(typed.H, typed.targets(), 0.01, grad_a), b.step(typed.H, typed.targets(), 0.01, grad_b), 1e-10);
    EXPECT_TRUE(is_near<double>(grad_a, grad_b, 1e-13));
  }
  EXPECT_TRUE(is_near<double>(a.weights(), b.weights(), 1e-14));
  EXPECT_TRUE(is_near<double>(a.class_weights(), to_double<double>(b.class_weights()), 1e-14));
}

TEST(HierarchicalLayer, ScoresFollowTheHiddenVectorAndTheStep) {
  HierarchicalLayer<double> layer({.outputs = 30, .dim = 3, .initial = Initial::normal, .initial_scale = 1}, {},
                                  make_cpu_backend<double>(1));
  Dice dice(37);
  const std::vector<Index> rows{12};
  const auto minibatch = make_positive_minibatch(dice, {30, 3, 1, 2});
  const TypedMinibatch<double> typed(minibatch);
  const auto H = dice.matrix<double>(3, 1);
  const auto expect_right = [&](const Matrix<double>& given) {
    Matrix<double> score(1, 1);
    layer.scores(given, rows, score);
    EXPECT_NEAR(score(0, 0), oracle_of<double>(layer).log_p(given, 0)[12], 1e-13);
  };
  expect_right(H);
  expect_right(minibatch.H);
  layer.step(typed.H, typed.targets(), 1);
  expect_right(minibatch.H);
}

TEST(HierarchicalLayer, StepChangesTheRowsOfTheTargetsClassesOnly) {
  HierarchicalLayer<float> layer({.outputs = 100, .dim = 3, .initial = Initial::normal}, {},
                                 make_cpu_backend<float>(1));
  const auto before = layer.weights();
  const std::vector<std::int64_t> offsets{0, 1};
  const std::vector<Index> target{34};
  const std::vector<float> one{1};
  layer.step(Dice(35).matrix<float>(3, 1), SparseBatch<float>(100, offsets, target, one), 0.1);
  const auto after = layer.weights();
  for (Size i = 0; i < 100; ++i) {
    const bool same = std::equal(before.view().column(i), before.view().column(i) + 3, after.view().column(i));
    EXPECT_EQ(same, i < 30 || i >= 40) << i;
  }
}

}  // namespace
}  // namespace widehead::test
