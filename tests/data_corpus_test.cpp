#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "compress.h"
#include "dice.h"
#include "files.h"
#include "widehead/data/corpus.h"
#include "widehead/data/token_file.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

class CorpusTest : public FolderTest {
 protected:
  BuiltCorpus build(const std::vector<std::string>& texts, const VocabularyOptions& options,
                    Tokenization tokenization = Tokenization::words, const CorpusCallback& callback = {}) {
    return build_corpus(texts, tokenization, options, path("tokens"), callback);
  }
  std::vector<Index> tokens(const std::string& name = "tokens") const {
    const TokenFile file(path(name));
    file.verify();
    return {file.tokens().begin(), file.tokens().end()};
  }
};

constexpr Index boundary = TokenFile::boundary;

TEST_F(CorpusTest, LinesBecomeIdsWithABoundaryAfterEach) {
  const auto corpus = build({write("a", "The cat. The dog!\n\n ... \nA cat\n")}, {.min_count = 1});
  EXPECT_EQ(corpus.words, 6);
  EXPECT_EQ(corpus.lines, 2);
  EXPECT_EQ(corpus.vocabulary.size(), 5);
  EXPECT_EQ(corpus.vocabulary.count(0), 0);
  // by count, then by bytes: cat 2, the 2, a 1, dog 1
  EXPECT_EQ(tokens(), (std::vector<Index>{2, 1, 2, 4, boundary, 3, 1, boundary}));
  const TokenFile file(path("tokens"));
  EXPECT_EQ(file.words(), 6);
  EXPECT_EQ(file.vocabulary_size(), 5);
  EXPECT_EQ(file.path(), path("tokens"));
}

TEST_F(CorpusTest, WordsOutsideTheVocabularyAreUnknown) {
  const auto corpus = build({write("a", "x y x z <unk>\n")}, {.min_count = 2}, Tokenization::whitespace);
  EXPECT_EQ(corpus.vocabulary.count(0), 3);
  EXPECT_EQ(tokens(), (std::vector<Index>{1, 0, 1, 0, 0, boundary}));
}

TEST_F(CorpusTest, CaseIsOneOfTheOptions) {
  const auto text = write("a", "The the THE\n");
  EXPECT_EQ(build({text}, {.min_count = 1}).vocabulary.size(), 2);
  EXPECT_EQ(build({text}, {.min_count = 1, .lowercase = false}).vocabulary.size(), 4);
}

TEST_F(CorpusTest, SeveralFilesOfDifferentContainersAreOneText) {
  const std::vector<std::string> texts = {write("a", "one two\r\none"), write("b", gzip("two\n")), write("c", ""),
                                          write("d", xz("one one")), write("e", zstd("two three\n"))};
  build(texts, {.min_count = 1});
  EXPECT_EQ(tokens(), (std::vector<Index>{1, 2, boundary, 1, boundary, 2, boundary, 1, 1, boundary, 2, 3, boundary}));
}

/// Lines of made-up words, a few of them frequent and most of them rare.
std::string random_text(Dice& dice, int line_count) {
  const std::vector<std::string> separators = {" ", ", ", "  ", "-", "'", " “", "\t", "…"};
  std::string text;
  for (int i = 0; i < line_count; ++i) {
    for (Size k = dice.between(0, 30); k > 0; --k) {
      const auto rank = static_cast<Size>(1 / dice.uniform(1e-4, 1));
      text += (dice.between(0, 3) == 0 ? "Wort" : "wort") + std::to_string(rank);
      text += separators[static_cast<std::size_t>(dice.between(0, 7))];
    }
    text += dice.between(0, 1) == 0 ? "\n" : "\r\n";
  }
  return text;
}

/// The slow truth: characters one by one, words in a map, sorted at the end.
struct SlowCorpus {
  std::vector<std::pair<std::string, std::int64_t>> vocabulary;
  std::vector<Index> tokens;

