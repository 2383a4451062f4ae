#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "dice.h"
#include "errors.h"
#include "widehead/eval/neighbours.h"

namespace widehead::test {
namespace {

TEST(Combinations, AreParsed) {
  const WordIndex index({"king", "man", "woman", "semi-final"});
  const auto terms = [&](const char* text) {
    std::vector<std::pair<Index, double>> list;
    for (const auto& term : parse_combination(text, index).terms) list.emplace_back(term.word, term.weight);
    return list;
  };
  using List = std::vector<std::pair<Index, double>>;
  EXPECT_EQ(terms("king - man + woman"), (List{{0, 1}, {1, -1}, {2, 1}}));
  EXPECT_EQ(terms("  semi-final "), (List{{3, 1}}));
  EXPECT_EQ(terms("- king\t+ king"), (List{{0, -1}, {0, 1}}));
}

TEST(Combinations, SayWhatIsWrong) {
  const WordIndex index({"king", "man"});
  const auto refuses = [&](const char* text, const char* message) {
    expect_throw<std::invalid_argument>([&] { parse_combination(text, index); }, {message});
  };
  refuses("king - queen", "\"queen\" is not a known word");
  refuses("king man", "\"king man\": found \"man\", expected \"+\" or \"-\"");
  refuses("king + - man", "found \"-\", expected a word");
  refuses("+ - man", "found \"-\", expected a word");
  refuses("king -", "\"king -\": a word is expected at its end");
  refuses(" ", "a word is expected at its end");
  refuses("+", "a word is expected at its end");
}

/// By the definition, in double: all words sorted by cosine.
std::vector<std::pair<double, Index>> by_cosine(const WordCombination& combination, ConstView<float> vectors) {
  const auto norm = [](const std::vector<double>& x) {
    double square = 0;
    for (const double value : x) square += value * value;
    return std::sqrt(square);
  };
  const auto column = [&](Index i) {
    std::vector<double> x;
    for (Size r = 0; r < vectors.rows; ++r) x.push_back(static_cast<double>(vectors(r, i)));
    return x;
  };
  std::vector<double> sum(static_cast<std::size_t>(vectors.rows));
  for (const auto& term : combination.terms) {
    const auto x = column(term.word);
    if (norm(x) == 0) continue;
    for (std::size_t r = 0; r < sum.size(); ++r) sum[r] += term.weight * x[r] / norm(x);
  }
  std::vector<std::pair<double, Index>> list;
  for (Index i = 0; i < vectors.cols; ++i) {
    const auto x = column(i);
    const bool is_asked = std::any_of(combination.terms.begin(), combination.terms.end(),
                                      [&](const auto& term) { return term.word == i; });
    if (is_asked || norm(x) == 0) continue;
    double dot = 0;
    for (std::size_t r = 0; r < sum.size(); ++r) dot += x[r] * sum[r];
    list.emplace_back(-dot / (norm(x) * norm(sum)), i);
  }
  std::sort(list.begin(), list.end());
  return list;
}

void check_neighbours(std::uint64_t seed, Size d, Size n, Size count, Size k) {
  SCOPED_TRACE(seed);
  Dice dice(seed);
  auto vectors = dice.matrix<float>(d, n);
  std::fill_n(vectors.view().column(n / 2), d, 0.0F);
  std::vector<WordCombination> combinations(static_cast<std::size_t>(count));
  for (auto& combination : combinations) {
    const Size terms = dice.between(1, 3);
    for (Size t = 0; t < terms; ++t)
      combination.terms.push_back({static_cast<Index>(dice.between(0, n / 2 - 1)), dice.normal()});
  }
  const auto backend = make_cpu_backend<float>(2);
  const auto found = nearest_words(combinations, k, vectors, *backend);
  ASSERT_EQ(found.size(), combinations.size());
  for (std::size_t j = 0; j < found.size(); ++j) {
    const auto expected = by_cosine(combinations[j], vectors);
    ASSERT_EQ(found[j].size(), std::min(expected.size(), static_cast<std::size_t>(k)));
    for (std::size_t i = 0; i < found[j].size(); ++i) {
      EXPECT_EQ(found[j][i].word, expected[i].second);
      EXPECT_NEAR(static_cast<double>(found[j][i].cosine), -expected[i].first, 1e-6);
    }
  }
}

TEST(Neighbours, AreTheWordsSortedByCosine) {
  for (const auto seed : seeds(10)) check_neighbours(seed, 8, 40, 12, 5);
  check_neighbours(1, 8, 40, 3, 100);    // more than there are
  check_neighbours(2, 4, 5000, 300, 3);  // more words and more questions than a block holds
}

TEST(Neighbours, OfEqualDistanceKeepTheOrderOfTheWords) {
  Matrix<float> vectors(2, 6);
  for (Size j = 0; j < 6; ++j) vectors(0, j) = j % 2 == 0 ? 1.0F : 4.0F;  // all in one direction
  const auto backend = make_cpu_backend<float>(1);
  const std::vector<WordCombination> combinations{{{{2}}}};
  const auto found = nearest_words(combinations, 4, vectors, *backend);
  std::vector<Index> words;
  for (const auto& neighbour : found[0]) words.push_back(neighbour.word);
  EXPECT_EQ(words, (std::vector<Index>{0, 1, 3, 4}));
  EXPECT_EQ(found[0][3].cosine, 1.0F);
}

TEST(Neighbours, RefuseWhatHasNoDirection) {
  auto vectors = Dice(1).matrix<float>(3, 4);
  std::fill_n(vectors.view().column(3), 3, 0.0F);
  const auto backend = make_cpu_backend<float>(1);
  const auto refuses = [&](const WordCombination& combination, Size k, const char* message) {
    const std::vector<WordCombination> combinations{{{{0}}}, combination};
    expect_throw<std::invalid_argument>([&] { nearest_words(combinations, k, vectors, *backend); }, {message});
  };
  refuses({{{1}, {1, -1}}}, 2, "combination 1 is zero and has no direction");
  refuses({{{3}}}, 2, "combination 1 is zero and has no direction");
  refuses({}, 2, "combination 1 is zero and has no direction");
  refuses({{{4}}}, 2, "combination 1: word 4, but there are 4 vectors");
  refuses({{{-1}}}, 2, "combination 1: word -1, but there are 4 vectors");
  refuses({{{1, NAN}}}, 2, "combination 1: weight nan");
  refuses({{{1}}}, 0, "k = 0, but it must be at least 1");
  EXPECT_TRUE(nearest_words({}, 1, vectors, *backend).empty());
}

}  // namespace
}  // namespace widehead::test
