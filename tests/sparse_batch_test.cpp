#include "widehead/sparse_batch.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "compare.h"
#include "errors.h"
#include "oracle.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

template <class T>
class SparseBatchTest : public testing::Test {};
using Dtypes = testing::Types<float, double>;
TYPED_TEST_SUITE(SparseBatchTest, Dtypes);

/// The parts of a batch, all good until a test spoils one.
template <class T>
struct Parts {
  Size outputs = 10;
  std::vector<std::int64_t> offsets{0, 2, 2, 5};
  std::vector<Index> indices{3, 9, 0, 3, 3};
  std::vector<T> values{T(1), T(2), T(3), T(4), T(5)};
  std::vector<T> weights{T(1), T(0), T(0.5)};

  SparseBatch<T> batch() const { return {outputs, offsets, indices, values, weights}; }
};

TYPED_TEST(SparseBatchTest, ShowsWhatItWasGiven) {
  const Parts<TypeParam> parts;
  const auto batch = parts.batch();
  EXPECT_EQ(batch.outputs(), 10);
  EXPECT_EQ(batch.examples(), 3);
  EXPECT_EQ(batch.nonzeros(), 5);
  EXPECT_EQ(batch.begin(1), 2);
  EXPECT_EQ(batch.end(1), 2);
  EXPECT_EQ(batch.end(2), 5);
  EXPECT_EQ(batch.index(1), 9);
  EXPECT_EQ(batch.value(4), 5);
  EXPECT_TRUE(batch.weighted());
  EXPECT_EQ(batch.weight(2), TypeParam(0.5));
}

TYPED_TEST(SparseBatchTest, WithoutWeightsGivesEachExampleOne) {
  Parts<TypeParam> parts;
  parts.weights.clear();
  const auto batch = parts.batch();
  EXPECT_FALSE(batch.weighted());
  for (Size j = 0; j < 3; ++j) EXPECT_EQ(batch.weight(j), 1);
}

TYPED_TEST(SparseBatchTest, MayHaveNoEntriesAtAll) {
  Parts<TypeParam> parts;
  parts.offsets = {0, 0};
  parts.indices.clear();
  parts.values.clear();
  parts.weights.clear();
  EXPECT_EQ(parts.batch().examples(), 1);
  EXPECT_EQ(parts.batch().nonzeros(), 0);
}

TYPED_TEST(SparseBatchTest, WithOtherValuesKeepsTheStructureAndDropsTheWeights) {
  const Parts<TypeParam> parts;
  const std::vector<TypeParam> values{6, 7, 8, 9, 10};
  const auto batch = parts.batch().with_values(values);
  EXPECT_EQ(batch.value(2), 8);
  EXPECT_EQ(batch.index(1), 9);
  EXPECT_EQ(batch.end(2), 5);
  EXPECT_EQ(batch.outputs(), 10);
  EXPECT_FALSE(batch.weighted());
}

/// `spoil` is done to good parts; the message must then name the values.
template <class T, class Spoil>
void expect_refused(const std::vector<std::string>& words, const Spoil& spoil) {
  Parts<T> parts;
  ASSERT_NO_THROW(parts.batch());
  spoil(parts);
  expect_throw<std::invalid_argument>([&] { parts.batch(); }, words);
}

TYPED_TEST(SparseBatchTest, RefusesAnImpossibleNumberOfOutputs) {
  expect_refused<TypeParam>({"D = 0"}, [](auto& parts) { parts.outputs = 0; });
  expect_refused<TypeParam>({"D = -4"}, [](auto& parts) { parts.outputs = -4; });
  expect_refused<TypeParam>({"D = 2147483648"}, [](auto& parts) { parts.outputs = Size{1} << 31; });
}

