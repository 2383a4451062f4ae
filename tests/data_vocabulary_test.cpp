#include <fmt/format.h>

#include <map>
#include <stdexcept>
#include <system_error>

#include "dice.h"
#include "files.h"
#include "widehead/data/vocabulary.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

using namespace std::string_literals;

// ── strings by number ───────────────────────────────────────────────────────────────────────────

TEST(StringIndexTest, NumbersStringsInTheOrderOfTheirFirstInsertion) {
  StringIndex index;
  EXPECT_EQ(index.find("a"), std::nullopt);
  EXPECT_EQ(index.insert("a"), (std::pair<Index, bool>{0, true}));
  EXPECT_EQ(index.insert(""), (std::pair<Index, bool>{1, true}));
  EXPECT_EQ(index.insert("a\0b"s), (std::pair<Index, bool>{2, true}));
  EXPECT_EQ(index.insert("a"), (std::pair<Index, bool>{0, false}));
  EXPECT_EQ(index.size(), 3);
  EXPECT_EQ(index[0], "a");
  EXPECT_EQ(index[1], "");
  EXPECT_EQ(index[2], "a\0b"s);
  EXPECT_EQ(index.find("b"), std::nullopt);
}

TEST(StringIndexTest, AgreesWithAMapOverManyStrings) {
  for (const auto seed : seeds(3)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Dice dice(seed);
    StringIndex index;
    std::map<std::string, Index> truth;
    for (int i = 0; i < 20'000; ++i) {
      const auto text = std::to_string(dice.between(0, 9'000));
      const auto [entry, is_new] = truth.emplace(text, static_cast<Index>(truth.size()));
      EXPECT_EQ(index.insert(text), (std::pair<Index, bool>{entry->second, is_new}));
    }
    EXPECT_EQ(index.size(), static_cast<Size>(truth.size()));
    for (const auto& [text, number] : truth) {
      EXPECT_EQ(index[number], text);
      EXPECT_EQ(index.find(text), number);
      EXPECT_EQ(index.find(text + "x"), std::nullopt);
    }
  }
}

// ── vocabularies ────────────────────────────────────────────────────────────────────────────────

using Counts = std::vector<std::pair<std::string, std::int64_t>>;

Vocabulary make(const Counts& entries, const VocabularyOptions& options) {
  StringIndex words;
  std::vector<std::int64_t> counts;
  for (const auto& [word, count] : entries) {
    words.insert(word);
    counts.push_back(count);
  }
  return {words, counts, options};
}

Counts contents(const Vocabulary& vocabulary) {
  Counts result;
  for (Index i = 0; i < static_cast<Index>(vocabulary.size()); ++i) {
    result.emplace_back(vocabulary.word(i), vocabulary.count(i));
    EXPECT_EQ(vocabulary.find(vocabulary.word(i)), i);
  }
  return result;
}

const Counts entries = {{"rare", 4}, {"b", 7}, {"the", 20}, {"a", 7}, {"1984", 9}, {"é", 6}, {"once", 1}};

TEST(VocabularyTest, WordsComeByDecreasingCountThenByTheirBytes) {
  EXPECT_EQ(contents(make(entries, {})),
            (Counts{{"<unk>", 5}, {"the", 20}, {"1984", 9}, {"a", 7}, {"b", 7}, {"é", 6}}));
}

TEST(VocabularyTest, MaxSizeKeepsTheMostFrequentAndCountsTheUnknownWord) {
  EXPECT_EQ(contents(make(entries, {.min_count = 1, .max_size = 4})),
            (Counts{{"<unk>", 18}, {"the", 20}, {"1984", 9}, {"a", 7}}));
  EXPECT_EQ(make(entries, {.min_count = 1, .max_size = 100}).size(), 8);
  EXPECT_EQ(make(entries, {.min_count = 1, .max_size = 8}).size(), 8);
}

TEST(VocabularyTest, LettersOnlyLeavesOutTheRest) {
  EXPECT_EQ(contents(make(entries, {.letters_only = true})),
            (Counts{{"<unk>", 14}, {"the", 20}, {"a", 7}, {"b", 7}, {"é", 6}}));
}

TEST(VocabularyTest, TheUnknownWordOfATextStandsForItself) {
  EXPECT_EQ(contents(make({{"a", 8}, {"<unk>", 30}, {"b", 2}}, {})), (Counts{{"<unk>", 32}, {"a", 8}}));
  EXPECT_EQ(contents(make({{"a", 8}, {"UNK", 30}}, {.unknown = "UNK"})), (Counts{{"UNK", 30}, {"a", 8}}));
}

TEST(VocabularyTest, FindKnowsNoOtherWords) {
  const auto vocabulary = make(entries, {});
  EXPECT_EQ(vocabulary.find("rare"), std::nullopt);
  EXPECT_EQ(vocabulary.find("<unk>"), Vocabulary::unknown);
  EXPECT_EQ(vocabulary.find("a"), 3);
  EXPECT_EQ(vocabulary.counts()[3], 7);
}

TEST(VocabularyTest, AnEmptyOneNamesTheOptionToChange) {
  const auto refused = [](const Counts& words, const VocabularyOptions& options, const std::string& text) {
    expect_error<std::invalid_argument>([&] { make(words, options); }, "vocabulary: " + text);
  };
  refused({{"a", 3}, {"b", 4}}, {},
          "no word occurs min_count = 5 times, the most frequent one 4 times: lower min_count");
  refused({{"a", 3}, {"<unk>", 40}, {"12", 4}}, {.letters_only = true},
          "no word occurs min_count = 5 times, the most frequent one 3 times: lower min_count");
  refused({{"1984", 30}}, {.letters_only = true}, "no word has only letters: set letters_only to false");
  refused({{"<unk>", 30}}, {}, "there are no words but the unknown one, \"<unk>\"");
  refused({}, {}, "there are no words but the unknown one, \"<unk>\"");
}

TEST(VocabularyTest, RefusesOptionsThatMakeNoSense) {
  const auto refused = [](const VocabularyOptions& options, const std::string& text) {
    expect_error<std::invalid_argument>([&] { make(entries, options); }, "vocabulary: " + text);
  };
  refused({.min_count = 0}, "min_count = 0, but it must be at least 1");
  refused({.max_size = 1}, "max_size = 1, but it must be 0 (no limit) or 2 … 2147483647, the unknown word included");
  refused({.max_size = -2}, "max_size = -2, but it must be 0 (no limit) or 2 … 2147483647, the unknown word included");
  refused({.max_size = Size{1} << 31},
          "max_size = 2147483648, but it must be 0 (no limit) or 2 … 2147483647, the unknown word included");
  refused({.unknown = ""}, "unknown = \"\", but it must be a word without white space");
  refused({.unknown = "a b"}, "unknown = \"a b\", but it must be a word without white space");
  refused({.unknown = "a\0"s}, "unknown = \"a\\x00\", but it must be a word without white space");
}

// ── on disk ─────────────────────────────────────────────────────────────────────────────────────

class VocabularyFileTest : public FolderTest {};

TEST_F(VocabularyFileTest, WhatWasSavedIsLoaded) {
  const auto vocabulary = make(entries, {});
  vocabulary.save(path("vocabulary.txt"));
  EXPECT_EQ(read(path("vocabulary.txt")), "<unk>\t5\nthe\t20\n1984\t9\na\t7\nb\t7\né\t6\n");
  EXPECT_EQ(contents(Vocabulary::load(path("vocabulary.txt"))), contents(vocabulary));
  EXPECT_EQ(file_count(), 1U);
}

TEST_F(VocabularyFileTest, SavingReplacesTheFileThatWasThere) {
  write("vocabulary.txt", "something else");
  make(entries, {}).save(path("vocabulary.txt"));
  EXPECT_EQ(Vocabulary::load(path("vocabulary.txt")).size(), 6);
}

TEST_F(VocabularyFileTest, SavingWhereThereIsNoFolderIsASystemError) {
  expect_error<std::system_error>([&] { make(entries, {}).save(path("none/vocabulary.txt")); },
                                  path("none/vocabulary.txt") + ": cannot create the file: No such file or directory");
}

TEST_F(VocabularyFileTest, ATemporaryOfAnotherDoesNotStandInTheWay) {
  write(fmt::format("v.{}-0.partial", getpid()), "left behind");
  make(entries, {}).save(path("v"));
  EXPECT_EQ(Vocabulary::load(path("v")).size(), 6);
  EXPECT_EQ(file_count(), 2U);
}

TEST_F(VocabularyFileTest, AFailedRenameLeavesNothingBehind) {
  std::filesystem::create_directories(path("v/occupied"));
  expect_error<std::system_error>([&] { make(entries, {}).save(path("v")); },
                                  path("v") + ": cannot rename the file into place: Is a directory");
  EXPECT_EQ(file_count(), 1U);
}

TEST(VocabularyTest, LoadTakesBothLineEndsAndCountsOfZero) {
  auto lines = lines_of("<unk>\t0\r\nb\t0\r\na\t0");
  EXPECT_EQ(contents(Vocabulary::load(lines)), (Counts{{"<unk>", 0}, {"b", 0}, {"a", 0}}));
}

TEST(VocabularyTest, LoadRefusesWhatIsNoVocabulary) {
  const auto refused = [](std::string_view text, const std::string& message) {
    expect_error<FileError>(
        [&] {
          auto lines = lines_of(text);
          Vocabulary::load(lines);
        },
        message);
  };
  refused("", "f: found 0 words, expected the unknown word and at least one other");
  refused("<unk>\t5\n", "f:1: found 1 words, expected the unknown word and at least one other");
  refused("<unk>\t5\nthe 20\n", "f:2: found \"the 20\", expected word<TAB>count");
  refused("<unk>\t5\n\n", "f:2: found \"\", expected word<TAB>count");
  refused("<unk>\t5\n\t7\n", "f:2: the word before the tab is empty");
  const auto bad_count = [&](const std::string& count) {
    refused("<unk>\t5\nthe\t" + count + "\n", "f:2: the count is \"" + count + "\", expected an integer, 0 or more");
  };
  for (const auto* count : {"", "x", "-1", "1.5", " 1", "1 ", "+1", "9223372036854775808"}) bad_count(count);
  refused("<unk>\t5\nthe\t3\t4\n", "f:2: the count is \"3\\x094\", expected an integer, 0 or more");
  refused("<unk>\t5\nthe\t20\na\t7\nthe\t7\n", "f:4: the word \"the\" is there twice, first on line 2");
  refused("<unk>\t5\n<unk>\t5\n", "f:2: the word \"<unk>\" is there twice, first on line 1");
  refused("<unk>\t5\na\t7\nthe\t8\n",
          "f:3: the count 8 is larger than 7 before it: words must come by decreasing count");
  refused("<unk>\t5\na\t9223372036854775803\n", "f:2: the counts add up to more than 2⁶³ − 1");
  refused("<unk>\t5\n" + std::string(50, 'w') + "\n",
          "f:2: found \"" + std::string(40, 'w') + "…\", expected word<TAB>count");
  refused("<unk>\t5\na\0\t7\n"s, "f:2: byte 2 of the line is NUL: this is not text");
}

}  // namespace
}  // namespace widehead::test
