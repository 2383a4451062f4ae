/// Questions to a layer that change nothing: scores, top_k, weights; and the W it starts from.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "compare.h"
#include "heads_under_test.h"
#include "oracle.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

INSTANTIATE_TEST_SUITE_P(All, HeadTest, testing::ValuesIn(in_each_dtype(all_heads())), case_name);

/// A layer after a few steps.
template <class T>
std::unique_ptr<OutputLayer<T>> trained_layer(const HeadCase& head, Size D, Size d, Initial initial = Initial::normal) {
  auto layer = make_layer<T>(head, {.outputs = D, .dim = d, .initial = initial});
  Dice dice(51);
  for (int t = 0; t < 7; ++t) {
    const auto minibatch = make_minibatch(dice, {D, d, 4, 2});
    const TypedMinibatch<T> typed(minibatch);
    layer->step(typed.H, typed.targets(), eta_for(minibatch, 0.2));
  }
  return layer;
}

/// Products of d terms with W = VU, whose U has a condition of a few.
template <class T>
double limit(Size d) {
  return 4 * tolerance::product<T>(d);
}

TEST_P(HeadTest, WeightsOfARangeAreTheColumnsOfAll) {
  run([&]<class T>() {
    const auto layer = trained_layer<T>(GetParam(), 23, 5);
    const auto W = layer->weights();
    for (const auto& [first, count] : {std::pair<Size, Size>{0, 23}, {0, 1}, {22, 1}, {7, 9}, {23, 0}, {0, 0}}) {
      SCOPED_TRACE(fmt::format("{} rows from {}", count, first));
      Padded<T> out(5, count);
      layer->weights(first, out);
      EXPECT_TRUE(is_near<T>(out, to_double<T>(W.view().columns(first, count)), limit<T>(5)));
      EXPECT_TRUE(out.rim_is_intact());
    }
  });
}

TEST_P(HeadTest, ScoresAreTheOutputsOfTheNamedRows) {
  run([&]<class T>() {
    for (const Size m : {1, 6}) {
      const auto layer = trained_layer<T>(GetParam(), 23, 5);
      const Oracle oracle(to_double(layer->weights()));
      Padded<T> H(Dice(52).matrix<T>(5, m));
      const auto O = oracle.outputs(to_double<T>(H));
      const std::vector<Index> rows{22, 0, 7, 7, 3};
      Padded<T> out(5, m);
      layer->scores(H, rows, out);
      Matrix<double> truth(5, m);
      for (Size j = 0; j < m; ++j) {
        for (Size r = 0; r < 5; ++r) truth(r, j) = O(rows[static_cast<std::size_t>(r)], j);
      }
      EXPECT_TRUE(is_near<T>(out, truth, limit<T>(5), norm(oracle.W) * norm<T>(H)));
      EXPECT_TRUE(out.rim_is_intact());
      layer->scores(H, {}, Matrix<T>(0, m));  // none asked for, none given
    }
  });
}

TEST_P(HeadTest, TopKIsTheSortedHeadOfAllOutputs) {
  run([&]<class T>() {
    for (const auto& [D, d] :
         {std::pair<Size, Size>{1, 1}, {30, 4}, {2 * 8192 + 100, 2}}) {  // the last: three blocks of rows
      const auto layer = trained_layer<T>(GetParam(), D, d);
      const Oracle oracle(to_double(layer->weights()));
      const auto H = Dice(53).matrix<T>(d, 3);
      const auto O = oracle.outputs(to_double(H));
      const double slack = limit<T>(d) * norm(oracle.W) * norm(H);
      for (const Size k : {Size{1}, std::min<Size>(D, 7), D}) {
        SCOPED_TRACE(fmt::format("D = {}, k = {}", D, k));
        const auto top = layer->top_k(H, k);
        ASSERT_EQ(top.outputs.rows(), k);
        ASSERT_EQ(top.scores.cols(), 3);
        for (Size j = 0; j < 3; ++j) {
          std::vector<double> sorted(O.view().column(j), O.view().column(j) + D);
          std::sort(sorted.rbegin(), sorted.rend());
          std::vector<char> seen(static_cast<std::size_t>(D));
          for (Size i = 0; i < k; ++i) {
            const Index output = top.outputs(i, j);
            ASSERT_TRUE(output >= 0 && output < D && !seen[static_cast<std::size_t>(output)]++) << output;
            // rounding may swap close ones: what comes i-th scores as the i-th does
            ASSERT_NEAR(static_cast<double>(top.scores(i, j)), sorted[static_cast<std::size_t>(i)], slack);
            ASSERT_NEAR(static_cast<double>(top.scores(i, j)), O(output, j), slack);
            ASSERT_TRUE(i == 0 || top.scores(i - 1, j) >= top.scores(i, j));
          }
        }
      }
    }
  });
}