  SlowCorpus(const std::string& text, std::int64_t min_count) {
    struct Entry {
      std::int64_t count = 0;
      Index id = 0;
    };
    std::map<std::string, Entry> entries;
    std::vector<std::vector<const Entry*>> lines(1);
    std::string word;
    for (const char c : text) {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
        word += static_cast<char>(std::tolower(c));
        continue;
      }
      if (!word.empty()) {
        auto& entry = entries[std::exchange(word, {})];
        ++entry.count;
        lines.back().push_back(&entry);
      }
      if (c == '\n') lines.emplace_back();
    }
    for (const auto& [w, entry] : entries) {
      if (entry.count >= min_count) vocabulary.emplace_back(w, entry.count);
    }
    std::stable_sort(vocabulary.begin(), vocabulary.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    Index last = 0;
    for (const auto& [w, count] : vocabulary) entries[w].id = ++last;
    for (const auto& line : lines) {
      for (const Entry* entry : line) tokens.push_back(entry->id);
      if (!line.empty()) tokens.push_back(boundary);
    }
  }
};

TEST_F(CorpusTest, EqualsAPlainSlowTokenisation) {
  for (const auto seed : seeds(3)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Dice dice(seed);
    const auto text = random_text(dice, 25'000);  // more ids than are replaced at once
    const SlowCorpus truth(text, 3);
    const auto corpus = build({write("a", dice.between(0, 1) == 0 ? text : zstd(text))}, {.min_count = 3});
    ASSERT_GT(truth.tokens.size(), std::size_t{1} << 18);
    EXPECT_TRUE(tokens() == truth.tokens);
    ASSERT_EQ(corpus.vocabulary.size(), static_cast<Size>(truth.vocabulary.size()) + 1);
    std::int64_t known = 0;
    for (Index i = 1; i < static_cast<Index>(corpus.vocabulary.size()); ++i) {
      const auto& [word, count] = truth.vocabulary[static_cast<std::size_t>(i) - 1];
      EXPECT_EQ(corpus.vocabulary.word(i), word);
      EXPECT_EQ(corpus.vocabulary.count(i), count);
      known += count;
    }
    EXPECT_EQ(corpus.vocabulary.count(0), corpus.words - known);
    EXPECT_EQ(corpus.lines, std::count(truth.tokens.begin(), truth.tokens.end(), boundary));
    EXPECT_EQ(corpus.words + corpus.lines, static_cast<std::int64_t>(truth.tokens.size()));
  }
}

TEST_F(CorpusTest, EncodingTheSameTextGivesTheSameTokens) {
  Dice dice(5);
  const auto text = write("a", random_text(dice, 500));
  const auto corpus = build({text}, {});
  const auto encoded = encode_corpus({text}, Tokenization::words, true, corpus.vocabulary, path("again"));
  EXPECT_EQ(read(path("again")), read(path("tokens")));
  EXPECT_EQ(encoded.words, corpus.words);
  EXPECT_EQ(encoded.lines, corpus.lines);
  EXPECT_EQ(encoded.unknown, corpus.vocabulary.count(0));
}

TEST_F(CorpusTest, EncodingCountsWhatTheVocabularyDoesNotHave) {
  const auto corpus = build({write("a", "a a b\n")}, {.min_count = 1});
  const auto other = write("b", "B c\nc\n");
  const auto encoded = encode_corpus({other}, Tokenization::words, true, corpus.vocabulary, path("other"));
  EXPECT_EQ(encoded.words, 3);
  EXPECT_EQ(encoded.unknown, 2);
  EXPECT_EQ(tokens("other"), (std::vector<Index>{2, 0, boundary, 0, boundary}));
  encode_corpus({other}, Tokenization::words, false, corpus.vocabulary, path("other"));
  EXPECT_EQ(tokens("other"), (std::vector<Index>{0, 0, boundary, 0, boundary}));
  EXPECT_EQ(TokenFile(path("other")).vocabulary_size(), 3);
}

TEST_F(CorpusTest, ProgressGoesFromNothingToEverything) {
  Dice dice(6);
  const auto a = random_text(dice, 9'000), b = random_text(dice, 10);
  std::vector<CorpusProgress> calls;
  const auto corpus = build({write("a", a), write("b", b)}, {}, Tokenization::words,
                            [&](const CorpusProgress& progress) { calls.push_back(progress); });
  ASSERT_EQ(calls.size(), 3U);  // after 4096 and 8192 lines, and at the end
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].bytes_total, static_cast<std::int64_t>(a.size() + b.size()));
    if (i > 0) {
      EXPECT_GT(calls[i].bytes_read, calls[i - 1].bytes_read);
      EXPECT_GT(calls[i].words, calls[i - 1].words);
      EXPECT_GT(calls[i].lines, calls[i - 1].lines);
    }
  }
  EXPECT_EQ(calls.back().bytes_read, calls.back().bytes_total);
  EXPECT_EQ(calls.back().words, corpus.words);
  EXPECT_EQ(calls.back().lines, corpus.lines);
}

