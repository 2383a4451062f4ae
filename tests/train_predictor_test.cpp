/// Predictor: against scoring everything and sorting.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dice.h"
#include "errors.h"
#include "widehead/train/batch.h"
#include "widehead/train/predictor.h"

namespace widehead::test {
namespace {

constexpr Size features = 9, d = 5;

template <class T>
Network<T> make_network(Size D, const std::string& head, Initial initial, int threads) {
  NetworkOptions options;
  options.features = features;
  options.embedding = d;
  options.activation = Activation::identity;
  options.input_scale = 1;
  options.head.head = head;
  options.head.layer = {.outputs = D, .dim = d, .initial = initial, .initial_scale = 1, .seed = 5};
  return Network<T>(options, make_cpu_backend<T>(threads));
}

template <class T>
Batch<T> make_examples(Dice& dice, Size D, Size m) {
  Batch<T> batch;
  for (Size j = 0; j < m; ++j) {
    for (int k = 0; k < 3; ++k) batch.inputs.add(static_cast<Index>(dice.between(0, features - 1)), T(1));
    batch.inputs.end_example();
    batch.targets.add(static_cast<Index>(dice.between(0, D - 1)), T(1));
    batch.targets.end_example();
  }
  return batch;
}

/// All scores (D x m), scaled.
template <class T>
Matrix<T> all_scores(Network<T>& network, const Batch<T>& batch, const std::vector<T>& scale) {
  const Size D = network.head().outputs();
  const auto W = network.head().weights();
  const auto H = Matrix<T>::copy_of(network.hidden(batch.inputs.view(features)));
  Matrix<T> scores(D, H.cols());
  network.head().backend().gemm(Op::transpose, Op::none, T(1), W, H, T(0), scores);
  for (Size j = 0; j < H.cols(); ++j) {
    for (Size i = 0; !scale.empty() && i < D; ++i) scores(i, j) /= scale[static_cast<std::size_t>(i)];
  }
  return scores;
}

struct PredictorCase {
  Size outputs;  ///< 8192 make a block
  bool scaled;
  std::string head;
};
class PredictorTest : public testing::TestWithParam<PredictorCase> {
 protected:
  PredictorTest() : dice(95), D(GetParam().outputs) {
    if (!GetParam().scaled) return;
    for (Size i = 0; i < D; ++i) scale.push_back(dice.uniform(0.5, 2));
  }
  Dice dice;
  Size D;
  std::vector<double> scale;
};
INSTANTIATE_TEST_SUITE_P(All, PredictorTest,
                         testing::Values(PredictorCase{1, false, "dense"}, PredictorCase{37, true, "windowed"},
                                         PredictorCase{8192, false, "dense"}, PredictorCase{8193, true, "dense"},
                                         PredictorCase{20000, true, "windowed"},
                                         PredictorCase{20000, false, "factored"}));

TEST_P(PredictorTest, TopKIsTheHeadOfTheSortedListWithoutTheExcluded) {
  for (const int threads : {1, 3}) {
    auto network = make_network<double>(D, GetParam().head, Initial::normal, threads);
    const auto batch = make_examples<double>(dice, D, 13);
    const auto scores = all_scores(network, batch, scale);
    Predictor<double> predictor(network, scale);
    std::vector<std::vector<Index>> unwanted;  // of every third example none; else the best ones among them
    for (Size j = 0; j < 13; ++j) {
      auto& list = unwanted.emplace_back();
      for (Size k = 0; j % 3 != 0 && k < D / 3; ++k) list.push_back(static_cast<Index>(dice.between(0, D - 1)));
      if (j % 3 == 1)
        list.push_back(static_cast<Index>(std::max_element(scores.view().column(j), scores.view().column(j) + D) -
                                          scores.view().column(j)));
      std::ranges::sort(list);
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
    for (const Size k : {Size{1}, Size{5}, D + 3}) {
      for (const bool excluding : {false, true}) {
        SCOPED_TRACE(fmt::format("k = {}, {} threads{}", k, threads, excluding ? ", excluding" : ""));
        const auto found = predictor.top_k(
            batch.inputs.view(features), k,
            excluding ? [&](Size j) { return std::span<const Index>(unwanted[static_cast<std::size_t>(j)]); }
                      : std::function<std::span<const Index>(Size)>());
        ASSERT_EQ(found.size(), 13U);
        for (Size j = 0; j < 13; ++j) {
          const auto& list = unwanted[static_cast<std::size_t>(j)];
          std::vector<Index> order;
          for (Index i = 0; i < D; ++i) {
            if (!excluding || !std::ranges::binary_search(list, i)) order.push_back(i);
          }
          std::ranges::sort(order, [&](Index a, Index b) { return scores(a, j) > scores(b, j); });
          order.resize(std::min(order.size(), static_cast<std::size_t>(k)));
          const auto& best = found[static_cast<std::size_t>(j)];
          ASSERT_EQ(best.size(), order.size());
          for (std::size_t place = 0; place < order.size(); ++place) {
            ASSERT_EQ(best[place].output, order[place]) << "example " << j << ", place " << place;
            ASSERT_NEAR(best[place].score, scores(order[place], j), 1e-11);
          }
        }
      }
    }
  }
}

TEST_P(PredictorTest, RanksCountTheOutputsThatScoreHigher) {
  for (const int threads : {1, 3}) {
    auto network = make_network<double>(D, GetParam().head, Initial::normal, threads);
    auto batch = make_examples<double>(dice, D, 13);
    batch.targets.indices[0] = 0;
    batch.targets.indices[1] = static_cast<Index>(D - 1);
    const auto scores = all_scores(network, batch, scale);
    const auto ranks = Predictor<double>(network, scale).ranks(batch.inputs.view(features), batch.targets.view(D));
    ASSERT_EQ(ranks.size(), 13U);
    for (Size j = 0; j < 13; ++j) {
      const auto target = batch.targets.indices[static_cast<std::size_t>(j)];
      double rank = 1;
      for (Size i = 0; i < D; ++i) rank += i != target && scores(i, j) > scores(target, j) ? 1 : 0;
      EXPECT_EQ(ranks[static_cast<std::size_t>(j)], rank) << "example " << j;
    }
  }
}

/// W = 0: all scores are equal, in every block.
TEST(Predictor, OrdersTiesByOutputAndRanksThemInTheMiddle) {
  Dice dice(96);
  for (const Size D : {1, 10, 8195}) {
    auto network = make_network<float>(D, "windowed", Initial::zero, 2);
    const auto batch = make_examples<float>(dice, D, 6);
    Predictor<float> predictor(network, {});
    for (const auto& best : predictor.top_k(batch.inputs.view(features), 7)) {
      ASSERT_EQ(best.size(), static_cast<std::size_t>(std::min<Size>(7, D)));
      for (std::size_t place = 0; place < best.size(); ++place) {
        EXPECT_EQ(best[place].output, static_cast<Index>(place));
        EXPECT_EQ(best[place].score, 0);
      }
    }
    for (const double rank : predictor.ranks(batch.inputs.view(features), batch.targets.view(D))) {
      EXPECT_EQ(rank, 1 + static_cast<double>(D - 1) / 2);
    }
  }
}

TEST(Predictor, RanksOneTargetAnExample) {
  Dice dice(97);
  auto network = make_network<float>(10, "dense", Initial::normal, 1);
  auto batch = make_examples<float>(dice, 10, 3);
  batch.targets.add(4, 1);
  batch.targets.offsets.back() += 1;
  expect_throw<std::invalid_argument>(
      [&] { Predictor<float>(network, {}).ranks(batch.inputs.view(features), batch.targets.view(10)); },
      {"4 targets for 3 examples"});
}

}  // namespace
}  // namespace widehead::test
