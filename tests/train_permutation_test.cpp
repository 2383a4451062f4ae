/// The order of an epoch: a permutation that needs no memory.

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "widehead/train/permutation.h"

namespace widehead::test {
namespace {

TEST(Permutation, IsABijection) {
  for (std::uint64_t n = 1; n <= 300; ++n) {
    for (const std::uint64_t key : {0U, 1U, 77U}) {
      const Permutation order(n, key);
      std::vector<bool> met(n);
      for (std::uint64_t i = 0; i < n; ++i) {
        const auto value = order(i);
        ASSERT_LT(value, n);
        ASSERT_FALSE(met[value]) << "n = " << n << ", key " << key << ": " << value << " comes twice";
        met[value] = true;
      }
    }
  }
}

TEST(Permutation, IsABijectionWhereNIsLarge) {
  for (const std::uint64_t n : {(1ULL << 24) - 1, (1ULL << 32) + 1, (1ULL << 40) + 12345, ~0ULL}) {
    const Permutation order(n, 5);
    std::set<std::uint64_t> values;
    for (std::uint64_t k = 0; k < 20000; ++k) {
      const auto value = order(n / 20000 * k);
      ASSERT_LT(value, n);
      values.insert(value);
    }
    EXPECT_EQ(values.size(), 20000U) << n;
  }
}

TEST(Permutation, DiffersByKeyAndFromOrder) {
  const std::uint64_t n = 1000;
  const auto fixed = [&](std::uint64_t a, std::uint64_t b) {
    const Permutation first(n, a), second(n, b);
    int count = 0;
    for (std::uint64_t i = 0; i < n; ++i) count += first(i) == second(i) ? 1 : 0;
    return count;
  };
  EXPECT_EQ(fixed(3, 3), 1000);
  for (std::uint64_t key = 1; key < 50; ++key) EXPECT_LT(fixed(0, key), 10) << key;  // Poisson, mean 1
  const Permutation order(n, 3);
  int in_place = 0, rising = 0;
  for (std::uint64_t i = 0; i + 1 < n; ++i) {
    in_place += order(i) == i ? 1 : 0;
    rising += order(i) < order(i + 1) ? 1 : 0;
  }
  EXPECT_LT(in_place, 10);
  EXPECT_NEAR(rising, 500, 40);  // σ = √(n/12) = 9
}

/// χ² of where the first, a middle and the last place go, over many keys. Where n is tiny, four rounds leave a slight
/// preference, which is allowed for.
TEST(Permutation, SendsAPlaceAnywhere) {
  for (const std::uint64_t n : {10U, 100U, 129U, 1000U}) {
    for (const std::uint64_t place : {std::uint64_t{0}, n / 2, n - 1}) {
      constexpr int keys = 20000;
      std::vector<int> met(n);
      for (std::uint64_t key = 0; key < keys; ++key) ++met[Permutation(n, key)(place)];
      double chi_square = 0;
      const double expected = static_cast<double>(keys) / static_cast<double>(n);
      for (const int count : met) chi_square += (count - expected) * (count - expected) / expected;
      const double freedom = static_cast<double>(n - 1);
      EXPECT_LT(chi_square, freedom + 6 * std::sqrt(2 * freedom) + (n < 100 ? 0.01 * keys : 0))
          << "n = " << n << ", place " << place;
    }
  }
}

}  // namespace
}  // namespace widehead::test
