#include "widehead/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

namespace widehead::test {
namespace {

/// The published answers of Philox4x32-10 (Random123's kat_vectors), which no implementation may miss.
double unit(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (std::uint64_t{high} << 32 | low) >> 11;
  return (static_cast<double>(bits) + 0.5) / 9007199254740992.0;  // 2⁵³
}

TEST(Random, AgreesWithThePublishedAnswersOfPhilox) {
  const auto zeros = Random(0, 0).uniform(0, 0);
  EXPECT_EQ(zeros.first, unit(0x6627e8d5, 0xe169c58d));
  EXPECT_EQ(zeros.second, unit(0xbc57ac4c, 0x9b00dbd8));
  const auto ones = Random(~std::uint64_t{0}, ~std::uint32_t{0}).uniform(~std::uint64_t{0}, ~std::uint32_t{0});
  EXPECT_EQ(ones.first, unit(0x408f276d, 0x41c83b0e));
  EXPECT_EQ(ones.second, unit(0xa20bc7c6, 0x6d5451fd));
  // key a4093822 299f31d0, counter 243f6a88 85a308d3 13198a2e 03707344: the words in their places
  const auto digits = Random(0x299f31d0a4093822, 0x03707344).uniform(0x85a308d3243f6a88, 0x13198a2e);
  EXPECT_EQ(digits.first, unit(0xd16cfe09, 0x94fdcceb));
  EXPECT_EQ(digits.second, unit(0x5001e420, 0x24126ea1));
}

TEST(Random, GivesTheSameValueForTheSameCountersInAnyOrder) {
  const Random a(7, 3), b(7, 3);
  std::vector<double> forward, backward;
  for (std::uint32_t i = 0; i < 50; ++i) forward.push_back(a.normal(i, 2).first);
  for (std::uint32_t i = 50; i-- > 0;) backward.push_back(b.normal(i, 2).first);
  for (std::size_t i = 0; i < 50; ++i) EXPECT_EQ(forward[i], backward[49 - i]);
}

TEST(Random, DiffersBySeedStreamAndEachCounter) {
  std::set<double> values;
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32}) {
    for (const std::uint32_t stream : {0U, 1U}) {
      for (const std::uint64_t major : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32}) {
        for (const std::uint32_t minor : {0U, 1U}) {
          const auto [first, second] = Random(seed, stream).uniform(major, minor);
          values.insert(first);
          values.insert(second);
        }
      }
    }
  }
  EXPECT_EQ(values.size(), 2U * 3 * 2 * 3 * 2);
}

// Moments of n values: a mean is off by about its standard deviation over √n; five of those are allowed.
constexpr int n = 40000;

TEST(Random, UniformValuesHaveTheirMomentsAndStayInside) {
  const Random random(11, 1);
  double sum = 0, squares = 0, cross = 0;
  for (int i = 0; i < n; ++i) {
    const auto [a, b] = random.uniform(static_cast<std::uint64_t>(i), 0);
    for (const double value : {a, b}) {
      ASSERT_GT(value, 0);
      ASSERT_LT(value, 1);
    }
    sum += a + b;
    squares += a * a + b * b;
    cross += (a - 0.5) * (b - 0.5);
  }
  EXPECT_NEAR(sum / (2 * n), 0.5, 5 * std::sqrt(1.0 / 12 / (2 * n)));
  EXPECT_NEAR(squares / (2 * n), 1.0 / 3, 5 * std::sqrt(4.0 / 45 / (2 * n)));
  EXPECT_NEAR(cross / n, 0, 5 * (1.0 / 12) / std::sqrt(n));
}

TEST(Random, NormalValuesHaveTheirMoments) {
  const Random random(11, 2);
  double sum = 0, squares = 0, fourth = 0, cross = 0, streams = 0;
  const Random other(11, 3);
  for (int i = 0; i < n; ++i) {
    const auto [a, b] = random.normal(static_cast<std::uint64_t>(i), 5);
    sum += a + b;
    squares += a * a + b * b;
    fourth += std::pow(a, 4) + std::pow(b, 4);
    cross += a * b;
    streams += a * other.normal(static_cast<std::uint64_t>(i), 5).first;
  }
  EXPECT_NEAR(sum / (2 * n), 0, 5 / std::sqrt(2.0 * n));
  EXPECT_NEAR(squares / (2 * n), 1, 5 * std::sqrt(2.0 / (2 * n)));
  EXPECT_NEAR(fourth / (2 * n), 3, 5 * std::sqrt(96.0 / (2 * n)));
  EXPECT_NEAR(cross / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(streams / n, 0, 5 / std::sqrt(n)) << "two streams of one seed are correlated";
}

}  // namespace
}  // namespace widehead::test