TEST_P(HeadTest, TopKOrdersEqualScoresByOutput) {
  run([&]<class T>() {
    for (const Size k : {1, 3, 12}) {
      const auto layer = make_layer<T>(GetParam(), {.outputs = 12, .dim = 3});  // W = 0: all are equal
      const auto top = layer->top_k(Dice(54).matrix<T>(3, 2), k);
      for (Size j = 0; j < 2; ++j) {
        for (Size i = 0; i < k; ++i) EXPECT_EQ(top.outputs(i, j), i);
      }
    }
    // One output learnt to be above all others, one below.
    const auto layer = make_layer<T>(GetParam(), {.outputs = 12, .dim = 1});
    Matrix<T> h(1, 1);
    h(0, 0) = 1;
    const std::vector<std::int64_t> offsets{0, 2};
    const std::vector<Index> indices{9, 4};
    const std::vector<T> values{1, -1};
    layer->step(h, SparseBatch<T>(12, offsets, indices, values), 0.125);
    const auto top = layer->top_k(h, 12);
    const std::vector<Index> order{9, 0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 4};
    for (Size i = 0; i < 12; ++i) EXPECT_EQ(top.outputs(i, 0), order[static_cast<std::size_t>(i)]);
    EXPECT_EQ(top.scores(0, 0), T(0.25));
    EXPECT_EQ(top.scores(11, 0), T(-0.25));
  });
}

TEST_P(HeadTest, QuestionsChangeNothing) {
  run([&]<class T>() {
    const auto layer = trained_layer<T>(GetParam(), 23, 5), twin = trained_layer<T>(GetParam(), 23, 5);
    const auto H = Dice(55).matrix<T>(5, 9);
    const std::vector<Index> rows{1, 2};
    layer->scores(H, rows, Matrix<T>(2, 9));
    layer->top_k(H, 4);
    layer->diagnostics();
    layer->gram();
    EXPECT_TRUE(is_identical<T>(layer->weights(), twin->weights()));
    EXPECT_TRUE(is_identical<T>(layer->gram(), twin->gram()));
    Dice dice(56);
    const auto minibatch = make_minibatch(dice, {23, 5, 4, 2});
    const TypedMinibatch<T> typed(minibatch);
    EXPECT_EQ(layer->step(typed.H, typed.targets(), 0.01), twin->step(typed.H, typed.targets(), 0.01));
    EXPECT_TRUE(is_identical<T>(layer->weights(), twin->weights()));
  });
}

TEST_P(HeadTest, TellsWhatItIs) {
  run([&]<class T>() {
    const auto layer = trained_layer<T>(GetParam(), 23, 5);
    EXPECT_EQ(layer->head(), GetParam().options.head);
    EXPECT_EQ(layer->outputs(), 23);
    EXPECT_EQ(layer->dim(), 5);
    EXPECT_EQ(layer->steps(), 7);
    EXPECT_EQ(layer->backend().threads(), 1);
    for (const auto& figures : {layer->counters(), layer->diagnostics()}) {
      const auto steps =
          std::find_if(figures.begin(), figures.end(), [](const auto& figure) { return figure.name == "steps"; });
      ASSERT_NE(steps, figures.end());
      EXPECT_EQ(steps->value, 7);
    }
    for (const auto& shape : layer->step_products(4)) EXPECT_GT(shape.flops(), 0);
  });
}

// ── the W it starts from ────────────────────────────────────────────────────────────────────────

TEST_P(HeadTest, StartsFromZeroOrFromTheNormalWOfItsSeed) {
  run([&]<class T>() {
    constexpr Size D = 400, d = 25;
    const auto zero = make_layer<T>(GetParam(), {.outputs = D, .dim = d});
    EXPECT_EQ(norm(zero->weights()), 0);
    EXPECT_EQ(norm(zero->gram()), 0);

    LayerOptions options{.outputs = D, .dim = d, .initial = Initial::normal, .initial_scale = 0.5, .seed = 8};
    const auto layer = make_layer<T>(GetParam(), options);
    const auto W = to_double(layer->weights());
    // D d = 10⁴ values: their mean is off by about σ/100, their variance by σ²√2/100
    const double mean = std::accumulate(W.data(), W.data() + W.size(), 0.0) / static_cast<double>(W.size());
    EXPECT_NEAR(mean, 0, 5 * 0.5 / 100);
    EXPECT_NEAR(norm(W) * norm(W) / static_cast<double>(W.size()), 0.25, 5 * 0.25 * std::sqrt(2) / 100);
    EXPECT_TRUE(
        is_near<T>(layer->gram(), Oracle(Matrix<double>::copy_of(W)).Q(), tolerance::product<T>(D), norm(W) * norm(W)));

    // The same W in float and double, on any number of threads; another one for another seed.
    auto dense = options_of("dense");
    dense.layer = options;
    EXPECT_TRUE(is_identical<double>(W, make_head<double>(dense, make_cpu_backend<double>(3))->weights()));
    options.seed = 9;
    EXPECT_FALSE(is_near<T>(make_layer<T>(GetParam(), options)->weights(), W, 0.5));
  });
}

TEST_P(HeadTest, StartsAtTheScaleOfOneOverTheRootOfDUnlessTold) {
  run([&]<class T>() {
    const auto W = make_layer<T>(GetParam(), {.outputs = 400, .dim = 25, .initial = Initial::normal})->weights();
    EXPECT_NEAR(norm(W) * norm(W) / static_cast<double>(W.size()), 1.0 / 400, 5 * std::sqrt(2) / 100 / 400);
  });
}

}  // namespace
}  // namespace widehead::test
