/// A step in parts, whose loss is computed by the caller, beside the step of the layer's own loss; and a start from a
/// given W.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "compare.h"
#include "enqueueing_backend.h"
#include "errors.h"
#include "heads_under_test.h"
#include "oracle.h"
#include "widehead/errors.h"
#include "widehead/spherical_layer.h"

namespace widehead::test {
namespace {

std::vector<HeadCase> heads() {
  return in_each_dtype({{.label = "dense", .options = options_of("dense")},
                        {.label = "factored", .options = factored_options(Inverse::woodbury, Stabilize::power)},
                        {.label = "windowed", .options = options_of("windowed")}});
}
INSTANTIATE_TEST_SUITE_P(All, HeadTest, testing::ValuesIn(heads()), case_name);

constexpr Size D = 40, d = 8;

/// A minibatch whose targets' values are weights.
Minibatch make_positive(Dice& dice, Size m) {
  auto batch = make_minibatch(dice, {D, d, m, 3});
  for (auto& y : batch.values) y = 0.2 + std::abs(y);
  return batch;
}

/// The Taylor softmax as a caller would write it, by target as given.
struct Judged {
  std::vector<double> a, b, g;
  GivenDerivatives given() const { return {a, b, g}; }

  Judged(const HostStatistics& seen, const Minibatch& batch)
      : a(seen.q.size(), 0.0), b(seen.q.size(), 0.0), g(seen.o.size(), 0.0) {
    for (std::size_t j = 0; j < a.size(); ++j) {
      const double Z = static_cast<double>(D) + seen.s[j] + seen.q[j] / 2;
      for (auto e = static_cast<std::size_t>(batch.offsets[j]); e < static_cast<std::size_t>(batch.offsets[j + 1]);
           ++e) {
        const double y = batch.values[e], o = seen.o[e];
        a[j] += y / (2 * Z);
        b[j] += y / Z;
        g[e] = -y * (1 + o) / (1 + o + o * o / 2);
      }
    }
  }
};

template <class T>
struct Pair {
  explicit Pair(const HeadCase& head) {
    LayerOptions options{
        .outputs = D, .dim = d, .loss = TaylorSoftmax{}, .weight_decay = 0.01, .initial = Initial::normal};
    whole = make_layer<T>(head, options);
    parts = make_layer<T>(head, options);
    spherical = dynamic_cast<SphericalLayer<T>*>(parts.get());
  }
  std::unique_ptr<OutputLayer<T>> whole, parts;
  SphericalLayer<T>* spherical;
};

template <class T>
double limit() {
  return sizeof(T) == 4 ? 1e-5 : 1e-13;
}

TEST_P(HeadTest, AStepInPartsIsTheStepHoweverMuchIsKnown) {
  run([&]<class T>() {
    using Known = typename SphericalLayer<T>::Known;
    for (const auto known : {Known::nothing, Known::statistics, Known::gradient}) {
      SCOPED_TRACE(fmt::format("known: {}", static_cast<int>(known)));
      Dice dice(5 * seeds(1).front());
      Pair<T> pair(GetParam());
      for (int t = 0; t < 30; ++t) {
        const auto batch = make_positive(dice, 1 + t % 7);
        const TypedMinibatch<T> typed(batch);
        Matrix<T> expected(d, batch.examples()), gradient(d, batch.examples());
        pair.whole->step(typed.H, typed.targets(), 0.02, expected);
        HostStatistics seen;
        pair.spherical->observe_batch(typed.H, typed.targets(), seen);
        const Judged judged(seen, batch);
        if (known == Known::gradient) {
          pair.spherical->backpropagate_batch(typed.H, typed.targets(), judged.given(), gradient, Known::statistics);
        }
        if (known == Known::nothing) pair.parts->top_k(typed.H, 3);  // and what was known is no more
        // Whoever has the gradient already need not want it again.
        const bool wanted = known != Known::gradient || t % 2 == 0;
        pair.spherical->update_batch(typed.H, typed.targets(), judged.given(), 0.02,
                                     wanted ? gradient.view() : MatrixView<T>(), known);
        const double scale = norm<T>(expected.view()) + 1;
        ASSERT_TRUE(is_near<T>(gradient, to_double(std::move(expected)), limit<T>(), scale)) << "∇H of step " << t;
      }
      const auto W = to_double(pair.whole->weights());
      EXPECT_TRUE(is_near<T>(pair.parts->weights(), W, limit<T>(), norm(W)));
      EXPECT_EQ(pair.parts->steps(), 30);
    }
  });
}

TEST_P(HeadTest, BadDerivativesAreRefusedAndChangeNothing) {
  run([&]<class T>() {
    Dice dice(6);
    Pair<T> pair(GetParam());
    const auto batch = make_positive(dice, 3);
    const TypedMinibatch<T> typed(batch);
    HostStatistics seen;
    pair.spherical->observe_batch(typed.H, typed.targets(), seen);
    const auto W = pair.parts->weights();
    const auto update = [&](const Judged& judged, double eta) {
      pair.spherical->update_batch(typed.H, typed.targets(), judged.given(), eta);
    };
    Judged nan(seen, batch), wrong(seen, batch), infinite(seen, batch);
    nan.a[1] = std::numeric_limits<double>::quiet_NaN();
    wrong.g.pop_back();
    infinite.g[2] = std::numeric_limits<double>::infinity();
    expect_throw<NumericalError>([&] { update(nan, 0.1); }, {"∂L/∂q = nan", "example 1"});
    expect_throw<NumericalError>([&] { update(infinite, 0.1); }, {"∂L/∂o = inf", "example 0"});
    expect_throw<std::invalid_argument>([&] { update(wrong, 0.1); }, {"8 by o", "9 targets"});
    expect_throw<std::invalid_argument>([&] { update(Judged(seen, batch), -1); }, {"eta = -1"});
    EXPECT_TRUE(is_identical<T>(pair.parts->weights(), W));
    EXPECT_EQ(pair.parts->steps(), 0);

    LayerOptions options{.outputs = D, .dim = d};  // squared error: no sum
    const auto layer = make_layer<T>(GetParam(), options);
    expect_throw<std::invalid_argument>(
        [&] {
          dynamic_cast<SphericalLayer<T>&>(*layer).update_batch(typed.H, typed.targets(), Judged(seen, batch).given(),
                                                                0.1);
        },
        {"declared not to use the sum"});
  });
}

TEST_P(HeadTest, StartsFromTheWeightsThatAreGiven) {
  run([&]<class T>() {
    Dice dice(7);
    const auto W0 = dice.matrix<double>(d, D);
    LayerOptions options{.outputs = D, .dim = d, .loss = TaylorSoftmax{}, .initial = Initial::given};
    options.initial_weights = [&](Size output, std::span<double> row) {
      std::copy_n(W0.view().column(output), d, row.begin());
    };
    const auto layer = make_layer<T>(GetParam(), options);
    const auto W = to_double(layer->weights());
    EXPECT_TRUE(is_near<T>(layer->weights(), W0, 1e-7, norm(W0)));
    EXPECT_TRUE(is_near<T>(layer->gram(), Oracle(Matrix<double>::copy_of(W)).Q(), limit<T>(), norm(W) * norm(W)));

    options.initial_weights = [](Size output, std::span<double> row) { row[1] = output == 3 ? NAN : 0; };
    expect_throw<std::invalid_argument>([&] { make_layer<T>(GetParam(), options); }, {"initial W(3, 1) = nan"});
  });
}

/// A device may put operations off. Nothing may be left when a call returns: the caller's memory is his again, and what
/// he asked for is on its way.
TEST(Submit, WhatWasPutOffBeginsBeforeACallReturns) {
  Dice dice(9);
  const auto batch = make_positive(dice, 4);
  const TypedMinibatch<double> typed(batch);
  HeadOptions options = options_of("windowed");
  options.layer = {.outputs = D, .dim = d};
  const auto backend = std::make_shared<EnqueueingBackend<double>>();
  const auto layer = make_head<double>(options, backend);
  auto& spherical = dynamic_cast<SphericalLayer<double>&>(*layer);
  Matrix<double> grad(d, 4), scores(3, 4), W(d, D);
  const std::vector<Index> rows{0, 3, 7};
  const std::vector<double> a(4, 0.5), g(batch.values.size(), -0.25);
  const GivenDerivatives given{a, {}, g};
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"step", [&] { layer->step(typed.H, typed.targets(), 0.01, grad); }},
      {"step without gradient", [&] { layer->step(typed.H, typed.targets(), 0.01, {}); }},
      {"evaluate", [&] { layer->evaluate(typed.H, typed.targets(), grad); }},
      {"scores", [&] { layer->scores(typed.H, rows, scores); }},
      {"weights", [&] { layer->weights(0, W); }},
      {"backpropagate", [&] { spherical.backpropagate_batch(typed.H, typed.targets(), given, grad); }},
      {"update", [&] { spherical.update_batch(typed.H, typed.targets(), given, 0.01); }},
  };
  for (const auto& [name, call] : calls) {
    const auto before = backend->submits;
    call();
    EXPECT_GT(backend->submits, before) << name;
  }
  const auto before = backend->submits;
  layer->enqueue_step(typed.H, typed.targets(), 0.01, grad);
  EXPECT_EQ(backend->submits, before) << "a step that is enqueued waits for company";
}

}  // namespace
}  // namespace widehead::test
