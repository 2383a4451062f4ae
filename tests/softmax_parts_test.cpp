/// What the softmax heads are made of: the exponential, its kernels, classes of outputs, the sampler.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "compare.h"
#include "dice.h"
#include "errors.h"
#include "widehead/exponential.h"
#include "widehead/log_uniform.h"
#include "widehead/output_classes.h"
#include "widehead/softmax_kernels.h"

namespace widehead::test {
namespace {

// ── the exponential ─────────────────────────────────────────────────────────────────────────────

template <class T>
class ExponentialTest : public testing::Test {
 protected:
  static T exp_of(T x) {
    exp_of_non_positive(1, &x);
    return x;
  }
};
using Precisions = testing::Types<float, double>;
TYPED_TEST_SUITE(ExponentialTest, Precisions);

TYPED_TEST(ExponentialTest, IsWithinTwoEpsilonOverTheWholeRange) {
  using T = TypeParam;
  const double least = std::log(static_cast<double>(std::numeric_limits<T>::min()));
  constexpr int count = 2'000'000;
  std::vector<T> x(count + 1);
  for (int i = 0; i <= count; ++i) x[static_cast<std::size_t>(i)] = static_cast<T>(least * 0.99999 * i / count);
  const auto given = x;
  exp_of_non_positive(static_cast<Size>(x.size()), x.data());
  long double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double truth = std::exp(static_cast<long double>(given[i]));
    worst = std::max(worst, std::abs((static_cast<long double>(x[i]) - truth) / truth));
  }
  EXPECT_LE(static_cast<double>(worst), 2 * static_cast<double>(std::numeric_limits<T>::epsilon()));
  EXPECT_EQ(x.front(), T(1));
}

TYPED_TEST(ExponentialTest, EndsAtTheSmallestNormalNumber) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  for (const T x : {T(-1000), T(-1e30F), Limits::lowest(), -Limits::infinity()}) {
    EXPECT_GE(this->exp_of(x), Limits::min()) << x;
    EXPECT_LE(this->exp_of(x), Limits::min() * T(1.0001)) << x;
  }
  EXPECT_TRUE(std::isnan(this->exp_of(Limits::quiet_NaN())));
  EXPECT_EQ(this->exp_of(T(-0.0)), T(1));
  EXPECT_EQ(this->exp_of(-Limits::denorm_min()), T(1));
}

// ── kernels ─────────────────────────────────────────────────────────────────────────────────────

TYPED_TEST(ExponentialTest, RowsAndColumnsAreExponentiatedRelativeToTheirLargest) {
  using T = TypeParam;
  const auto tolerance = 4 * static_cast<double>(std::numeric_limits<T>::epsilon());
  Dice dice(41);
  for (const auto& [rows, cols] :
       {std::pair<Size, Size>{1, 1}, {1, 100}, {100, 1}, {7, 13}, {64, 3}, {65, 9}, {200, 400}}) {
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(fmt::format("{} x {}, {} threads", rows, cols, threads));
      const auto A = dice.matrix<T>(rows, cols);
      Padded<T> by_row(A), by_column(A);
      std::vector<T> row_maxima(static_cast<std::size_t>(rows)), column_maxima(static_cast<std::size_t>(cols));
      std::vector<double> row_sums(row_maxima.size()), column_sums(column_maxima.size());
      exponentiate_rows<T>(by_row, threads, row_maxima, row_sums);
      exponentiate_columns<T>(by_column, threads, column_maxima, column_sums);
      EXPECT_TRUE(by_row.rim_is_intact() && by_column.rim_is_intact());
      const auto check = [&](Size i, Size j, T largest, T found, double& sum) {
        const double truth = std::exp(static_cast<double>(A(i, j)) - static_cast<double>(largest));
        EXPECT_NEAR(static_cast<double>(found), truth, tolerance * (1 + 10 * truth));
        sum += static_cast<double>(found);
      };
      for (Size i = 0; i < rows; ++i) {
        T largest = A(i, 0);
        for (Size j = 0; j < cols; ++j) largest = std::max(largest, A(i, j));
        ASSERT_EQ(row_maxima[static_cast<std::size_t>(i)], largest);
        double sum = 0;
        for (Size j = 0; j < cols; ++j) check(i, j, largest, by_row.view()(i, j), sum);
        EXPECT_NEAR(row_sums[static_cast<std::size_t>(i)], sum, 1e-12 * sum);
      }
      for (Size j = 0; j < cols; ++j) {
        const T largest = *std::max_element(A.view().column(j), A.view().column(j) + rows);
        ASSERT_EQ(column_maxima[static_cast<std::size_t>(j)], largest);
        double sum = 0;
        for (Size i = 0; i < rows; ++i) check(i, j, largest, by_column.view()(i, j), sum);
        EXPECT_NEAR(column_sums[static_cast<std::size_t>(j)], sum, 1e-12 * sum);
      }
      scale_rows<T>(row_maxima, threads, by_column);
      EXPECT_TRUE(by_column.rim_is_intact());
    }
  }
}