TYPED_TEST(SparseBatchTest, RefusesBadOffsets) {
  expect_refused<TypeParam>({"no examples"}, [](auto& parts) { parts.offsets.clear(); });
  expect_refused<TypeParam>({"no examples"}, [](auto& parts) { parts.offsets = {0}; });
  expect_refused<TypeParam>({"offsets[0] = 1"}, [](auto& parts) { parts.offsets[0] = 1; });
  expect_refused<TypeParam>({"offsets[0] = -1"}, [](auto& parts) { parts.offsets[0] = -1; });
  expect_refused<TypeParam>({"offsets[2] = 1", "offsets[1] = 2"}, [](auto& parts) { parts.offsets[2] = 1; });
  expect_refused<TypeParam>({"end at 4", "5 indices"}, [](auto& parts) { parts.offsets[3] = 4; });
  expect_refused<TypeParam>({"end at 6", "5 indices"}, [](auto& parts) { parts.offsets[3] = 6; });
  expect_refused<TypeParam>({"5 indices", "6 values"}, [](auto& parts) { parts.values.push_back(1); });
}

TYPED_TEST(SparseBatchTest, RefusesIndicesOutsideTheOutputs) {
  expect_refused<TypeParam>({"indices[3] = 10", "D = 10"}, [](auto& parts) { parts.indices[3] = 10; });
  expect_refused<TypeParam>({"indices[0] = -1", "D = 10"}, [](auto& parts) { parts.indices[0] = -1; });
}

TYPED_TEST(SparseBatchTest, RefusesValuesThatAreNotFinite) {
  using Limits = std::numeric_limits<TypeParam>;
  expect_refused<TypeParam>({"values[4] = nan"}, [](auto& parts) { parts.values[4] = Limits::quiet_NaN(); });
  expect_refused<TypeParam>({"values[0] = inf"}, [](auto& parts) { parts.values[0] = Limits::infinity(); });
  expect_refused<TypeParam>({"values[0] = -inf"}, [](auto& parts) { parts.values[0] = -Limits::infinity(); });
}

TYPED_TEST(SparseBatchTest, RefusesBadWeights) {
  using Limits = std::numeric_limits<TypeParam>;
  expect_refused<TypeParam>({"2 weights", "3 examples"}, [](auto& parts) { parts.weights.pop_back(); });
  expect_refused<TypeParam>({"weights[1] = -0.5"}, [](auto& parts) { parts.weights[1] = TypeParam(-0.5); });
  expect_refused<TypeParam>({"weights[2] = nan"}, [](auto& parts) { parts.weights[2] = Limits::quiet_NaN(); });
  expect_refused<TypeParam>({"weights[2] = inf"}, [](auto& parts) { parts.weights[2] = Limits::infinity(); });
}

// ── the same entries by output ──────────────────────────────────────────────────────────────────

TYPED_TEST(SparseBatchTest, GroupsHoldEveryEntryOnceByOutputThenExample) {
  RowGroups<TypeParam> groups;
  for (const auto seed : seeds(6)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Dice dice(seed);
    const Size D = dice.between(1, 12), m = dice.between(1, 20), K = dice.between(0, 5);
    const auto minibatch = make_minibatch(dice, {D, 2, m, K});
    const TypedMinibatch<TypeParam> typed(minibatch);
    groups.assign(typed.targets());

    Matrix<double> Y(D, m);
    Size entries = 0;
    for (Size group = 0; group < groups.count(); ++group) {
      ASSERT_FALSE(groups.entries(group).empty());
      if (group > 0) {
        EXPECT_LT(groups.row(group - 1), groups.row(group));
      }
      Index example = -1;
      for (const auto& entry : groups.entries(group)) {
        EXPECT_EQ(entry.row, groups.row(group));
        EXPECT_LT(example, entry.example) << "an element of Y has two entries";
        example = entry.example;
        Y(entry.row, entry.example) += static_cast<double>(entry.value);
        ++entries;
      }
    }
    EXPECT_EQ(entries, groups.nonzeros());
    EXPECT_TRUE(is_near<double>(Y, minibatch.Y(), tolerance::elementwise<TypeParam>()));
  }
}

