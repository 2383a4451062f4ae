/// Network: what a step does with its gradient, and what a saved one remembers.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "compare.h"
#include "errors.h"
#include "network_under_test.h"

namespace widehead::test {
namespace {

using testing::Types;

template <class T>
Network<T> make_network(const NetworkOptions& options) {
  return Network<T>(options, make_cpu_backend<T>(1));
}

TEST(NetworkStep, ReturnsTheLossBeforeTheStepAndReportsTheRateOfTheHead) {
  Dice dice(71);
  auto network = make_network<double>(options_of({.head = "windowed"}));
  double first = 0;
  const auto batch = make_batch<double>(dice, true, 8);
  for (int k = 0; k < 20; ++k) {
    const double before = evaluate(network, batch);
    const double loss = step(network, batch, 0.05, 0.5);
    EXPECT_NEAR(loss, before, 1e-12 * before);
    if (k == 0) first = loss;
    EXPECT_EQ(network.last_eta(), 0.5 * 0.01);
  }
  EXPECT_LT(evaluate(network, batch), 0.9 * first);
  EXPECT_GT(network.head_seconds(), 0);
}

TEST(NetworkStep, LeavesTheHeadAloneAtRateZeroAndTheLayersBelowLikewise) {
  Dice dice(72);
  auto network = make_network<double>(options_of({.head = "dense"}));
  const auto batch = make_batch<double>(dice, true, 8);
  const auto W = network.head().weights();
  step(network, batch, 0.1, 0);
  EXPECT_TRUE(is_identical<double>(network.head().weights(), W));
  const auto below = parameters(network);
  step(network, batch, 0, 1);
  EXPECT_EQ(parameters(network), below);
  EXPECT_FALSE(is_identical<double>(network.head().weights(), W));
}

TEST(NetworkStep, SgdMovesByTheRateTimesTheGradient) {
  for (const bool concat : {true, false}) {
    Dice dice(73);
    auto network = make_network<double>(options_of({.concat = concat, .hidden = {5}}));
    for (int k = 0; k < 5; ++k) {
      const auto batch = make_batch<double>(dice, concat, 8);
      const auto gradient = gradient_of(network, batch);
      const auto truth = combination(1, parameters(network), -0.03, gradient);
      step(network, batch, 0.03, 0);
      EXPECT_LE(norm(combination(1, parameters(network), -1, truth)), 1e-14 * norm(truth));
    }
  }
}

/// The gradient is the mean's: the same examples twice make no difference.
TEST(NetworkStep, DoesNotDependOnTheNumberOfEqualExamples) {
  Dice dice(74);
  auto network = make_network<double>(options_of({.hidden = {5}}));
  const auto batch = make_batch<double>(dice, true, 8);
  auto twice = batch;
  for (auto [from, to] : {std::pair(&batch.inputs, &twice.inputs), std::pair(&batch.targets, &twice.targets)}) {
    const auto shift = to->offsets.back();
    for (std::size_t j = 1; j < from->offsets.size(); ++j) to->offsets.push_back(from->offsets[j] + shift);
    to->indices.insert(to->indices.end(), from->indices.begin(), from->indices.end());
    to->values.insert(to->values.end(), from->values.begin(), from->values.end());
  }
  const auto gradient = gradient_of(network, batch);
  EXPECT_LE(norm(combination(1, gradient, -1, gradient_of(network, twice))), 1e-14 * norm(gradient));
}

TEST(NetworkStep, AdamIsThatOfThePaperOnTheColumnsThatTheMinibatchNames) {
  for (const bool concat : {true, false}) {
    SCOPED_TRACE(concat ? "concat" : "sum");
    Dice dice(75);
    auto options = options_of({.concat = concat, .hidden = {5}});
    auto sgd = make_network<double>(options);  // shows gradients
    options.optimizer = Optimizer::adam;
    options.adam = {.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-2};
    auto adam = make_network<double>(options);
    auto p = parameters(adam);
    auto m = combination(0, p, 0, p), s = m;
    const Size width = options.embedding;
    for (std::int64_t t = 1; t <= 12; ++t) {
      const double lr = 0.02 / static_cast<double>(t);
      const auto batch = make_batch<double>(dice, concat, 2);
      const std::set<Index> named(batch.inputs.indices.begin(), batch.inputs.indices.end());
      ASSERT_LT(static_cast<Size>(named.size()), test_features);
      set_parameters(sgd, parameters(adam));
      const auto g = gradient_of(sgd, batch);
      for (auto& [name, values] : p) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          const bool is_embedding = name == "input.embeddings.value";
          if (is_embedding && !named.contains(static_cast<Index>(i / static_cast<std::size_t>(width)))) continue;
          double &mean = m.at(name)[i], &square = s.at(name)[i];
          const double gradient = g.at(name)[i];
          mean = 0.8 * mean + 0.2 * gradient;
          square = 0.95 * square + 0.05 * gradient * gradient;
          const double m_hat = mean / (1 - std::pow(0.8, t)), s_hat = square / (1 - std::pow(0.95, t));
          values[i] -= lr * m_hat / (std::sqrt(s_hat) + 1e-2);
        }
      }
      step(adam, batch, lr, 0);
      EXPECT_LE(norm(combination(1, parameters(adam), -1, p)), 1e-13 * norm(p)) << "update " << t;
      const auto moments = lower_arrays(adam, ".adam_mean");
      for (const auto& [name, values] : m) {
        const auto& kept = moments.at(name.substr(0, name.size() - 6) + ".adam_mean");
        for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(kept[i], values[i], 1e-13 * norm(m)) << name;
      }
    }
  }
}