TYPED_TEST(ExponentialTest, ANumberThatIsNotFiniteShowsInTheSum) {
  using T = TypeParam;
  for (const T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()}) {
    for (const Size at : {0, 1, 2}) {
      Matrix<T> A(1, 3), B(3, 1);
      A(0, at) = B(at, 0) = bad;
      std::vector<T> maxima(1);
      std::vector<double> sums(1);
      exponentiate_rows<T>(A, 1, maxima, sums);
      EXPECT_FALSE(std::isfinite(sums[0] + static_cast<double>(maxima[0])));
      exponentiate_columns<T>(B, 1, maxima, sums);
      EXPECT_FALSE(std::isfinite(sums[0] + static_cast<double>(maxima[0])));
    }
  }
}

TYPED_TEST(ExponentialTest, ScaleRowsMultipliesEachRow) {
  using T = TypeParam;
  Dice dice(42);
  const auto A = dice.matrix<T>(70, 600);
  const auto factors = dice.matrix<T>(70, 1);
  for (const int threads : {1, 2}) {
    Padded<T> B(A);
    scale_rows<T>({factors.data(), 70}, threads, B);
    for (Size j = 0; j < 600; ++j) {
      for (Size i = 0; i < 70; ++i) ASSERT_EQ(B.view()(i, j), factors(i, 0) * A(i, j));
    }
    EXPECT_TRUE(B.rim_is_intact());
  }
}

// ── classes ─────────────────────────────────────────────────────────────────────────────────────

void expect_partition(const OutputClasses& classes, Size outputs) {
  EXPECT_EQ(classes.outputs(), outputs);
  EXPECT_EQ(classes.first(0), 0);
  for (Size c = 0; c < classes.count(); ++c) {
    EXPECT_GE(classes.size(c), 1);
    for (Size i = classes.first(c); i < classes.first(c + 1); ++i) ASSERT_EQ(classes.of(static_cast<Index>(i)), c);
  }
  EXPECT_EQ(classes.first(classes.count()), outputs);
}

TEST(OutputClasses, OfEqualSizeDifferByOneAtMost) {
  for (const Size D : {1, 2, 3, 10, 97, 100, 1001}) {
    for (const Size count : {Size{0}, Size{1}, (D + 2) / 3, D}) {
      const auto classes = OutputClasses::of_equal_size(D, count);
      expect_partition(classes, D);
      EXPECT_EQ(classes.count(), count > 0 ? count : std::lround(std::sqrt(static_cast<double>(D))));
      Size least = D, most = 0;
      for (Size c = 0; c < classes.count(); ++c) {
        least = std::min(least, classes.size(c));
        most = std::max(most, classes.size(c));
      }
      EXPECT_LE(most - least, 1) << D << ", " << count;
    }
  }
}

TEST(OutputClasses, OfEqualFrequencyShareItOut) {
  constexpr Size D = 10'000;
  std::vector<double> frequencies;
  for (Size i = 0; i < D; ++i) frequencies.push_back(1.0 / static_cast<double>(i + 1));
  const auto classes = OutputClasses::of_equal_frequency(frequencies, 20);
  expect_partition(classes, D);
  ASSERT_EQ(classes.count(), 20);
  const double total = std::accumulate(frequencies.begin(), frequencies.end(), 0.0);
  EXPECT_EQ(classes.size(0), 1) << "the first output alone has more than its share";
  for (Size c = 3; c < 20; ++c) {
    const auto* first = frequencies.data() + classes.first(c);
    const double share = std::accumulate(first, first + classes.size(c), 0.0) / total;
    EXPECT_GT(share, 0.03) << c;
    EXPECT_LT(share, 0.06) << c;
  }
  expect_partition(OutputClasses::of_equal_frequency(frequencies), D);
  EXPECT_EQ(OutputClasses::of_equal_frequency(frequencies).count(), 100);
}

