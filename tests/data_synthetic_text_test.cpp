#include <cmath>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "files.h"
#include "widehead/data/synthetic_text.h"
#include "widehead/eval/word_similarity.h"

namespace widehead::test {
namespace {

struct Shape {
  std::string theme;
  char kind = 0;
  int rank = 0;
};

/// "birdc17" taken apart; no theme for function words.
Shape shape_of(const std::string& word) {
  static const std::regex pattern("([a-z]+)([a-z])([0-9]+)");
  std::smatch match;
  if (!std::regex_match(word, match, pattern)) return {};
  return {match[1], match[2].str()[0], std::stoi(match[3])};
}

class SyntheticTextTest : public FolderTest {
 protected:
  SyntheticTextTest() {
    options.words = 4000;
    options.tokens = 20000;
    options.pairs = 300;
  }
  std::string text(const std::string& name = "text") const {
    write_synthetic_text(path(name), options);
    return read(path(name));
  }
  SyntheticTextOptions options;
};

TEST_F(SyntheticTextTest, TheSameSeedGivesTheSameBytesAndAnotherOneDoesNot) {
  const auto first = text("a");
  EXPECT_EQ(text("b"), first);
  write_synthetic_pairs(path("p"), options);
  write_synthetic_pairs(path("q"), options);
  EXPECT_EQ(read(path("q")), read(path("p")));
  options.seed = 1;
  EXPECT_NE(text("c"), first);
  write_synthetic_pairs(path("r"), options);
  EXPECT_NE(read(path("r")), read(path("p")));
}

TEST_F(SyntheticTextTest, HasAsManyWordsAsAskedForToTheEndOfASentence) {
  std::istringstream lines(text());
  std::int64_t tokens = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::int64_t length = 0;
    for (std::string word; words >> word;) ++length;
    EXPECT_GE(length, 8);
    EXPECT_LE(length, 24);
    EXPECT_LT(tokens, options.tokens);
    tokens += length;
  }
  EXPECT_GE(tokens, options.tokens);
}

TEST_F(SyntheticTextTest, ASentenceKeepsToOneThemeAndKindsFollowEachOther) {
  std::istringstream lines(text());
  std::set<std::string> themes;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Shape before;
    for (std::string word; words >> word;) {
      const auto shape = shape_of(word);
      if (shape.theme.empty()) continue;
      themes.insert(shape.theme);
      if (!before.theme.empty()) {
        EXPECT_EQ(shape.theme, before.theme);
        const int kinds = static_cast<int>(options.kinds), k = before.kind - 'a', next = shape.kind - 'a';
        EXPECT_TRUE(next == (2 * k + 1) % kinds || next == (2 * k + 2) % kinds) << line;
      }
      before = shape;
    }
  }
  EXPECT_GT(themes.size(), 50U);
}

TEST_F(SyntheticTextTest, WordsOfAKindFollowZipfsLaw) {
  options.tokens = 400000;
  std::istringstream words(text());
  std::map<int, double> by_rank;
  double function_words = 0, total = 0;
  for (std::string word; words >> word; ++total) {
    const auto shape = shape_of(word);
    if (shape.theme.empty()) {
      ++function_words;
    } else {
      ++by_rank[shape.rank];
    }
  }
  EXPECT_NEAR(function_words / total, 0.3, 0.01);
  EXPECT_NEAR(by_rank[1] / by_rank[2], std::log(2.0) / std::log(1.5), 0.1);  // P(k) ∝ ln((k + 1)/k)
  EXPECT_EQ(by_rank.begin()->first, 1);
  EXPECT_EQ(by_rank.rbegin()->first, 4000 / (64 * 6));
}

TEST_F(SyntheticTextTest, PairsHaveTheSimilarityThatTheirWordsHave) {
  write_synthetic_pairs(path("pairs"), options);
  const auto pairs = read_word_pairs(path("pairs")).pairs;
  ASSERT_EQ(pairs.size(), 300U);
  std::map<double, int> of_degree;
  for (const auto& [first, second, score] : pairs) {
    const auto a = shape_of(first), b = shape_of(second);
    EXPECT_NE(first, second);
    EXPECT_EQ(score, a.theme != b.theme ? 0 : a.kind != b.kind ? 1 : 2) << first << " " << second;
    ++of_degree[score];
  }
  EXPECT_EQ(of_degree, (std::map<double, int>{{0, 100}, {1, 100}, {2, 100}}));
}

TEST_F(SyntheticTextTest, WithOneKindThereIsNoMiddleDegree) {
  options.kinds = 1;
  write_synthetic_pairs(path("pairs"), options);
  for (const auto& [first, second, score] : read_word_pairs(path("pairs")).pairs) {
    EXPECT_EQ(score, shape_of(first).theme == shape_of(second).theme ? 2 : 0) << first << " " << second;
  }
}

TEST_F(SyntheticTextTest, OptionsOutOfRangeAreNamed) {
  const auto refuses = [&](const std::string& what) {
    expect_error<std::invalid_argument>([&] { write_synthetic_text(path("x"), options); }, "synthetic text: " + what);
    EXPECT_EQ(file_count(), 0U);
  };
  options.words = 999;
  refuses("words = 999, but it must be 1000 … 100000000");
  options = {};
  options.kinds = 27;
  refuses("kinds = 27, but it must be 1 … 26");
  options = {};
  options.tokens = 0;
  refuses("tokens = 0, but it must be 1 … 1000000000000");
  options = {};
  options.pairs = 2;
  refuses("pairs = 2, but it must be 3 … 10000000");
}

}  // namespace
}  // namespace widehead::test
