#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "dice.h"
#include "errors.h"
#include "widehead/eval/ranking.h"

namespace widehead::test {
namespace {

using List = std::vector<Index>;

/// A random list of distinct outputs, and a random set of relevant ones.
struct Example {
  explicit Example(std::uint64_t seed, Size outputs = 40) {
    Dice dice(seed);
    ranked.resize(static_cast<std::size_t>(outputs));
    std::iota(ranked.begin(), ranked.end(), 0);
    relevant = ranked;
    std::mt19937_64 engine(seed);
    std::shuffle(ranked.begin(), ranked.end(), engine);
    std::shuffle(relevant.begin(), relevant.end(), engine);
    ranked.resize(static_cast<std::size_t>(dice.between(0, outputs)));
    relevant.resize(static_cast<std::size_t>(dice.between(1, outputs)));
    std::sort(relevant.begin(), relevant.end());
    for (Size i = 0; i < outputs; ++i) inverse.push_back(dice.uniform(1, 20));
  }
  double gain(Index output) const { return inverse[static_cast<std::size_t>(output)]; }
  /// R from the best inverse propensity down: the ideal list.
  List ideal() const {
    List list = relevant;
    std::sort(list.begin(), list.end(), [&](Index a, Index b) { return gain(a) > gain(b); });
    return list;
  }
  List ranked, relevant;
  std::vector<double> inverse;
};

TEST(Ranking, MatchesValuesByHand) {
  const List ranked{3, 1, 4, 2}, relevant{1, 2, 5};
  EXPECT_EQ(precision_at(1, ranked, relevant), 0);
  EXPECT_EQ(precision_at(2, ranked, relevant), 0.5);
  EXPECT_EQ(precision_at(4, ranked, relevant), 0.5);
  EXPECT_EQ(precision_at(8, ranked, relevant), 0.25) << "places beyond the list are misses";
  EXPECT_DOUBLE_EQ(recall_at(2, ranked, relevant), 1.0 / 3);
  EXPECT_DOUBLE_EQ(recall_at(4, ranked, relevant), 2.0 / 3);
  EXPECT_DOUBLE_EQ(recall_at(1, List{5}, relevant), 1.0 / 3) << "of |R|, not of min(k, |R|)";
  EXPECT_EQ(accuracy_at(1, ranked, relevant), 0);
  EXPECT_EQ(accuracy_at(2, ranked, relevant), 1);
  EXPECT_EQ(accuracy_at(4, ranked, relevant), 1);
  EXPECT_EQ(reciprocal_rank(ranked, relevant), 0.5);
  EXPECT_EQ(reciprocal_rank(List{7, 8}, relevant), 0);
  // 1/log₂3 = 0.63093, 1/log₂5 = 0.43068; the ideal at 2 is 1.63093, at 4 (three relevant) 2.13093
  EXPECT_EQ(ndcg_at(1, ranked, relevant), 0);
  EXPECT_NEAR(ndcg_at(2, ranked, relevant), 0.386853, 1e-6);
  EXPECT_NEAR(ndcg_at(4, ranked, relevant), 0.498189, 1e-6);
}

TEST(Ranking, MatchesTheDefinitions) {
  for (const auto seed : seeds(200)) {
    SCOPED_TRACE(seed);
    const Example x(seed);
    const std::set<Index> relevant(x.relevant.begin(), x.relevant.end());
    const auto k = Dice(seed).between(1, 50);
    double hits = 0, gain = 0, ideal = 0, scored = 0, first = 0;
    for (Size i = 1; i <= k; ++i) {
      const double discount = std::log(2.0) / std::log(static_cast<double>(i + 1));
      if (i <= static_cast<Size>(relevant.size())) ideal += discount;
      if (i > static_cast<Size>(x.ranked.size())) continue;
      const Index r = x.ranked[static_cast<std::size_t>(i - 1)];
      if (relevant.count(r) == 0) continue;
      ++hits;
      gain += discount;
      scored += x.gain(r);
    }
    for (std::size_t i = x.ranked.size(); i > 0; --i) {
      if (relevant.count(x.ranked[i - 1]) > 0) first = 1 / static_cast<double>(i);
    }
    double attainable = 0;
    const auto best = x.ideal();
    for (std::size_t i = 0; i < std::min(best.size(), static_cast<std::size_t>(k)); ++i) attainable += x.gain(best[i]);

    const double dk = static_cast<double>(k), R = static_cast<double>(relevant.size());
    EXPECT_DOUBLE_EQ(precision_at(k, x.ranked, x.relevant), hits / dk);
    EXPECT_DOUBLE_EQ(recall_at(k, x.ranked, x.relevant), hits / R);
    EXPECT_NEAR(ndcg_at(k, x.ranked, x.relevant), gain / ideal, 1e-12);
    EXPECT_EQ(accuracy_at(k, x.ranked, x.relevant), hits > 0 ? 1 : 0);
    EXPECT_DOUBLE_EQ(reciprocal_rank(x.ranked, x.relevant), first);
    const auto psp = propensity_scored_precision_at(k, x.ranked, x.relevant, x.inverse);
    EXPECT_NEAR(psp.gained, scored / dk, 1e-12 * scored);
    EXPECT_NEAR(psp.attainable, attainable / dk, 1e-12 * attainable);
    EXPECT_LE(ndcg_at(k, x.ranked, x.relevant), 1 + 1e-12);
    EXPECT_LE(psp.gained, psp.attainable * (1 + 1e-12));
  }
}

TEST(Ranking, OfTheIdealListIsOne) {
  for (const auto seed : seeds(50)) {
    SCOPED_TRACE(seed);
    const Example x(seed);
    const auto k = Dice(seed).between(1, 50);
    const auto list = x.ideal();
    EXPECT_NEAR(ndcg_at(k, list, x.relevant), 1, 1e-12);
    const auto psp = propensity_scored_precision_at(k, list, x.relevant, x.inverse);
    EXPECT_NEAR(psp.gained, psp.attainable, 1e-12 * psp.attainable);
    EXPECT_EQ(recall_at(static_cast<Size>(list.size()), list, x.relevant), 1);
    EXPECT_EQ(reciprocal_rank(list, x.relevant), 1);
  }
}

TEST(Propensities, MatchTheFormula) {
  const std::vector<std::int64_t> counts{0, 10, 1000};
  const auto inverse = inverse_propensities(counts, 1000);
  ASSERT_EQ(inverse.size(), 3U);
  const double C = (std::log(1000.0) - 1) * std::pow(2.5, 0.55);
  for (std::size_t l = 0; l < 3; ++l) {
    const double p = 1 / (1 + C * std::exp(-0.55 * std::log(static_cast<double>(counts[l]) + 1.5)));
    EXPECT_NEAR(inverse[l], 1 / p, 1e-12 / p);
  }
  EXPECT_NEAR(inverse[0], 8.824189, 1e-6);  // 1 + 5.907755 · 1.655263 · 0.800110
  EXPECT_GT(inverse[0], inverse[1]) << "what is rare is worth more";
  EXPECT_GT(inverse[2], 1);
  const auto other = inverse_propensities(counts, 1000, {0, 0.4});
  EXPECT_NEAR(other[1], std::log(1000.0), 1e-12) << "A = 0: 1 + C = log N whatever the count";
}

TEST(Propensities, RefuseWhatHasNone) {
  const std::vector<std::int64_t> counts{0, 10}, negative{4, -1};
  expect_throw<std::invalid_argument>([&] { inverse_propensities(counts, 2); },
                                      {"examples = 2, but log N must exceed 1"});
  expect_throw<std::invalid_argument>([&] { inverse_propensities(counts, 9); },
                                      {"examples_with_output: [1] = 10, but there are 9 examples"});
  expect_throw<std::invalid_argument>([&] { inverse_propensities(negative, 9); }, {"[1] = -1"});
  expect_throw<std::invalid_argument>([&] { inverse_propensities(counts, 10, {-1, 1}); }, {"A = -1"});
  expect_throw<std::invalid_argument>([&] { inverse_propensities(counts, 10, {1, 0}); }, {"B = 0"});
  EXPECT_EQ(inverse_propensities(counts, 10).size(), 2U);
}

TEST(Ranking, RefusesWhatIsNotMeasurable) {
  const List ranked{3, 1, 4, 1}, relevant{1, 4}, unsorted{4, 1}, twice{1, 1};
  const std::vector<double> inverse(4, 1.0);
  expect_throw<std::invalid_argument>([&] { precision_at(0, ranked, relevant); }, {"k = 0, but it must be at least 1"});
  expect_throw<std::invalid_argument>([&] { recall_at(1, ranked, {}); }, {"relevant: no output"});
  expect_throw<std::invalid_argument>([&] { ndcg_at(1, ranked, unsorted); },
                                      {"relevant: [1] = 1 follows 4, but they must increase"});
  expect_throw<std::invalid_argument>([&] { ndcg_at(1, ranked, twice); }, {"relevant: [1] = 1 follows 1"});
  expect_throw<std::invalid_argument>([&] { ndcg_at(4, ranked, relevant); }, {"ranked: [3] = 1 stands at 1 already"});
  EXPECT_NO_THROW(ndcg_at(3, ranked, relevant));
  expect_throw<std::invalid_argument>([&] { propensity_scored_precision_at(1, ranked, relevant, inverse); },
                                      {"relevant: output 4, but there are 4 propensities"});
  expect_throw<std::invalid_argument>(
      [&] {
        propensity_scored_precision_at(1, ranked, List{-1, 2}, inverse);
      },
      {"relevant: output -1"});
}

TEST(RankingSummary, IsTheMeanOverExamplesThatHaveRelevantOutputs) {
  RankingSummary summary({3, 10, 1});
  EXPECT_EQ(summary.largest_k(), 10);
  const std::vector<Size> ks{3, 10, 1};
  std::vector<double> precision(3), recall(3), ndcg(3), accuracy(3);
  double mrr = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Example x(seed);
    summary.add(x.ranked, x.relevant);
    if (seed % 4 == 0) summary.add(x.ranked, {});
    for (std::size_t i = 0; i < 3; ++i) {
      precision[i] += precision_at(ks[i], x.ranked, x.relevant) / 20;
      recall[i] += recall_at(ks[i], x.ranked, x.relevant) / 20;
      ndcg[i] += ndcg_at(ks[i], x.ranked, x.relevant) / 20;
      accuracy[i] += accuracy_at(ks[i], x.ranked, x.relevant) / 20;
    }
    mrr += reciprocal_rank(x.ranked, x.relevant) / 20;
  }
  EXPECT_EQ(summary.examples(), 20);
  EXPECT_EQ(summary.skipped(), 5);
  const auto metrics = summary.metrics();
  ASSERT_EQ(metrics.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(metrics[i].k, ks[i]);
    EXPECT_NEAR(metrics[i].precision, precision[i], 1e-12);
    EXPECT_NEAR(metrics[i].recall, recall[i], 1e-12);
    EXPECT_NEAR(metrics[i].ndcg, ndcg[i], 1e-12);
    EXPECT_NEAR(metrics[i].accuracy, accuracy[i], 1e-12);
    EXPECT_TRUE(std::isnan(metrics[i].psp)) << "there are no propensities";
  }
  EXPECT_NEAR(summary.mrr(), mrr, 1e-12);
}

TEST(RankingSummary, PropensityScoredPrecisionIsARatioOfSums) {
  RankingSummary summary({1}, {10, 2, 1});
  summary.add(List{1}, List{0, 1});  // gains 2 of 10
  summary.add(List{2}, List{2});     // gains 1 of 1
  EXPECT_DOUBLE_EQ(summary.metrics()[0].psp, 3.0 / 11);
}

TEST(RankingSummary, OfNothingIsNotANumber) {
  const RankingSummary summary({5});
  EXPECT_TRUE(std::isnan(summary.metrics()[0].precision));
  EXPECT_TRUE(std::isnan(summary.mrr()));
}

TEST(RankingSummary, RefusesAnExampleWholly) {
  RankingSummary summary({1, 3}, {1, 1, 1, 1});
  summary.add(List{0, 1}, List{0});
  expect_throw<std::invalid_argument>([&] { summary.add(List{0, 1}, List{0, 4}); }, {"output 4"});
  expect_throw<std::invalid_argument>([&] { summary.add(List{0, 1, 0}, List{0, 3}); }, {"ranked: [2] = 0"});
  EXPECT_EQ(summary.examples(), 1);
  EXPECT_EQ(summary.metrics()[0].precision, 1);
  EXPECT_EQ(summary.metrics()[0].recall, 1);
  EXPECT_EQ(summary.mrr(), 1);
  expect_throw<std::invalid_argument>([] { RankingSummary({}); }, {"ks: none"});
  expect_throw<std::invalid_argument>([] { RankingSummary({3, 0}); }, {"k = 0"});
}

template <class T>
void check_top_k(std::uint64_t seed) {
  SCOPED_TRACE(seed);
  Dice dice(seed);
  std::vector<T> scores(static_cast<std::size_t>(dice.between(0, 60)));
  for (auto& score : scores) score = static_cast<T>(dice.between(-3, 3));  // many ties
  List excluded, expected;
  for (Index i = 0; i < static_cast<Index>(scores.size()) + 5; ++i) {
    if (dice.between(0, 2) == 0) excluded.push_back(i);  // some of them beyond the end
  }
  for (Index i = 0; i < static_cast<Index>(scores.size()); ++i) {
    if (std::find(excluded.begin(), excluded.end(), i) == excluded.end()) expected.push_back(i);
  }
  std::stable_sort(expected.begin(), expected.end(), [&](Index a, Index b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  const Size k = dice.between(1, 70);
  expected.resize(std::min(expected.size(), static_cast<std::size_t>(k)));
  EXPECT_EQ(top_k_excluding<T>(scores, k, excluded), expected);
}

TEST(TopKExcluding, IsTheSortedListWithoutThem) {
  for (const auto seed : seeds(100)) {
    check_top_k<float>(seed);
    check_top_k<double>(seed);
  }
}

TEST(TopKExcluding, TakesInfinitiesButNotNaN) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> scores{-inf, 1, inf, nan};
  EXPECT_EQ(top_k_excluding<float>(scores, 5, List{3}), (List{2, 1, 0}));
  expect_throw<std::invalid_argument>([&] { top_k_excluding<float>(scores, 5, List{1}); }, {"scores: [3] is NaN"});
  expect_throw<std::invalid_argument>(
      [&] {
        top_k_excluding<float>(scores, 5, List{3, 1});
      },
      {"excluded: [1] = 1 follows 3"});
  expect_throw<std::invalid_argument>([&] { top_k_excluding<float>(scores, 0, {}); }, {"k = 0"});
}

}  // namespace
}  // namespace widehead::test