TYPED_TEST(SparseBatchTest, GroupsFindTheEntriesOfAnExampleInOrderOfOutputs) {
  RowGroups<TypeParam> groups;
  for (const auto seed : seeds(6)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Dice dice(seed);
    const Size D = dice.between(1, 12), m = dice.between(1, 20), K = dice.between(0, 5);
    const auto minibatch = make_minibatch(dice, {D, 2, m, K});
    const TypedMinibatch<TypeParam> typed(minibatch);
    groups.assign(typed.targets());
    ASSERT_EQ(static_cast<Size>(groups.rows().size()), groups.count());
    for (Size group = 0; group < groups.count(); ++group) {
      EXPECT_EQ(groups.rows()[static_cast<std::size_t>(group)], groups.row(group));
      EXPECT_EQ(&groups.entry(groups.first_entry(group)), groups.entries(group).data());
    }
    Size found = 0;
    for (Size j = 0; j < m; ++j) {
      Index row = -1;
      for (const Index e : groups.of_example(j)) {
        EXPECT_EQ(groups.entry(e).example, j);
        EXPECT_LT(row, groups.entry(e).row);
        row = groups.entry(e).row;
        EXPECT_EQ(groups.values()[static_cast<std::size_t>(e)], groups.entry(e).value);
        ++found;
      }
    }
    EXPECT_EQ(found, groups.nonzeros());
    EXPECT_EQ(static_cast<Size>(groups.values().size()), groups.nonzeros());
    for (Size row = 0; row <= D; ++row) {
      const Size group = groups.first_group(row);
      EXPECT_TRUE(group == groups.count() || groups.row(group) >= row);
      EXPECT_TRUE(group == 0 || groups.row(group - 1) < row);
    }
  }
}

TYPED_TEST(SparseBatchTest, GroupsAddUpRepeatedTargets) {
  const std::vector<std::int64_t> offsets{0, 3, 4};
  const std::vector<Index> indices{5, 5, 2, 5};
  const std::vector<TypeParam> values{3, -1, 1, 7};  // y₀ = (5: 2, 2: 1), y₁ = (5: 7)
  RowGroups<TypeParam> groups;
  groups.assign(SparseBatch<TypeParam>(6, offsets, indices, values));
  EXPECT_EQ(groups.count(), 2);
  ASSERT_EQ(groups.nonzeros(), 3);
  EXPECT_EQ(groups.entry(0).value, 1);
  EXPECT_EQ(groups.entry(1).value, 2);
  EXPECT_EQ(groups.entry(2).value, 7);
}

TYPED_TEST(SparseBatchTest, GroupsOfAnEmptyBatchAreNoneAlsoAfterAFullOne) {
  RowGroups<TypeParam> groups;
  EXPECT_EQ(groups.count(), 0);
  groups.assign(Parts<TypeParam>().batch());
  EXPECT_EQ(groups.count(), 3);
  const std::vector<std::int64_t> offsets{0, 0, 0};
  groups.assign(SparseBatch<TypeParam>(10, offsets, {}, {}));
  EXPECT_EQ(groups.count(), 0);
  EXPECT_EQ(groups.nonzeros(), 0);
}

TYPED_TEST(SparseBatchTest, GroupsDoNotDependOnTheOrderWithinAnExample) {
  const std::vector<std::int64_t> offsets{0, 3};
  const std::vector<Index> indices{4, 4, 4};
  const std::vector<TypeParam> values{1, TypeParam(1e-7), -1}, other{-1, 1, TypeParam(1e-7)};
  RowGroups<TypeParam> a, b;
  a.assign(SparseBatch<TypeParam>(6, offsets, indices, values));
  b.assign(SparseBatch<TypeParam>(6, offsets, indices, other));
  ASSERT_EQ(a.entries(0).size(), 1U);
  ASSERT_EQ(b.entries(0).size(), 1U);
  EXPECT_EQ(a.entries(0)[0].value, b.entries(0)[0].value);
}

}  // namespace
}  // namespace widehead::test
