/// Network: what it computes is the loss of its formula, and what it descends is that loss's gradient.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "compare.h"
#include "errors.h"
#include "network_under_test.h"
#include "widehead/train/assemble.h"

namespace widehead::test {
namespace {

std::vector<NetworkShape> shapes(const std::vector<std::string>& heads, const std::vector<std::string>& losses) {
  std::vector<NetworkShape> list;
  for (const bool concat : {true, false}) {
    for (const auto& hidden : {std::vector<Size>{}, std::vector<Size>{5}, std::vector<Size>{5, 6}}) {
      for (const auto& [name, activation] : activation_names()) {
        for (const auto& head : heads) {
          for (const auto& loss : losses) list.push_back({concat, hidden, activation, head, loss});
        }
      }
    }
  }
  return list;
}

/// Central differences of the mean loss by every parameter.
Parameters<double> differences(Network<double>& network, const Batch<double>& batch) {
  constexpr double h = 1e-5;
  const auto at = parameters(network);
  auto gradient = at;
  for (auto& [name, values] : gradient) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto moved = at;
      moved.at(name)[i] += h;
      set_parameters(network, moved);
      const double above = evaluate(network, batch);
      moved.at(name)[i] -= 2 * h;
      set_parameters(network, moved);
      values[i] = (above - evaluate(network, batch)) / (2 * h) / static_cast<double>(batch.examples());
    }
  }
  set_parameters(network, at);
  return gradient;
}

/// The head is not as it began and its window is not empty, nor are biases zero.
void warm_up(Network<double>& network, Dice& dice, bool concat) {
  for (int k = 0; k < 5; ++k) step(network, make_batch<double>(dice, concat, 7), 0, 1);
  auto values = parameters(network);
  for (auto& [name, list] : values) {
    for (double& value : list) value += 0.3 * dice.normal();
  }
  set_parameters(network, values);
}

void check_gradient(const NetworkShape& shape) {
  SCOPED_TRACE(shape.name());
  Dice dice(65);
  Network<double> network(options_of(shape), make_cpu_backend<double>(1));
  warm_up(network, dice, shape.concat);
  const auto batch = make_batch<double>(dice, shape.concat, 6);
  const auto truth = differences(network, batch);
  const auto gradient = gradient_of(network, batch);
  ASSERT_GT(norm(truth), 1e-3);
  for (const auto& [name, values] : truth) {
    const Parameters<double> one = {{name, values}}, other = {{name, gradient.at(name)}};
    // h² times a third derivative, and ε|L|/h.
    EXPECT_LE(norm(combination(1, one, -1, other)), 1e-7 * norm(truth)) << name;
  }
}

TEST(Network, DescendsTheGradientOfTheMeanLossThroughEveryArchitecture) {
  for (const auto& shape : shapes({"dense", "windowed", "factored"}, {"squared"})) check_gradient(shape);
}

TEST(Network, DescendsTheGradientOfEveryLoss) {
  const std::vector<std::string> losses(loss_names().begin(), loss_names().end());
  for (const auto& shape : shapes({"dense", "windowed"}, losses)) {
    if (shape.hidden.size() == 1) check_gradient(shape);
  }
}

/// H by its formula, from the parameters by name.
Matrix<double> hidden_by_definition(const Parameters<double>& p, const NetworkShape& shape,
                                    const Batch<double>& batch) {
  const auto s = [&](double x) {
    switch (shape.activation) {
      case Activation::relu: return std::max(0.0, x);
      case Activation::tanh: return std::tanh(x);
      case Activation::sigmoid: return 1 / (1 + std::exp(-x));
      case Activation::identity: break;
    }
    return x;
  };
  const Size m = batch.examples(), e = shape.concat ? 4 : test_dim;
  const auto& E = p.at("input.embeddings.value");
  std::vector<std::vector<double>> A;
  for (Size j = 0; j < m; ++j) {
    std::vector<double> a(static_cast<std::size_t>(shape.concat ? e * test_slots : e));
    const auto first = batch.inputs.offsets[static_cast<std::size_t>(j)],
               last = batch.inputs.offsets[static_cast<std::size_t>(j) + 1];
    for (auto k = first; k < last; ++k) {
      for (Size i = 0; i < e; ++i) {
        const auto feature = batch.inputs.indices[static_cast<std::size_t>(k)];
        const Size place = shape.concat ? (k - first) * e + i : i;
        a[static_cast<std::size_t>(place)] +=
            batch.inputs.values[static_cast<std::size_t>(k)] * E[static_cast<std::size_t>(feature * e + i)];
      }
    }
    if (!shape.concat) {
      for (std::size_t i = 0; i < a.size(); ++i) a[i] = s(a[i] + p.at("input.bias.value")[i]);
    }
    for (int layer = 1; p.contains(fmt::format("hidden{}.bias.value", layer)); ++layer) {
      const auto& W = p.at(fmt::format("hidden{}.weights.value", layer));
      auto out = p.at(fmt::format("hidden{}.bias.value", layer));
      for (std::size_t i = 0; i < out.size(); ++i) {
        for (std::size_t k = 0; k < a.size(); ++k) out[i] += W[k * out.size() + i] * a[k];
        out[i] = s(out[i]);
      }
      a = out;
    }
    A.push_back(a);
  }
  Matrix<double> H(test_dim, m);
  for (Size j = 0; j < m; ++j)
    std::copy(A[static_cast<std::size_t>(j)].begin(), A[static_cast<std::size_t>(j)].end(), H.view().column(j));
  return H;
}

