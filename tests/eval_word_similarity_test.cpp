#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <system_error>

#include "dice.h"
#include "errors.h"
#include "scratch_folder.h"
#include "widehead/errors.h"
#include "widehead/eval/word_similarity.h"

namespace widehead::test {
namespace {

/// ρ from its definition: the rank of a value is 1 + how many are smaller + half of how many others are equal.
double spearman_by_counting(const std::vector<double>& x, const std::vector<double>& y) {
  const auto rank = [](const std::vector<double>& values, double value) {
    double below = 0, equal = 0;
    for (const double other : values) {
      below += other < value ? 1 : 0;
      equal += other == value ? 1 : 0;
    }
    return 1 + below + (equal - 1) / 2;
  };
  const auto n = static_cast<double>(x.size());
  double a = 0, b = 0, aa = 0, bb = 0, ab = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double u = rank(x, x[i]), v = rank(y, y[i]);
    a += u, b += v, aa += u * u, bb += v * v, ab += u * v;
  }
  return (n * ab - a * b) / std::sqrt((n * aa - a * a) * (n * bb - b * b));
}

TEST(Spearman, MatchesValuesByHand) {
  // ranks of x: 1 2 3 4 5, of y: 2 1 4 3 5; Σd² = 4, ρ = 1 − 6·4/(5·24)
  EXPECT_NEAR(spearman(std::vector<double>{10, 20, 30, 40, 50}, std::vector<double>{2, 1, 9, 3, 100}), 0.8, 1e-15);
  // ranks of x: 1.5 1.5 3, of y: 1 2 3: centred (−.5 −.5 1)·(−1 0 1) = 1.5, over √(1.5 · 2)
  EXPECT_NEAR(spearman(std::vector<double>{7, 7, 9}, std::vector<double>{1, 2, 3}), 1.5 / std::sqrt(3.0), 1e-15);
}

TEST(Spearman, MatchesItsDefinitionWithTies) {
  for (const auto seed : seeds(50)) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    std::vector<double> x(static_cast<std::size_t>(dice.between(10, 60))), y(x.size());
    for (auto& value : x) value = static_cast<double>(dice.between(-4, 4));
    for (auto& value : y) value = dice.between(0, 1) == 0 ? dice.normal() : 0;
    EXPECT_NEAR(spearman(x, y), spearman_by_counting(x, y), 1e-12);
    EXPECT_NEAR(spearman(x, y), spearman(y, x), 1e-15);
  }
}

TEST(Spearman, DependsOnTheOrderAlone) {
  Dice dice(1);
  std::vector<double> x(100), y(100);
  for (auto& value : x) value = dice.normal();
  for (auto& value : y) value = dice.normal();
  auto bent = x, turned = x;
  for (auto& value : bent) value = std::exp(3 * value) + 5;
  for (auto& value : turned) value = -std::atan(value);
  EXPECT_EQ(spearman(bent, y), spearman(x, y));
  EXPECT_NEAR(spearman(turned, y), -spearman(x, y), 1e-14);
  EXPECT_NEAR(spearman(bent, x), 1, 1e-14);
  EXPECT_NEAR(spearman(turned, x), -1, 1e-14);
  EXPECT_LT(std::abs(spearman(x, y)), 0.5);
}

TEST(Spearman, OfAPermutationAndItsReversalIsMinusOne) {
  std::vector<double> up(50);
  std::iota(up.begin(), up.end(), 0.0);
  EXPECT_NEAR(spearman(up, std::vector<double>(up.rbegin(), up.rend())), -1, 1e-15);
}

TEST(Spearman, OfWhatHasNoOrderIsNotANumber) {
  EXPECT_TRUE(std::isnan(spearman({}, {})));
  EXPECT_TRUE(std::isnan(spearman(std::vector<double>{1}, std::vector<double>{2})));
  EXPECT_TRUE(std::isnan(spearman(std::vector<double>{1, 1, 1}, std::vector<double>{1, 2, 3})));
  EXPECT_TRUE(std::isnan(spearman(std::vector<double>{1, 2, 3}, std::vector<double>{4, 4, 4})));
  expect_throw<std::invalid_argument>([] { spearman(std::vector<double>{1}, {}); }, {"1 values of x, but 0 of y"});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_throw<std::invalid_argument>(
      [&] {
        spearman(std::vector<double>{1, 2}, std::vector<double>{1, nan});
      },
      {"value 1 is NaN"});
}

TEST(WordPairs, AreReadPastHeaderCommentsAndEmptyLines) {
  const ScratchFolder folder;
  const auto path = folder.file(
      "pairs",
      "# judged by three\n\nword1\tword2\tscore\nold\tnew\t1.58\r\n  tiger cat  7.35 extra 9\n\n#end\na b -1e1");
  const auto pairs = read_word_pairs(path);
  EXPECT_EQ(pairs.path, path);
  ASSERT_EQ(pairs.pairs.size(), 3U);
  EXPECT_EQ(pairs.pairs[0].first, "old");
  EXPECT_EQ(pairs.pairs[0].second, "new");
  EXPECT_EQ(pairs.pairs[0].score, 1.58);
  EXPECT_EQ(pairs.pairs[1].second, "cat");
  EXPECT_EQ(pairs.pairs[1].score, 7.35);
  EXPECT_EQ(pairs.pairs[2].score, -10);
  EXPECT_EQ(read_word_pairs(folder.file("plain", "a b 1\nc d 2\n")).pairs.size(), 2U) << "no header";
  EXPECT_TRUE(read_word_pairs(folder.file("empty", "")).pairs.empty());
}