TEST(NetworkStep, ClipsTheGradientOfAllLayersBelowTheHeadTogether) {
  for (const bool concat : {true, false}) {
    Dice dice(76);
    auto options = options_of({.concat = concat, .hidden = {5}});
    auto network = make_network<double>(options);
    const auto batch = make_batch<double>(dice, concat, 8);
    const auto gradient = gradient_of(network, batch);
    const double whole = norm(gradient);
    for (const double share : {0.01, 0.5, 0.999, 1.001, 10.0}) {
      SCOPED_TRACE(fmt::format("{}, clipped at {} of its norm", concat ? "concat" : "sum", share));
      options.clip = share * whole;
      auto clipped = make_network<double>(options);
      const auto moved = gradient_of(clipped, batch);
      EXPECT_NEAR(norm(moved), std::min(1.0, share) * whole, 1e-12 * whole);
      EXPECT_LE(norm(combination(1, moved, -std::min(1.0, share), gradient)), 1e-12 * whole);
    }
  }
}

TEST(NetworkStep, SaysSoWhenTheRunHasDiverged) {
  for (const auto* head : {"dense", "windowed", "factored"}) {
    for (const auto optimizer : {Optimizer::sgd, Optimizer::adam}) {
      for (const double lambda : {0.0, 0.1}) {
        for (const auto activation : {Activation::relu, Activation::identity}) {
          SCOPED_TRACE(fmt::format("{}, {}, lambda {}", head, optimizer == Optimizer::adam ? "adam" : "sgd", lambda));
          auto options = options_of({.activation = activation, .head = head});
          options.optimizer = optimizer;
          options.head_rate = {lambda > 0 ? 0 : 0.01, lambda};
          auto network = make_network<float>(options);
          Dice dice(77);
          const auto batch = make_batch<float>(dice, true, 8);
          EXPECT_THROW(
              {
                for (int k = 0; k < 60; ++k) step(network, batch, 1e30, 1);
              },
              NumericalError);
        }
      }
    }
  }
}

TEST(NetworkStep, RefusesAnHThatIsNotFiniteAndLeavesTheNetworkAsItWas) {
  auto network = make_network<float>(options_of({.activation = Activation::relu}));
  Dice dice(78);
  const auto batch = make_batch<float>(dice, true, 8);
  step(network, batch, 0.1, 1);
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto values = parameters(network);
    values.at("hidden1.bias.value")[1] = value;
    set_parameters(network, values);
    const auto before = save(network);
    expect_throw<NumericalError>([&] { step(network, batch, 0.1, 1); }, {"after step 1:", "diverged"});
    expect_throw<NumericalError>([&] { evaluate(network, batch); }, {"after step 1:", "diverged"});
    EXPECT_EQ(difference(save(network), before), "");
  }
}

/// H is fine and so is the head's step, but the inputs are so large that the gradient of the embeddings overflows.
TEST(NetworkStep, RefusesAGradientThatIsNotFiniteAndLeavesTheLayersBelowAsTheyWere) {
  for (const double clip : {0.0, 1.0}) {
    auto options = options_of({.concat = false, .hidden = {}, .activation = Activation::identity});
    options.input_scale = 1e-37;
    options.clip = clip;
    auto network = make_network<float>(options);
    Dice dice(79);
    auto batch = make_batch<float>(dice, false, 8);
    for (auto& value : batch.inputs.values) value = 1e37F;
    for (auto& value : batch.targets.values) value = 100;
    const auto before = parameters(network);
    expect_throw<NumericalError>([&] { step(network, batch, 0.1, 1); }, {"step 1:", "lower layers is not finite"});
    EXPECT_EQ(parameters(network), before);
    EXPECT_EQ(network.steps(), 0);
  }
}