TEST(Network, ComputesHByItsFormulaAndTheLossOfTheHead) {
  for (const auto& shape : shapes({"dense"}, {"squared"})) {
    SCOPED_TRACE(shape.name());
    Dice dice(62);
    Network<double> network(options_of(shape), make_cpu_backend<double>(1));
    for (int k = 0; k < 5; ++k) step(network, make_batch<double>(dice, shape.concat, 7), 0.1, 1);  // biases are not 0
    const auto batch = make_batch<double>(dice, shape.concat, 9);
    const auto H = hidden_by_definition(parameters(network), shape, batch);
    EXPECT_TRUE(is_near<double>(network.hidden(batch.inputs.view(test_features)), H, 1e-13));
    EXPECT_NEAR(evaluate(network, batch), network.head().evaluate(H, batch.targets.view(test_outputs)), 1e-10);
    EXPECT_EQ(network.head().steps(), 5);
    EXPECT_EQ(network.steps(), 5);
  }
}

TEST(Network, HasTheLayersItIsTold) {
  const auto layers = [](bool concat, Size embedding, std::vector<Size> hidden) {
    auto options = options_of({.concat = concat});
    options.embedding = embedding;
    options.hidden = std::move(hidden);
    Network<float> network(options, make_cpu_backend<float>(1));
    return (lower_arrays(network, ".value").size() - (concat ? 1U : 2U)) / 2;
  };
  EXPECT_EQ(layers(false, test_dim, {}), 0U);
  EXPECT_EQ(layers(true, test_dim / test_slots, {}), 0U);
  EXPECT_EQ(layers(false, test_dim, {test_dim}), 1U);
  EXPECT_EQ(layers(false, test_dim + 1, {test_dim}), 1U);
  EXPECT_EQ(layers(true, test_dim, {4, test_dim}), 2U);
}

TEST(Network, FitsTheRunsOptions) {
  const auto widths = [](std::string combine, std::int64_t embedding, std::vector<std::int64_t> hidden) {
    auto options = default_options(Job::lm);
    options.combine = std::move(combine);
    options.embedding = embedding;
    options.hidden = std::move(hidden);
    options.dim = 30;
    const auto network = network_options(Job::lm, options, 100, 99, {});
    auto all = network.hidden;
    all.insert(all.begin(), network.embedding);
    return all;
  };
  using Widths = std::vector<Size>;
  EXPECT_EQ(widths("concat", 7, {20}), (Widths{7, 20, 30}));
  EXPECT_EQ(widths("concat", 0, {20}), (Widths{20, 20, 30}));
  EXPECT_EQ(widths("mean", 30, {}), (Widths{30, 30}));   // asked for: a layer of its own
  EXPECT_EQ(widths("mean", 0, {}), (Widths{30}));        // the sum is H
  EXPECT_EQ(widths("mean", 0, {30}), (Widths{30, 30}));  // the sum is the first hidden layer
  EXPECT_EQ(widths("mean", 0, {20, 25}), (Widths{20, 25, 30}));
}

