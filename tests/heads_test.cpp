/// Heads by name, and the options they refuse.

#include "widehead/heads.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "errors.h"
#include "heads_under_test.h"
#include "widehead/dense_layer.h"
#include "widehead/reference.h"

namespace widehead::test {
namespace {

/// The others are under test in softmax_layers_test.cpp.
TEST(Heads, AllSphericalHeadsAreUnderTest) {
  std::set<std::string> tested;
  for (const auto& head : plain_heads()) tested.insert(head.options.head);
  for (const auto name : spherical_head_names())
    EXPECT_TRUE(tested.contains(std::string(name))) << name << ": see heads_under_test.h";
  EXPECT_EQ(tested.size(), spherical_head_names().size());
}

TEST(Heads, EachNameMakesItsLayer) {
  for (const auto name : head_names()) {
    auto options = options_of(std::string(name));
    options.layer = {.outputs = 5, .dim = 2};
    EXPECT_EQ(make_head<double>(options, make_cpu_backend<double>(1))->head(), name);
  }
}

TEST(Heads, RefusesAnUnknownNameAndListsTheOthers) {
  auto options = options_of("densest");
  options.layer = {.outputs = 5, .dim = 2};
  std::vector<std::string> words{"'densest'"};
  for (const auto name : head_names()) words.emplace_back(name);
  expect_throw<std::invalid_argument>([&] { make_head<float>(options, make_cpu_backend<float>(1)); }, words);
}

TEST(Heads, NamesOfOptionsAreDistinct) {
  const auto distinct = [](const auto& names) {
    std::set<std::string_view> words;
    for (const auto& [word, value] : names) words.insert(word);
    return words.size() == names.size();
  };
  EXPECT_TRUE(distinct(initial_names()) && distinct(inverse_names()) && distinct(stabilize_names()));
  EXPECT_EQ(initial_names().size(), 2U);
  EXPECT_EQ(inverse_names().size(), 3U);
  EXPECT_EQ(stabilize_names().size(), 4U);
}

// ── options ─────────────────────────────────────────────────────────────────────────────────────

class HeadOptionsTest : public HeadTest {
 protected:
  template <class Change>
  void expect_refused(const std::vector<std::string>& words, const Change& change) {
    run([&]<class T>() {
      auto options = GetParam().options;
      options.layer = {.outputs = 5, .dim = 2};
      ASSERT_NO_THROW(make_head<T>(options, make_cpu_backend<T>(1)));
      change(options);
      expect_throw<std::invalid_argument>([&] { make_head<T>(options, make_cpu_backend<T>(1)); }, words);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Plain, HeadOptionsTest, testing::ValuesIn(in_each_dtype(plain_heads())), case_name);

TEST_P(HeadOptionsTest, RefusesImpossibleExtents) {
  expect_refused({"outputs (D) = 0"}, [](auto& options) { options.layer.outputs = 0; });
  expect_refused({"outputs (D) = -1"}, [](auto& options) { options.layer.outputs = -1; });
  expect_refused({"outputs (D) = 2147483648"}, [](auto& options) { options.layer.outputs = Size{1} << 31; });
  expect_refused({"dim (d) = 0"}, [](auto& options) { options.layer.dim = 0; });
  expect_refused({"dim (d) = 65537"}, [](auto& options) { options.layer.dim = 65537; });
}

TEST_P(HeadOptionsTest, RefusesABadWeightDecay) {
  expect_refused({"weight_decay = -0.1"}, [](auto& options) { options.layer.weight_decay = -0.1; });
  expect_refused({"weight_decay = nan"}, [](auto& options) { options.layer.weight_decay = NAN; });
  expect_refused({"weight_decay = inf"}, [](auto& options) { options.layer.weight_decay = INFINITY; });
}

TEST(HeadOptions, ReferenceRefusesAnyWeightDecay) {
  auto options = options_of("reference");
  options.layer = {.outputs = 5, .dim = 2, .weight_decay = 0.1};
  expect_throw<std::invalid_argument>([&] { make_head<double>(options, make_cpu_backend<double>(1)); },
                                      {"weight_decay = 0.1"});
}

TEST_P(HeadOptionsTest, RefusesABadInitialScale) {
  expect_refused({"initial_scale = -1"}, [](auto& options) { options.layer.initial_scale = -1; });
  expect_refused({"initial_scale = nan"}, [](auto& options) { options.layer.initial_scale = NAN; });
  expect_refused({"initial_scale = inf"}, [](auto& options) { options.layer.initial_scale = INFINITY; });
}

TEST_P(HeadOptionsTest, RefusesToGoWithoutABackend) {
  run([&]<class T>() {
    auto options = GetParam().options;
    options.layer = {.outputs = 5, .dim = 2};
    expect_throw<std::invalid_argument>([&] { make_head<T>(options, nullptr); }, {"backend is null"});
  });
}

TEST_P(HeadOptionsTest, RefusesABadStabilizerWhereItHasOne) {
  if (GetParam().inverts_U) {
    expect_refused({"[2, 1.6]"}, [](auto& options) { options.factored.stabilizer.sigma_low = 2; });
    expect_refused({"n_check = 0"}, [](auto& options) { options.factored.stabilizer.n_check = 0; });
    expect_refused({"iterations = 0"}, [](auto& options) { options.factored.stabilizer.iterations = 0; });
    return;
  }
  run([&]<class T>() {
    auto options = GetParam().options;
    options.layer = {.outputs = 5, .dim = 2};
    options.factored.stabilizer.n_check = 0;
    EXPECT_NO_THROW(make_head<T>(options, make_cpu_backend<T>(1))) << "not its business";
  });
}

TEST(HeadOptions, FactoredRefusesToRefreshLessOftenThanNever) {
  auto options = factored_options(Inverse::refresh, Stabilize::never);
  options.layer = {.outputs = 5, .dim = 2};
  options.factored.refresh_every = 0;
  expect_throw<std::invalid_argument>([&] { make_head<float>(options, make_cpu_backend<float>(1)); },
                                      {"refresh_every = 0"});
}

TEST(HeadOptions, ReferenceExistsInDoubleOnly) {
  auto options = options_of("reference");
  options.layer = {.outputs = 5, .dim = 2};
  expect_throw<std::invalid_argument>([&] { make_head<float>(options, make_cpu_backend<float>(1)); },
                                      {"reference", "double"});
}

// ── questions out of range ──────────────────────────────────────────────────────────────────────

class QuestionTest : public HeadTest {};
INSTANTIATE_TEST_SUITE_P(Plain, QuestionTest, testing::ValuesIn(in_each_dtype(plain_heads())), case_name);

TEST_P(QuestionTest, RefusesRowsAndShapesThatDoNotExist) {
  run([&]<class T>() {
    const auto layer = make_layer<T>(GetParam(), {.outputs = 6, .dim = 3});
    const Matrix<T> H(3, 2);
    Matrix<T> room(8, 8);
    const auto refuse = [](const std::vector<std::string>& words, const auto& action) {
      expect_throw<std::invalid_argument>(action, words);
    };

    refuse({"k = 0", "D = 6"}, [&] { layer->top_k(H, 0); });
    refuse({"k = 7", "D = 6"}, [&] { layer->top_k(H, 7); });
    refuse({"top_k", "4 x 2", "d = 3"}, [&] { layer->top_k(Matrix<T>(4, 2), 1); });

    const std::vector<Index> high{0, 6}, low{-1, 2}, good{5, 0};
    refuse({"rows[1] = 6", "D = 6"}, [&] { layer->scores(H, high, Matrix<T>(2, 2)); });
    refuse({"rows[0] = -1", "D = 6"}, [&] { layer->scores(H, low, Matrix<T>(2, 2)); });
    refuse({"3 x 2", "2 rows and 2 examples"}, [&] { layer->scores(H, good, Matrix<T>(3, 2)); });
    refuse({"2 x 1", "2 rows and 2 examples"}, [&] { layer->scores(H, good, Matrix<T>(2, 1)); });
    refuse({"stride 1"}, [&] { layer->scores(H, good, MatrixView<T>(room.data(), 2, 2, 1)); });
    refuse({"2 x 2"}, [&] { layer->scores(H, good, MatrixView<T>(nullptr, 2, 2)); });

    refuse({"-1 … 0", "D = 6"}, [&] { layer->weights(-1, room.view().block(0, 0, 3, 2)); });
    refuse({"5 … 6", "D = 6"}, [&] { layer->weights(5, room.view().block(0, 0, 3, 2)); });
    refuse({"0 … 6", "D = 6"}, [&] { layer->weights(0, room.view().block(0, 0, 3, 7)); });
    refuse({"2 x 1", "d = 3"}, [&] { layer->weights(0, room.view().block(0, 0, 2, 1)); });
    refuse({"stride 2"}, [&] { layer->weights(0, MatrixView<T>(room.data(), 3, 2, 2)); });
    refuse({"3 x 2"}, [&] { layer->weights(0, MatrixView<T>(nullptr, 3, 2)); });
  });
}

}  // namespace
}  // namespace widehead::test