// ── what goes wrong leaves no file ──────────────────────────────────────────────────────────────

TEST_F(CorpusTest, WithoutWordsThereIsNoCorpus) {
  const auto empty = write("a", ""), dots = write("b", "...\n");
  expect_error<FileError>([&] { build({empty}, {}); }, empty + ": no words");
  expect_error<FileError>([&] { build({dots, empty}, {}); }, dots + ": no words, nor in the 1 other files");
  expect_error<std::invalid_argument>([&] { build({}, {}); }, "corpus: no text files");
  EXPECT_EQ(file_count(), 2U);
}

TEST_F(CorpusTest, OptionsAreToBlameWhenNoWordIsLeft) {
  const auto text = write("a", "a b a\n");
  expect_error<std::invalid_argument>(
      [&] { build({text}, {}); },
      "vocabulary: no word occurs min_count = 5 times, the most frequent one 2 times: lower min_count");
  expect_error<std::invalid_argument>([&] { build({text}, {.min_count = 0}); },
                                      "vocabulary: min_count = 0, but it must be at least 1");
  EXPECT_EQ(file_count(), 1U);
}

TEST_F(CorpusTest, BadTextIsNamedByPathAndLine) {
  const auto latin1 = write("a", "one\ncaf\xE9\n"), cut = write("b", gzip("one\ntwo\n").substr(0, 20));
  expect_error<FileError>([&] { build({latin1}, {}); }, latin1 + ":2: byte 4 of the line (0xE9) is not valid UTF-8");
  expect_error<FileError>([&] { build({cut}, {}); },
                          cut + ":3: the gzip data stop before their end: the file is truncated");
  expect_error<std::system_error>([&] { build({path("none")}, {}); },
                                  path("none") + ": cannot open the file: No such file or directory");
  EXPECT_EQ(file_count(), 2U);
}

TEST_F(CorpusTest, WhatTheCallbackThrowsPassesThrough) {
  const auto text = write("a", "a a a a a\n");
  expect_error<std::domain_error>(
      [&] { build({text}, {}, Tokenization::words, [](const CorpusProgress&) { throw std::domain_error("enough"); }); },
      "enough");
  EXPECT_EQ(file_count(), 1U);
}

/// No file may grow beyond so many bytes while this lives.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  rlimit before_ = {};
  void (*handler_)(int) = nullptr;
};

TEST_F(CorpusTest, AFullDiskIsASystemErrorAndTheTemporaryIsRemoved) {
  Dice dice(7);
  const auto text = write("a", random_text(dice, 30'000));  // more than a buffer of ids
  const auto small = write("b", "a b a b\n");
  const auto vocabulary = build({small}, {.min_count = 1}).vocabulary;
  std::filesystem::remove(path("tokens"));
  const auto message = path("tokens") + ": cannot write the file: File too large";
  {
    const SmallDisk disk(100'000);
    expect_error<std::system_error>([&] { build({text}, {}); }, message);
    expect_error<std::system_error>(
        [&] { encode_corpus({text}, Tokenization::words, true, vocabulary, path("tokens")); }, message);
  }
  {
    const SmallDisk disk(50);
    expect_error<std::system_error>([&] { build({small}, {.min_count = 1}); }, message);
  }
  EXPECT_EQ(file_count(), 2U);
}

TEST_F(CorpusTest, AFailureLeavesTheFileThatWasThere) {
  const auto text = write("a", "a b a b\n");
  build({text}, {.min_count = 1});
  const auto before = read(path("tokens"));
  EXPECT_THROW(build({path("none")}, {}), std::system_error);
  EXPECT_EQ(read(path("tokens")), before);
  EXPECT_EQ(file_count(), 2U);
}

}  // namespace
}  // namespace widehead::test
