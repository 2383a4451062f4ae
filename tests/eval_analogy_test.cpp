#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <system_error>

#include "compare.h"
#include "dice.h"
#include "errors.h"
#include "scratch_folder.h"
#include "widehead/errors.h"
#include "widehead/eval/analogy.h"

namespace widehead::test {
namespace {

TEST(Analogies, AreReadBySections) {
  const ScratchFolder folder;
  const auto path = folder.file(
      "questions",
      ": capital-common-countries\r\nAthens Greece Oslo Norway\r\n\n :  two words \na\tb c d\ne f g h\n:\n");
  const auto questions = read_analogies(path);
  EXPECT_EQ(questions.path, path);
  ASSERT_EQ(questions.sections.size(), 3U);
  EXPECT_EQ(questions.sections[0].name, "capital-common-countries");
  ASSERT_EQ(questions.sections[0].questions.size(), 1U);
  EXPECT_EQ(questions.sections[0].questions[0].a, "Athens");
  EXPECT_EQ(questions.sections[0].questions[0].b, "Greece");
  EXPECT_EQ(questions.sections[0].questions[0].c, "Oslo");
  EXPECT_EQ(questions.sections[0].questions[0].d, "Norway");
  EXPECT_EQ(questions.sections[1].name, "two words");
  EXPECT_EQ(questions.sections[1].questions.size(), 2U);
  EXPECT_EQ(questions.sections[2].name, "");
  EXPECT_TRUE(questions.sections[2].questions.empty());
}

TEST(Analogies, NameTheLineThatIsWrong) {
  const ScratchFolder folder;
  const auto refuses = [&](const char* content, const std::string& text) {
    const auto path = folder.file("questions", content);
    expect_throw<FileError>([&] { read_analogies(path); }, {path + text});
  };
  refuses(": s\na b c d\n\na b c\n", ":4: found 3 words, expected \"A B C D\" or \": SECTION\"");
  refuses(": s\na\n", ":2: found 1 word, expected \"A B C D\" or \": SECTION\"");
  refuses(": s\na b c d e\n", ":2: found 5 words");
  refuses("a b c d\n: s\n", ":1: found a question, expected \": SECTION\" before the first one");
  expect_throw<std::system_error>([] { read_analogies("/nowhere/q"); }, {"/nowhere/q: cannot open the file"});
}

/// Words w0, w1, … with random vectors, and random questions about them and about words that are not there.
struct World {
  World(std::uint64_t seed, Size d, Size n, int count) : vectors(Dice(seed).matrix<float>(d, n)) {
    Dice dice(seed + 1000);
    for (Size i = 0; i < n; ++i) words.push_back("w" + std::to_string(i));
    questions.path = "q";
    questions.sections = {{"first", {}}, {"empty", {}}, {"last", {}}};
    const auto any = [&] { return "w" + std::to_string(dice.between(0, n + n / 20)); };
    for (int i = 0; i < count; ++i)
      questions.sections[i % 3 == 0 ? 0 : 2].questions.push_back({any(), any(), any(), any()});
  }

  /// The answer by the definition, in double; none where a word is not available.
  /// @param units  the vectors in double, divided by their lengths
  Index answer(const Analogy& question, const WordIndex& index, Size limit, const Matrix<double>& units) const {
    const auto unit = [&](Index i) { return units.view().column(i); };
    const auto is_zero = [&](Index i) {
      const double* x = unit(i);
      return std::all_of(x, x + units.rows(), [](double value) { return value == 0; });
    };
    const std::vector<Index> asked{index.find(question.a), index.find(question.b), index.find(question.c)};
    for (const Index i : {asked[0], asked[1], asked[2], index.find(question.d)}) {
      if (i < 0 || i >= limit || is_zero(i)) return WordIndex::none;
    }
    const double *a = unit(asked[0]), *b = unit(asked[1]), *c = unit(asked[2]);
    Index best = WordIndex::none;
    double highest = -100;
    for (Index i = 0; i < std::min<Size>(limit, vectors.cols()); ++i) {
      if (is_zero(i) || std::find(asked.begin(), asked.end(), i) != asked.end()) continue;
      const double* x = unit(i);
      double score = 0;
      for (Size r = 0; r < units.rows(); ++r) score += x[r] * (b[r] - a[r] + c[r]);
      if (score > highest) best = i, highest = score;
    }
    return best;
  }

  Matrix<double> units() const {
    auto X = to_double(vectors);
    for (Size i = 0; i < X.cols(); ++i) {
      const double length = norm<double>(X.view().columns(i, 1));
      for (Size r = 0; r < X.rows() && length > 0; ++r) X(r, i) /= length;
    }
    return X;
  }