TEST(WordPairs, NameTheLineThatIsWrong) {
  const ScratchFolder folder;
  const auto refuses = [&](const char* content, const std::string& text) {
    const auto path = folder.file("pairs", content);
    expect_throw<FileError>([&] { read_word_pairs(path); }, {path + text});
  };
  refuses("a b 1\n\nc d\n", ":3: found 2 fields, expected \"WORD WORD SCORE\"");
  refuses("word\n", ":1: found 1 field, expected \"WORD WORD SCORE\"");
  refuses("a b c\nd e f\n", ":2: found \"f\", expected a number as score");
  refuses("a b 1\nd e 2x\n", ":2: found \"2x\", expected a number as score");
  refuses("a b 1\nd e nan\n", ":2: found \"nan\", expected a number as score");
  refuses("a b 1\nd e 1e999\n", ":2: found \"1e999\", expected a number as score");
  expect_throw<std::system_error>([] { read_word_pairs("/nowhere/pairs"); }, {"/nowhere/pairs: cannot open the file"});
  expect_throw<std::system_error>([] { read_word_pairs("/"); }, {"/: cannot read the file"});
}

TEST(WordIndex, FindsTheFirstOfEqualWords) {
  const WordIndex kept({"Paris", "cat", "paris", "cat", "ÉTÉ"});
  EXPECT_EQ(kept.size(), 5);
  EXPECT_EQ(kept.find("Paris"), 0);
  EXPECT_EQ(kept.find("paris"), 2);
  EXPECT_EQ(kept.find("PARIS"), WordIndex::none);
  EXPECT_EQ(kept.find("cat"), 1);
  EXPECT_TRUE(kept.is_first(2));
  EXPECT_FALSE(kept.is_first(3));
  WordIndex moved({"Paris", "cat", "paris", "CAT", "ÉTÉ"}, Case::ignored);
  const WordIndex ignored = std::move(moved);
  EXPECT_EQ(ignored.find("PaRiS"), 0);
  EXPECT_EQ(ignored.find("Cat"), 1);
  EXPECT_EQ(ignored.find("Été"), WordIndex::none) << "only ASCII letters are folded";
  EXPECT_EQ(ignored.find("ÉtÉ"), 4);
  EXPECT_EQ(ignored.word(0), "Paris") << "as it was given";
  EXPECT_FALSE(ignored.is_first(2));
}

/// Four words in the plane, at 0, 60 and 90 degrees, and one without direction.
struct Plane {
  Plane() {
    const double third = std::acos(-1.0) / 3;
    const std::vector<std::pair<double, double>> columns{{2, 0}, {std::cos(third), std::sin(third)}, {0, 9}, {0, 0}};
    for (std::size_t j = 0; j < columns.size(); ++j) {
      vectors(0, static_cast<Size>(j)) = static_cast<float>(columns[j].first);
      vectors(1, static_cast<Size>(j)) = static_cast<float>(columns[j].second);
    }
  }
  std::vector<std::string> words{"East", "between", "north", "nowhere"};
  Matrix<float> vectors{2, 4};
};

TEST(WordSimilarity, ComparesScoresWithCosines) {
  const Plane plane;
  // cosines: East-between 0.5, between-north 0.866, East-north 0; East-East 1
  WordPairs pairs{"p",
                  {{"East", "between", 3},
                   {"between", "north", 5},
                   {"North", "East", 9},
                   {"north", "nowhere", 1},
                   {"East", "East", 4}}};
  const auto kept = evaluate_similarity(pairs, WordIndex(plane.words), plane.vectors);
  EXPECT_EQ(kept.path, "p");
  EXPECT_EQ(kept.found, 3);
  EXPECT_EQ(kept.missing, 2) << "North is unknown, nowhere is zero";
  EXPECT_NEAR(kept.spearman, 0.5, 1e-12);  // scores 3 5 4, cosines .5 .87 1
  const auto ignored = evaluate_similarity(pairs, WordIndex(plane.words, Case::ignored), plane.vectors);
  EXPECT_EQ(ignored.found, 4);
  EXPECT_EQ(ignored.missing, 1);
  EXPECT_NEAR(ignored.spearman, spearman_by_counting({3, 5, 9, 4}, {0.5, 0.87, 0, 1}), 1e-12);
}

TEST(WordSimilarity, DoesNotDependOnLengths) {
  Dice dice(3);
  auto vectors = dice.matrix<float>(7, 20);
  std::vector<std::string> words;
  WordPairs pairs;
  for (int i = 0; i < 20; ++i) words.push_back("w" + std::to_string(i));
  for (int i = 0; i < 60; ++i) {
    pairs.pairs.push_back({words[static_cast<std::size_t>(dice.between(0, 19))],
                           words[static_cast<std::size_t>(dice.between(0, 19))], dice.normal()});
  }
  const WordIndex index(words);
  const double before = evaluate_similarity(pairs, index, vectors).spearman;
  for (Size j = 0; j < 20; ++j) {
    const float factor = std::ldexp(1.0F, static_cast<int>(dice.between(-100, 100)));
    for (Size i = 0; i < 7; ++i) vectors(i, j) *= factor;
  }
  EXPECT_EQ(evaluate_similarity(pairs, index, vectors).spearman, before);
}

TEST(WordSimilarity, RefusesVectorsThatDoNotFit) {
  Plane plane;
  const WordPairs pairs{"p", {{"East", "north", 1}}};
  expect_throw<std::invalid_argument>([&] { evaluate_similarity(pairs, WordIndex({"a"}), plane.vectors); },
                                      {"vectors: 4 columns, but there are 1 words"});
  plane.vectors(1, 2) = std::numeric_limits<float>::quiet_NaN();
  expect_throw<std::invalid_argument>([&] { evaluate_similarity(pairs, WordIndex(plane.words), plane.vectors); },
                                      {"vectors: column 2 is not finite"});
}

}  // namespace
}  // namespace widehead::test