/// Each option at a value that is not its default, and where it goes.
TEST(Assemble, EveryOptionReachesWhatItIsFor) {
  auto options = default_options(Job::lm);
  options.activation = "sigmoid";
  options.input_scale = 0.7;
  options.optimizer = "sgd";
  options.clip = 3;
  options.head_lr = 0.25;
  options.lambda = 0.75;
  options.seed = 11;
  options.head = "windowed";
  options.loss = "z";
  options.scale = 0.4;
  options.shift = 0.3;
  options.weight_decay = 0.125;
  options.init = "normal";
  options.init_scale = 0.6;
  options.window = 77;
  options.rows_file = "V";
  options.rows = "host";
  options.samples = 9;
  const std::vector<std::int64_t> counts{3, 4};
  const auto network = network_options(Job::lm, options, 100, 2, counts);
  EXPECT_EQ(network.features, 100);
  EXPECT_EQ(network.activation, Activation::sigmoid);
  EXPECT_EQ(network.input_scale, 0.7);
  EXPECT_EQ(network.optimizer, Optimizer::sgd);
  EXPECT_EQ(network.clip, 3);
  EXPECT_EQ(network.head_rate.eta, 0.25);
  EXPECT_EQ(network.head_rate.lambda, 0.75);
  EXPECT_EQ(network.seed, 11U);
  EXPECT_EQ(network.head.head, "windowed");
  EXPECT_EQ(network.head.layer.outputs, 2);
  EXPECT_EQ(network.head.layer.dim, options.dim);
  EXPECT_EQ(std::get<ZLoss>(network.head.layer.loss).scale, 0.4);
  EXPECT_EQ(std::get<ZLoss>(network.head.layer.loss).shift, 0.3);
  EXPECT_EQ(network.head.layer.weight_decay, 0.125);
  EXPECT_EQ(network.head.layer.initial, Initial::normal);
  EXPECT_EQ(network.head.layer.initial_scale, 0.6);
  EXPECT_EQ(network.head.layer.seed, 11U);
  EXPECT_EQ(network.head.windowed.window, 77);
  EXPECT_EQ(network.head.windowed.rows_file, "V");
  EXPECT_EQ(network.head.windowed.rows, RowPlace::host);
  EXPECT_EQ(network.head.hierarchical.frequencies, (std::vector<double>{3, 4}));
  EXPECT_EQ(network.head.sampled.samples, 9);

  options.epochs = 4;
  options.batch = 5;
  options.lr = 0.5;
  options.schedule = "cosine";
  options.warm_up = 0.1;
  options.save_every = 2;
  const auto trainer = trainer_options(options);
  EXPECT_EQ(trainer.epochs, 4);
  EXPECT_EQ(trainer.batch, 5);
  EXPECT_EQ(trainer.lr, 0.5);
  EXPECT_EQ(trainer.schedule, Schedule::cosine);
  EXPECT_EQ(trainer.warm_up, 0.1);
  EXPECT_EQ(trainer.save_every_seconds, 120);

  options.layout = "csv";
  options.min_rating = 4;
  EXPECT_EQ(items_options(options).layout, ItemsLayout::csv);
  EXPECT_EQ(items_options(options).min_rating, 4);
  options.input_norm = "l2";
  EXPECT_TRUE(rows_options(options).unit_length);
  EXPECT_EQ(rows_options(options).seed, 11U);
  options.context = 6;
  options.combine = "mean";
  options.predict_unknown = true;
  options.subsample = 0.01;
  const auto ngram = ngram_options(options);
  EXPECT_EQ(ngram.context, 6);
  EXPECT_EQ(ngram.combine, Combine::mean);
  EXPECT_TRUE(ngram.predict_unknown);
  EXPECT_EQ(ngram.subsample, 0.01);
  EXPECT_EQ(ngram.seed, 11U);
}

TEST(Assemble, TargetScaleHasMeanOneAndTakesAnOutputNeverMetAsMetOnce) {
  auto options = default_options(Job::lm);
  const std::vector<std::int64_t> counts{0, 1, 7};
  options.target_scale = "none";
  EXPECT_TRUE(target_scale<double>(options, counts).empty());
  for (const bool log : {true, false}) {
    options.target_scale = log ? "log" : "sqrt";
    const auto scale = target_scale<double>(options, counts);
    const auto raw = [&](double p) { return log ? -std::log(p) : 1 / std::sqrt(p); };
    const double mean = (2 * raw(1.0 / 9) + 7 * raw(7.0 / 9)) / 9;
    ASSERT_EQ(scale.size(), 3U);
    EXPECT_NEAR(scale[0], raw(1.0 / 9) / mean, 1e-12);
    EXPECT_EQ(scale[1], scale[0]);
    EXPECT_NEAR(scale[2], raw(7.0 / 9) / mean, 1e-12);
  }
}

