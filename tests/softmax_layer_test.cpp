/// What is peculiar to softmax and to sampled; what they share with hierarchical is in softmax_layers_test.cpp.

#include <gtest/gtest.h>

#include <utility>

#include "cross_entropy_heads.h"

namespace widehead::test {
namespace {

TEST(SoftmaxLayer, ResultDoesNotDependOnTheMemoryForLogits) {
  const auto check = []<class T>() {
    constexpr Size D = 20'000, d = 4, m = 5;  // three blocks of rows
    const Size block = make_cpu_backend<T>(1)->rows_per_block(d);
    ASSERT_EQ((D + block - 1) / block, 3);
    const auto go = [&](Size logits_bytes) {
      SoftmaxLayer<T> layer({.outputs = D, .dim = d, .weight_decay = 0.1, .initial = Initial::normal},
                            {.logits_bytes = logits_bytes}, make_cpu_backend<T>(1));
      Matrix<T> grad_H(d, m);
      Dice dice(31);
      for (int t = 0; t < 3; ++t) {
        const TypedMinibatch<T> typed(make_positive_minibatch(dice, {D, d, m, 3}));
        layer.step(typed.H, typed.targets(), 0.1, grad_H);
      }
      return std::pair{layer.weights(), std::move(grad_H)};
    };
    const auto [W, grad_H] = go(SoftmaxOptions{}.logits_bytes);
    for (const Size bytes : {Size{0}, 2 * block * m * Size{sizeof(T)}, D * m * Size{sizeof(T)} - 1}) {
      const auto [other_W, other_grad_H] = go(bytes);
      EXPECT_TRUE(is_identical<T>(W, other_W)) << bytes;
      EXPECT_TRUE(is_identical<T>(grad_H, other_grad_H)) << bytes;
    }
  };
  check.operator()<float>();
  check.operator()<double>();
}

TEST(SoftmaxLayer, ManyBlocksFollowTheDefinitionToo) {
  const SoftmaxCase c{"softmax", Dtype::f64, 2};
  constexpr Size D = 40'000;
  ASSERT_GT(D, 2 * make_cpu_backend<double>(2)->rows_per_block(2));
  BesideDefinition<double> pair(c, {.outputs = D, .dim = 2, .initial = Initial::normal, .initial_scale = 2});
  Dice dice(32);
  for (int t = 0; t < 3; ++t) pair.step(make_positive_minibatch(dice, {D, 2, 3, 4, true}), 0.1);
  pair.compare_state();
}

TEST(SoftmaxLayer, CountsTheProductItRepeats) {
  const LayerOptions options{.outputs = 20'000, .dim = 4};
  const auto flops = [&](Size logits_bytes) {
    double sum = 0;
    const SoftmaxLayer<float> layer(options, {.logits_bytes = logits_bytes}, make_cpu_backend<float>(1));
    for (const auto& product : layer.step_products(5)) sum += product.flops();
    return sum / (2.0 * 20'000 * 4 * 5);
  };
  EXPECT_EQ(flops(SoftmaxOptions{}.logits_bytes), 3);
  EXPECT_EQ(flops(0), 4);
  const Size block = make_cpu_backend<float>(1)->rows_per_block(4);  // of two, one is kept and one is at work
  EXPECT_EQ(flops(2 * block * 5 * Size{sizeof(float)}), 4 - static_cast<double>(block) / 20'000);
}

TEST(SampledSoftmaxLayer, IsTheFullSoftmaxOnceEverythingIsDrawn) {
  const LayerOptions options{.outputs = 20, .dim = 4, .initial = Initial::normal};
  SampledSoftmaxLayer<double> sampled(options, {}, {.samples = 100'000}, make_cpu_backend<double>(1));
  SoftmaxLayer<double> full(options, {}, make_cpu_backend<double>(1));
  Dice dice(33);
  const TypedMinibatch<double> typed(make_positive_minibatch(dice, {20, 4, 3, 2, true}));
  Matrix<double> grad_a(4, 3), grad_b(4, 3);
  EXPECT_NEAR(sampled.step(typed.H, typed.targets(), 0.1, grad_a), full.step(typed.H, typed.targets(), 0.1, grad_b),
              1e-12);
  EXPECT_TRUE(is_near<double>(grad_a, grad_b, 1e-12));
  EXPECT_TRUE(is_near<double>(sampled.weights(), full.weights(), 1e-13));
}

}  // namespace
}  // namespace widehead::test