TEST(HiddenLayer, KnowsWhetherItsGradientIsFinite) {
  const auto backend = make_cpu_backend<float>(1);
  HiddenLayer<float> layer(*backend, {2, 3, Activation::identity, Optimizer::sgd}, Random(1, 1));
  Matrix<float> X(2, 2), G(3, 2), grad_X(2, 2);
  const auto is_finite_with = [&](float x, float g) {
    std::fill_n(X.data(), X.size(), x);
    std::fill_n(G.data(), G.size(), g);
    layer.forward(*backend, X);
    layer.backward(*backend, X, G, grad_X);
    return layer.gradient_is_finite(*backend);
  };
  EXPECT_TRUE(is_finite_with(1, 1));
  EXPECT_TRUE(is_finite_with(1e10F, 1e20F));   // though its square is not
  EXPECT_FALSE(is_finite_with(1e20F, 1e20F));  // of W
  EXPECT_FALSE(is_finite_with(0, 3e38F));      // of b
}

TEST(InputLayer, KnowsWhetherItsGradientIsFinite) {
  const auto backend = make_cpu_backend<float>(1);
  InputLayer<float> layer(*backend, {.features = 4, .width = 3, .optimizer = Optimizer::sgd}, Random(1, 1));
  const std::vector<std::int64_t> offsets{0, 1, 2};
  const std::vector<Index> indices{1, 2};
  Matrix<float> G(3, 2);
  const auto is_finite_with = [&](float x, float g, float g_of_second) {
    const std::vector<float> values{x, x};
    const SparseBatch<float> X(4, offsets, indices, values);
    std::fill_n(G.data(), 3, g);
    std::fill_n(G.data() + 3, 3, g_of_second);
    layer.forward(*backend, X);
    layer.backward(*backend, X, G);
    return layer.gradient_is_finite(*backend);
  };
  EXPECT_TRUE(is_finite_with(1, 1, 1));
  EXPECT_TRUE(is_finite_with(1, 1e30F, -1e30F));       // though its square is not
  EXPECT_FALSE(is_finite_with(1e20F, 1e20F, -1e20F));  // of E; that of b cancels
  EXPECT_FALSE(is_finite_with(1e-20F, 3e38F, 3e38F));  // of b
}

template <class T>
class SavedNetwork : public testing::Test {};
using Precisions = Types<float, double>;
TYPED_TEST_SUITE(SavedNetwork, Precisions);

TYPED_TEST(SavedNetwork, GoesOnBitForBit) {
  using T = TypeParam;
  for (const auto* head : {"dense", "windowed", "factored"}) {
    for (const auto optimizer : {Optimizer::sgd, Optimizer::adam}) {
      for (const bool concat : {true, false}) {
        SCOPED_TRACE(fmt::format("{} head, {}, {}", head, optimizer == Optimizer::sgd ? "sgd" : "adam",
                                 concat ? "concat" : "sum"));
        auto options = options_of({.concat = concat, .hidden = {5}, .head = head});
        options.optimizer = optimizer;
        options.head_rate = {0, 0.2};  // by λ₁: its state is part
        const auto train = [&](Network<T>& network, int first, int last) {
          for (int k = first; k < last; ++k) {
            Dice dice(static_cast<std::uint64_t>(1000 + k));
            step(network, make_batch<T>(dice, concat, 1 + k % 9), 0.01, 1 - k / 400.0);
          }
        };
        auto whole = make_network<T>(options);
        train(whole, 0, 300);
        auto first = make_network<T>(options);
        train(first, 0, 133);
        const auto saved = save(first);
        auto fresh = make_network<T>(options);
        load(saved, fresh);
        EXPECT_EQ(difference(save(fresh), saved), "");
        train(fresh, 133, 300);
        EXPECT_EQ(fresh.steps(), 300);
        EXPECT_EQ(difference(timeless_state(fresh), timeless_state(whole)), "");
      }
    }
  }
}

TEST(NetworkState, RefusesACountThatIsNone) {
  auto network = make_network<float>(options_of({}));
  for (const auto* name : {"steps", "head_rate.steps"}) {
    auto state = save(network);
    state.at(name).bytes.back() = static_cast<char>(0x80);  // negative
    auto other = make_network<float>(options_of({}));
    expect_throw<FileError>([&] { load(state, other); }, {name, "must be 0 … 2⁶²"});
  }
}

}  // namespace
}  // namespace widehead::test