TEST(Network, LooksWithoutTouching) {
  for (const auto* head : {"dense", "windowed", "factored"}) {
    for (const bool concat : {true, false}) {
      Dice dice(63);
      Network<float> network(options_of({.concat = concat, .head = head}), make_cpu_backend<float>(1));
      for (int k = 0; k < 9; ++k) step(network, make_batch<float>(dice, concat, 7), 0.1, 1);
      const auto batch = make_batch<float>(dice, concat, 30);
      auto before = save(network);
      network.hidden(batch.inputs.view(test_features));
      evaluate(network, batch);
      auto after = save(network);
      for (auto* state : {&before, &after}) state->erase("head.rows.rows_read");  // a count of what was looked at
      EXPECT_EQ(difference(after, before), "");
    }
  }
}

TEST(Network, StartsFromTheSameInEitherPrecisionAndFromAnotherWithAnotherSeed) {
  auto options = options_of({});
  Network<double> exact(options, make_cpu_backend<double>(1));
  Network<float> rough(options, make_cpu_backend<float>(2));
  const auto exact_values = parameters(exact);
  for (const auto& [name, values] : parameters(rough)) {
    EXPECT_EQ(std::vector<double>(values.begin(), values.end()), exact_values.at(name)) << name;
  }
  options.seed = 8;
  Network<float> other(options, make_cpu_backend<float>(1));
  EXPECT_NE(parameters(other).at("input.embeddings.value"), parameters(rough).at("input.embeddings.value"));
  EXPECT_NE(parameters(other).at("hidden1.weights.value"), parameters(rough).at("hidden1.weights.value"));
}

TEST(Network, StartsAtTheScaleItPromises) {
  for (const auto activation : {Activation::relu, Activation::tanh}) {
    NetworkOptions options = options_of({.activation = activation});
    options.features = 2000;
    options.embedding = 41;
    options.hidden = {301, test_dim};
    options.input_scale = 0.25;
    Network<float> network(options, make_cpu_backend<float>(1));
    const auto values = parameters(network);
    const auto deviation = [&](const std::string& name) {
      return norm<float>({{name, values.at(name)}}) / std::sqrt(static_cast<double>(values.at(name).size()));
    };
    EXPECT_NEAR(deviation("input.embeddings.value"), 0.25, 0.25 * 0.02);
    EXPECT_NEAR(deviation("hidden1.weights.value"), std::sqrt((activation == Activation::relu ? 2 : 1) / 123.0), 0.002);
    EXPECT_EQ(deviation("hidden1.bias.value"), 0);
  }
}

TEST(Network, RefusesWhatItCannotBe) {
  const auto refuses = [](const auto& spoil, const std::string& what) {
    auto options = options_of({});
    spoil(options);
    expect_throw<std::invalid_argument>([&] { Network<float>(options, make_cpu_backend<float>(1)); }, {what});
  };
  refuses([](auto& o) { o.features = 0; }, "features = 0");
  refuses([](auto& o) { o.slots = 0; }, "slots = 0");
  refuses([](auto& o) { o.embedding = -1; }, "embedding = -1");
  refuses([](auto& o) { o.hidden = {3, 0}; }, "a hidden width = 0");
  refuses([](auto& o) { o.hidden = {3, 4}; }, "the last layer has 4 units, but the head takes d = 3");
  refuses([](auto& o) { o.clip = NAN; }, "clip = nan");
}

TEST(Network, RefusesExamplesThatDoNotFillTheirSlots) {
  Network<float> network(options_of({}), make_cpu_backend<float>(1));
  Batch<float> batch;  // two and four: six, as two times three would be
  for (const int count : {2, 4}) {
    for (int k = 0; k < count; ++k) batch.inputs.add(1, 1);
    batch.inputs.end_example();
    batch.targets.end_example();
  }
  const auto before = save(network);
  expect_throw<std::invalid_argument>([&] { step(network, batch, 0.1, 1); }, {"example 0", "2 inputs", "3 slots"});
  EXPECT_EQ(difference(save(network), before), "");
}

}  // namespace
}  // namespace widehead::test
