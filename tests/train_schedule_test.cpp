/// Rates over a run, of the head too; how targets are scaled.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "compare.h"
#include "dice.h"
#include "state_in_memory.h"
#include "widehead/heads.h"
#include "widehead/train/assemble.h"
#include "widehead/train/head_rate.h"
#include "widehead/train/schedule.h"

namespace widehead::test {
namespace {

TEST(Schedule, FallsAsItsNameSays) {
  const auto at = [](Schedule schedule, double progress) { return rate_factor(schedule, 0, progress); };
  for (const double progress : {0.0, 0.3, 1.0}) EXPECT_EQ(at(Schedule::constant, progress), 1);
  for (const double progress : {0.0, 0.25, 1.0}) EXPECT_DOUBLE_EQ(at(Schedule::linear, progress), 1 - progress);
  EXPECT_EQ(at(Schedule::cosine, 0), 1);
  EXPECT_NEAR(at(Schedule::cosine, 1.0 / 3), 0.75, 1e-15);
  EXPECT_NEAR(at(Schedule::cosine, 0.5), 0.5, 1e-15);
  EXPECT_NEAR(at(Schedule::cosine, 1), 0, 1e-15);
  EXPECT_EQ(at(Schedule::step, 0.49), 1);
  EXPECT_EQ(at(Schedule::step, 0.5), 0.1);
  EXPECT_EQ(at(Schedule::step, 0.74), 0.1);
  EXPECT_EQ(at(Schedule::step, 0.75), 0.01);
  EXPECT_EQ(at(Schedule::step, 1), 0.01);
  EXPECT_EQ(at(Schedule::linear, 1.5), 0);  // the share of a run is rounded
  EXPECT_EQ(at(Schedule::linear, -0.5), 1);
}

TEST(Schedule, RisesDuringTheWarmUp) {
  EXPECT_EQ(rate_factor(Schedule::constant, 0.2, 0), 0);
  EXPECT_DOUBLE_EQ(rate_factor(Schedule::constant, 0.2, 0.05), 0.25);
  EXPECT_EQ(rate_factor(Schedule::constant, 0.2, 0.2), 1);
  EXPECT_DOUBLE_EQ(rate_factor(Schedule::linear, 0.2, 0.1), 0.5 * 0.9);
  EXPECT_DOUBLE_EQ(rate_factor(Schedule::linear, 0.2, 0.3), 0.7);
}

constexpr Size D = 20, d = 6;

class HeadRates : public testing::Test {
 protected:
  HeadRates() {
    HeadOptions options;
    options.head = "dense";
    options.layer = {.outputs = D, .dim = d};
    head = make_head<double>(options, make_cpu_backend<double>(1));
  }
  static SparseBatch<double> no_targets(Size m) {
    static const std::vector<std::int64_t> zeros(1000);
    return {D, std::span(zeros).first(static_cast<std::size_t>(m) + 1), {}, {}};
  }
  double eta(HeadRate<double>& rate, const Matrix<double>& H, double factor = 1) {
    return rate.eta_for(*head, H, no_targets(H.cols()), factor);
  }
  std::unique_ptr<OutputLayer<double>> head;
};

/// H with one direction only, so that ‖H‖₂ = ‖H‖_F, and with this norm.
Matrix<double> one_direction(Dice& dice, Size m, double wanted_norm) {
  const auto a = dice.matrix<double>(d, 1);
  Matrix<double> H(d, m);
  for (Size j = 0; j < m; ++j) {
    for (Size i = 0; i < d; ++i) H(i, j) = a(i, 0) * static_cast<double>(j + 1);
  }
  const double factor = wanted_norm / norm(H);
  for (Size k = 0; k < H.size(); ++k) H.data()[k] *= factor;
  return H;
}

TEST_F(HeadRates, FollowLambdaInEveryStepAsHGrows) {
  HeadRate<double> rate({.eta = 0, .lambda = 0.3});
  Dice dice(91);
  for (int k = 0; k < 50; ++k) {
    const double norm_of_H = 2 + dice.uniform(0, 3) + (k > 0 ? 3 : 0);  // the first is the smallest
    EXPECT_NEAR(eta(rate, one_direction(dice, 4, norm_of_H), 0.5) * 2 * norm_of_H * norm_of_H, 0.15, 1e-6)
        << "step " << k;
  }
}

TEST_F(HeadRates, DoNotRiseWhereHShrinksBelowItsStart) {
  HeadRate<double> rate({.eta = 0, .lambda = 0.3});
  Dice dice(92);
  const double first = eta(rate, one_direction(dice, 4, 6));
  EXPECT_NEAR(eta(rate, one_direction(dice, 4, 2)), first, 1e-9 * first);
  EXPECT_NEAR(eta(rate, one_direction(dice, 4, 12)), first / 4, 1e-9 * first);
  EXPECT_NEAR(eta(rate, one_direction(dice, 1, 3)), first * 4,
              1e-9 * first);  // a quarter of the examples, each as long
}

TEST_F(HeadRates, MeasureTheRatioOfNormsEverySixteenSteps) {
  HeadRate<double> rate({.eta = 0, .lambda = 1});
  Matrix<double> one(d, d), all(d, d);  // ‖·‖₂²/‖·‖_F² = 1 and 1/d
  one(0, 0) = 1;
  for (Size i = 0; i < d; ++i) all(i, i) = 2;
  for (int k = 0; k < 33; ++k) {
    const double of_all = eta(rate, k == 0 ? one : all) * 2 * norm(k == 0 ? one : all) * norm(k == 0 ? one : all);
    EXPECT_NEAR(of_all, k < 16 ? 1 : static_cast<double>(d), 1e-6) << "step " << k;
  }
}

TEST_F(HeadRates, AreZeroWhereHIsAndKnowNothingFromIt) {
  HeadRate<double> rate({.eta = 0, .lambda = 1});
  EXPECT_EQ(eta(rate, Matrix<double>(d, 3)), 0);
  Matrix<double> H(d, 1);
  H(2, 0) = 3;
  EXPECT_NEAR(eta(rate, H), 1 / (2 * 9.0), 1e-9);
  H(0, 0) = std::numeric_limits<double>::infinity();  // the head refuses this H, and says why
  EXPECT_EQ(eta(rate, H), 0);
}

TEST_F(HeadRates, AreFixedWhereEtaIsGiven) {
  HeadRate<double> rate({.eta = 0.25, .lambda = 1});
  EXPECT_EQ(eta(rate, Dice(1).matrix<double>(d, 3), 0.5), 0.125);
  EXPECT_EQ(eta(rate, Dice(2).matrix<double>(d, 3), 1), 0.25);
}

TEST_F(HeadRates, GoOnAfterLoading) {
  Dice dice(92);
  HeadRate<double> rate({.eta = 0, .lambda = 1});
  for (int k = 0; k < 5; ++k) eta(rate, dice.matrix<double>(d, 7));
  HeadRate<double> other({.eta = 0, .lambda = 1});
  load(save(rate), other);
  for (int k = 0; k < 40; ++k) {
    const auto H = dice.matrix<double>(d, 7);
    EXPECT_EQ(eta(rate, H), eta(other, H));
  }
}

/// The mean over targets, Σ p f, is 1; ratios are those of the formula.
TEST(TargetScale, FollowsTheFrequencyOfOutputs) {
  const std::vector<std::int64_t> counts = {500, 300, 150, 49, 1, 0};
  const double total = 1001;  // never met counts as once
  auto options = default_options(Job::labels);
  EXPECT_TRUE(target_scale<double>(options, counts).empty());
  for (const bool log : {true, false}) {
    options.target_scale = log ? "log" : "sqrt";
    const auto scale = target_scale<double>(options, counts);
    ASSERT_EQ(scale.size(), counts.size());
    double mean = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double p = std::max(1.0, static_cast<double>(counts[i])) / total;
      mean += p * scale[i];
      const double p0 = 500 / total;
      const double ratio = log ? std::log(1 / p) / std::log(1 / p0) : std::sqrt(p0 / p);
      EXPECT_NEAR(scale[i] / scale[0], ratio, 1e-12);
    }
    EXPECT_NEAR(mean, 1, 1e-12);
    const auto single = target_scale<float>(options, std::vector<std::int64_t>{7});  // ln 1/p = 0
    EXPECT_EQ(single, std::vector<float>{1});
  }
}

}  // namespace
}  // namespace widehead::test