TEST(OutputClasses, OfEqualFrequencyAreNeverEmpty) {
  expect_partition(OutputClasses::of_equal_frequency(std::vector<double>{0, 0, 0, 5}, 4), 4);
  expect_partition(OutputClasses::of_equal_frequency(std::vector<double>{5, 0, 0, 0}, 3), 4);
  expect_partition(OutputClasses::of_equal_frequency(std::vector<double>{1}, 0), 1);
}

TEST(OutputClasses, RefuseWhatIsNoFrequency) {
  const auto refuse = [](const std::vector<std::string>& words, const std::vector<double>& frequencies) {
    expect_throw<std::invalid_argument>([&] { OutputClasses::of_equal_frequency(frequencies); }, words);
  };
  refuse({"frequencies[1] = -1"}, {1, -1});
  refuse({"frequencies[2] = nan"}, {1, 1, NAN});
  refuse({"frequencies[0] = inf"}, {INFINITY, 1});
  refuse({"add up to 0"}, {0, 0});
  refuse({"add up to inf"}, {1e308, 1e308});
  refuse({"0 outputs"}, {});
  expect_throw<std::invalid_argument>([] { OutputClasses::of_equal_size(5, 6); }, {"classes = 6", "D = 5"});
}

// ── the sampler ─────────────────────────────────────────────────────────────────────────────────

TEST(LogUniformSampler, DrawsEachOutputAsOftenAsItSays) {
  constexpr Size D = 50, draws = 20;
  constexpr int rounds = 20'000;
  const LogUniformSampler sampler(D, draws, 3);
  std::vector<int> counts(D);
  std::vector<Index> sample;
  for (int t = 0; t < rounds; ++t) {
    sampler.draw(t, sample);
    ASSERT_TRUE(std::is_sorted(sample.begin(), sample.end()));
    ASSERT_EQ(std::adjacent_find(sample.begin(), sample.end()), sample.end());
    for (const Index i : sample) ++counts.at(static_cast<std::size_t>(i));
  }
  for (Index i = 0; i < D; ++i) {
    const double p = std::log((i + 2.0) / (i + 1.0)) / std::log(D + 1.0);
    const double expected = 1 - std::pow(1 - p, draws);
    EXPECT_NEAR(sampler.expected_count(i), expected, 1e-12);
    const double deviation = std::sqrt(expected * (1 - expected) / rounds);
    EXPECT_NEAR(static_cast<double>(counts[static_cast<std::size_t>(i)]) / rounds, expected, 5 * deviation + 1e-9) << i;
  }
}

TEST(LogUniformSampler, SampleDependsOnSeedAndNumberOnly) {
  const auto draw = [](std::uint64_t seed, std::int64_t t) {
    std::vector<Index> sample{7, 7, 7};
    LogUniformSampler(1000, 31, seed).draw(t, sample);
    return sample;
  };
  EXPECT_EQ(draw(1, 5), draw(1, 5));
  EXPECT_NE(draw(1, 5), draw(1, 6));
  EXPECT_NE(draw(1, 5), draw(2, 5));
}

TEST(LogUniformSampler, OneOutputIsAlwaysDrawn) {
  const LogUniformSampler sampler(1, 3, 0);
  std::vector<Index> sample;
  sampler.draw(9, sample);
  EXPECT_EQ(sample, std::vector<Index>{0});
  EXPECT_EQ(sampler.expected_count(0), 1);
}

TEST(LogUniformSampler, RefusesImpossibleExtents) {
  expect_throw<std::invalid_argument>([] { LogUniformSampler(0, 3, 0); }, {"D = 0"});
  expect_throw<std::invalid_argument>([] { LogUniformSampler(3, 0, 0); }, {"samples = 0"});
  expect_throw<std::invalid_argument>([] { LogUniformSampler(3, Size{1} << 31, 0); }, {"samples = 2147483648"});
}

}  // namespace
}  // namespace widehead::test