  std::vector<std::string> words;
  Matrix<float> vectors;
  AnalogyQuestions questions;
};

void check_world(World& world, Size limit, int threads) {
  const WordIndex index(world.words);
  const auto units = world.units();
  // Half of the questions get the answer that the definition gives, so that there is something to count.
  std::vector<AnalogyScore> expected{{"first"}, {"empty"}, {"last"}};
  for (std::size_t s = 0; s < 3; ++s) {
    int number = 0;
    for (auto& question : world.questions.sections[s].questions) {
      const Index best = world.answer(question, index, limit, units);
      if (best != WordIndex::none && ++number % 2 == 0) question.d = world.words[static_cast<std::size_t>(best)];
      ++(best == WordIndex::none ? expected[s].missing : expected[s].found);
      if (best != WordIndex::none && question.d == world.words[static_cast<std::size_t>(best)]) ++expected[s].correct;
    }
  }
  const auto backend = make_cpu_backend<float>(threads);
  const auto result = evaluate_analogies(world.questions, index, world.vectors, *backend, {limit});
  EXPECT_EQ(result.path, "q");
  ASSERT_EQ(result.sections.size(), 3U);
  AnalogyScore total;
  for (std::size_t s = 0; s < 3; ++s) {
    SCOPED_TRACE(expected[s].name);
    EXPECT_EQ(result.sections[s].name, expected[s].name);
    EXPECT_EQ(result.sections[s].correct, expected[s].correct);
    EXPECT_EQ(result.sections[s].found, expected[s].found);
    EXPECT_EQ(result.sections[s].missing, expected[s].missing);
    total.correct += expected[s].correct, total.found += expected[s].found, total.missing += expected[s].missing;
  }
  EXPECT_EQ(result.total.name, "total");
  EXPECT_EQ(result.total.correct, total.correct);
  EXPECT_EQ(result.total.found, total.found);
  EXPECT_EQ(result.total.missing, total.missing);
  EXPECT_GT(total.correct, 0);
  EXPECT_GT(total.missing, 0);
  EXPECT_GT(total.found, total.correct);
}

TEST(Analogies, AreAnsweredAsDefined) {
  for (const auto seed : seeds(10)) {
    SCOPED_TRACE(seed);
    World world(seed, 5, 60, 90);
    std::fill_n(world.vectors.view().column(7), 5, 0.0F);  // no direction: neither asked for nor an answer
    check_world(world, 50, 1 + static_cast<int>(seed % 2));
  }
}

TEST(Analogies, AreAnsweredAsDefinedAcrossBlocks) {
  World world(1, 3, 9000, 600);  // more words and more questions than a block holds
  check_world(world, 8500, 2);
}

TEST(Analogies, GoToTheMoreFrequentOfEqualWords) {
  Matrix<float> vectors(2, 6);  // a b c at (1, 0), then three equal ones at (0, 1) … of which the first is the answer
  const WordIndex index({"a", "b", "c", "x", "y", "z"});
  for (Size j = 0; j < 6; ++j) vectors(j < 3 ? 0 : 1, j) = 1;
  const auto backend = make_cpu_backend<float>(1);
  const auto correct = [&](const char* d) {
    return evaluate_analogies({"", {{"s", {{"a", "b", "c", d}}}}}, index, vectors, *backend).total.correct;
  };
  EXPECT_EQ(correct("x"), 1);
  EXPECT_EQ(correct("y"), 0);
  EXPECT_EQ(correct("z"), 0);
  EXPECT_EQ(correct("a"), 0) << "never one of the three";
}

TEST(Analogies, TakeAllSpellingsForOneWordWhereCaseIsIgnored) {
  // b̂ − â + ĉ = ĉ: the nearest is CAT, which is c again, then dog.
  Matrix<float> vectors(2, 5);
  const std::vector<std::string> words{"a", "b", "cat", "CAT", "dog"};
  vectors(0, 0) = vectors(0, 1) = 1;
  vectors(1, 2) = vectors(1, 3) = vectors(1, 4) = 1;
  vectors(0, 4) = 0.5F;
  const auto backend = make_cpu_backend<float>(1);
  const AnalogyQuestions questions{"", {{"s", {{"A", "B", "Cat", "DOG"}, {"a", "b", "cat", "dog"}}}}};
  const auto ignored = evaluate_analogies(questions, WordIndex(words, Case::ignored), vectors, *backend).total;
  EXPECT_EQ(ignored.found, 2);
  EXPECT_EQ(ignored.correct, 2);
  const auto kept = evaluate_analogies(questions, WordIndex(words), vectors, *backend).total;
  EXPECT_EQ(kept.found, 1);
  EXPECT_EQ(kept.correct, 0) << "CAT is another word, and nearer";
}

TEST(Analogies, WithoutAnyAreNotANumber) {
  const auto backend = make_cpu_backend<float>(1);
  const Matrix<float> vectors(2, 0);
  const auto result = evaluate_analogies({"", {{"s", {{"a", "b", "c", "d"}}}}}, WordIndex({}), vectors, *backend);
  EXPECT_EQ(result.total.missing, 1);
  EXPECT_TRUE(std::isnan(result.total.accuracy()));
  EXPECT_EQ((AnalogyScore{"s", 1, 4, 0}).accuracy(), 0.25);
}

TEST(Analogies, RefuseWhatDoesNotFit) {
  const auto backend = make_cpu_backend<float>(1);
  Matrix<float> vectors(2, 2);
  const WordIndex index({"a", "b"});
  expect_throw<std::invalid_argument>([&] { evaluate_analogies({}, WordIndex({"a"}), vectors, *backend); },
                                      {"vectors: 2 columns, but there are 1 words"});
  expect_throw<std::invalid_argument>([&] { evaluate_analogies({}, index, vectors, *backend, {0}); },
                                      {"most_frequent = 0, but it must be at least 1"});
  vectors(0, 1) = INFINITY;
  expect_throw<std::invalid_argument>([&] { evaluate_analogies({}, index, vectors, *backend); },
                                      {"vectors: column 1 is not finite"});
}

}  // namespace
}  // namespace widehead::test
