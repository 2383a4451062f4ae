/// Scores and probabilities of layers with each loss, beside the definition.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "compare.h"
#include "errors.h"
#include "heads_under_test.h"
#include "loss_oracle.h"
#include "losses_under_test.h"

namespace widehead::test {
namespace {

INSTANTIATE_TEST_SUITE_P(All, HeadTest, testing::ValuesIn(heads_with_losses()), case_name);

std::vector<LossCase> softmax_losses() {
  return {spherical_case(0.1), spherical_case(1.3), spherical_outside_case(0.01), taylor_case()};
}

/// A layer after some steps, most of whose rows were never named: they have moved by U and ω alone.
template <class T>
BesideLossOracle<T> trained(const HeadCase& head, const LossCase& loss, Size D = 40, Size d = 6) {
  BesideLossOracle<T> pair(head, loss, {.outputs = D, .dim = d, .initial = Initial::normal, .seed = 3});
  Dice dice(74 * seeds(1).front());
  for (int t = 0; t < 25; ++t) {
    auto batch = pair.make(dice, {D, d, 3, 2});
    pair.step(batch);
  }
  return pair;
}

TEST_P(HeadTest, ScoresTopKAndWeightsHaveThePartThatAllOutputsShare) {
  run([&]<class T>() {
    for (const auto& loss : losses_under_test()) {
      if (!uses_sum(loss.loss)) continue;
      SCOPED_TRACE(loss.label);
      const auto pair = trained<T>(GetParam(), loss);
      const double slack = pair.limit() * pair.oracle.W_scale;
      const auto H = Dice(75 * seeds(1).front()).matrix<T>(6, 4);
      const auto O = pair.oracle.outputs(to_double(H));
      for (const auto& [first, count] : {std::pair<Size, Size>{0, 40}, {39, 1}, {7, 9}}) {
        Padded<T> out(6, count);
        pair.layer->weights(first, out);
        EXPECT_TRUE(is_near<T>(out, pair.oracle.W.view().columns(first, count), 1, slack));
        EXPECT_TRUE(out.rim_is_intact());
      }
      for (const auto& rows : {std::vector<Index>{39, 0, 7, 7, 3}, {4, 5, 6, 7}}) {
        const auto count = static_cast<Size>(rows.size());
        Matrix<double> truth(count, 4);
        for (Size j = 0; j < 4; ++j) {
          for (Size r = 0; r < count; ++r) truth(r, j) = O(rows[static_cast<std::size_t>(r)], j);
        }
        Padded<T> out(count, 4);
        pair.layer->scores(H, rows, out);
        EXPECT_TRUE(is_near<T>(out, truth, norm(H), slack));
        EXPECT_TRUE(out.rim_is_intact());
      }
      const auto top = pair.layer->top_k(H, 5);
      for (Size j = 0; j < 4; ++j) {
        std::vector<double> sorted(O.view().column(j), O.view().column(j) + 40);
        std::sort(sorted.rbegin(), sorted.rend());
        for (Size i = 0; i < 5; ++i) {
          EXPECT_NEAR(static_cast<double>(top.scores(i, j)), sorted[static_cast<std::size_t>(i)], norm(H) * slack);
          EXPECT_NEAR(O(top.outputs(i, j), j), sorted[static_cast<std::size_t>(i)], norm(H) * slack);
        }
      }
    }
  });
}

TEST_P(HeadTest, LogProbIsThatOfTheDefinitionByEntryAsGiven) {
  run([&]<class T>() {
    for (const auto& loss : softmax_losses()) {
      SCOPED_TRACE(loss.label);
      const auto pair = trained<T>(GetParam(), loss);
      Dice dice(76 * seeds(1).front());
      const auto minibatch = pair.make(dice, {40, 6, 8, 5, true});
      const TypedMinibatch<T> typed(minibatch);
      const auto O = pair.oracle.outputs(minibatch.H);
      std::vector<double> log_p(minibatch.indices.size());
      const auto W = pair.layer->weights();
      pair.layer->log_prob(typed.H, typed.targets(), log_p);
      EXPECT_TRUE(is_identical<T>(pair.layer->weights(), W));
      // Poles are half their size away at least: what o is off by counts 4/ε at most, or 2/√ε.
      const double slack = pair.limit() * pair.oracle.W_scale * norm(minibatch.H) * 40;
      double sum = 0, total = 0;
      for (Size j = 0; j < 8; ++j) {
        const std::span<const double> o(O.view().column(j), 40);
        for (std::size_t k = 0; k < 5; ++k) {
          const std::size_t e = static_cast<std::size_t>(j) * 5 + k;
          const Target target{minibatch.indices[e], 1};
          const double truth = -loss.define(o, {&target, 1}).loss;
          EXPECT_NEAR(log_p[e], truth, slack) << "entry " << e;
          sum += minibatch.values[e] * truth;
          total += minibatch.values[e];
        }
      }
      const double perplexity = std::exp(-sum / total);
      EXPECT_NEAR(pair.layer->perplexity(typed.H, typed.targets()), perplexity, perplexity * slack);
      EXPECT_EQ(pair.layer->steps(), 25);
    }
  });
}

TEST_P(HeadTest, ProbabilitiesOfAllOutputsAddUpToOne) {
  run([&]<class T>() {
    for (const auto& loss : softmax_losses()) {
      SCOPED_TRACE(loss.label);
      const auto pair = trained<T>(GetParam(), loss);
      const auto H = Dice(77 * seeds(1).front()).matrix<T>(6, 5);
      std::vector<Index> rows(40);
      std::iota(rows.begin(), rows.end(), 0);
      Padded<double> p(40, 5);
      const double slack = sizeof(T) == 4 ? 1e-5 : 1e-12;
      pair.layer->probabilities(H, rows, p);
      EXPECT_TRUE(p.rim_is_intact());
      const auto O = pair.oracle.outputs(to_double(H));
      for (Size j = 0; j < 5; ++j) {
        double sum = 0;
        for (Size i = 0; i < 40; ++i) {
          const Target target{static_cast<Index>(i), 1};
          const double truth = std::exp(-loss.define({O.view().column(j), 40}, {&target, 1}).loss);
          EXPECT_NEAR(p.view()(i, j), truth, slack) << i << ", " << j;
          sum += p.view()(i, j);
        }
        EXPECT_NEAR(sum, 1, slack) << "example " << j;
      }
      // some of them, in any order
      const std::vector<Index> some{31, 2, 2, 17};
      Padded<double> q(4, 5);
      pair.layer->probabilities(H, some, q);
      for (Size j = 0; j < 5; ++j) {
        for (Size r = 0; r < 4; ++r) {
          EXPECT_NEAR(q.view()(r, j), p.view()(some[static_cast<std::size_t>(r)], j), slack) << r << ", " << j;
        }
      }
      EXPECT_TRUE(q.rim_is_intact());
    }
  });
}

TEST_P(HeadTest, RefusesProbabilitiesOfALossThatHasNone) {
  run([&]<class T>() {
    Dice dice(78);
    const auto minibatch = make_minibatch(dice, {20, 4, 2, 1});
    const TypedMinibatch<T> typed(minibatch);
    std::vector<double> log_p(2), wrong(3);
    for (const auto& loss : {squared_case(), weighted_case(0.05, 1), z_case(0.05, 40), own_case()}) {
      LayerOptions options{.outputs = 20, .dim = 4};
      options.loss = loss.loss;
      const auto layer = make_layer<T>(GetParam(), options);
      const std::vector<std::string> words{name_of(loss.loss), "no probabilities"};
      expect_throw<std::invalid_argument>([&] { layer->log_prob(typed.H, typed.targets(), log_p); }, words);
      expect_throw<std::invalid_argument>([&] { layer->perplexity(typed.H, typed.targets()); }, words);
      const std::vector<Index> rows{3};
      expect_throw<std::invalid_argument>([&] { layer->probabilities(typed.H, rows, Matrix<double>(1, 2)); }, words);
    }
    LayerOptions options{.outputs = 20, .dim = 4};
    options.loss = TaylorSoftmax{};
    const auto layer = make_layer<T>(GetParam(), options);
    expect_throw<std::invalid_argument>([&] { layer->log_prob(typed.H, typed.targets(), wrong); },
                                        {"3 values", "2 targets"});
    const std::vector<Index> rows{3, 20};
    expect_throw<std::invalid_argument>([&] { layer->probabilities(typed.H, rows, Matrix<double>(2, 2)); },
                                        {"rows[1] = 20", "D = 20"});
    expect_throw<std::invalid_argument>([&] { layer->probabilities(typed.H, {}, Matrix<double>(2, 2)); }, {"2 x 2"});
    // a perplexity is a mean: over nothing there is none
    const std::vector<std::int64_t> offsets{0, 1, 2};
    const std::vector<Index> indices{3, 5};
    const std::vector<T> zeros{0, 0}, cancel{1, -1};
    for (const auto& values : {zeros, cancel}) {
      const SparseBatch<T> targets(20, offsets, indices, values);
      expect_throw<std::invalid_argument>([&] { layer->perplexity(typed.H, targets); }, {"add up to 0"});
    }
    const std::vector<std::int64_t> none{0, 0, 0};
    expect_throw<std::invalid_argument>([&] { layer->perplexity(typed.H, SparseBatch<T>(20, none, {}, {})); },
                                        {"add up to 0"});
  });
}

}  // namespace
}  // namespace widehead::test
