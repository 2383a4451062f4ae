#include "widehead/data/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "text.h"
#include "widehead/data/output_file.h"

namespace widehead {
namespace {

bool has_only_letters(std::string_view word) {
  return std::all_of(word.begin(), word.end(),
                     [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c & 0x80) != 0; });
}

/// Which option kept every word out.
std::string why_empty(const StringIndex& words, const std::vector<std::int64_t>& counts,
                      const VocabularyOptions& options) {
  std::int64_t most = 0;
  for (Index i = 0; i < static_cast<Index>(words.size()); ++i) {
    if (words[i] == options.unknown || (options.letters_only && !has_only_letters(words[i]))) continue;
    most = std::max(most, counts[static_cast<std::size_t>(i)]);
  }
  if (most > 0) {
    return fmt::format("no word occurs min_count = {} times, the most frequent one {} times: lower min_count",
                       options.min_count, most);
  }
  return options.letters_only ? "no word has only letters: set letters_only to false"
                              : fmt::format("there are no words but the unknown one, \"{}\"", options.unknown);
}

}  // namespace

void VocabularyOptions::validate() const {
  const auto refuse = [](const std::string& what) { throw std::invalid_argument("vocabulary: " + what); };
  if (min_count < 1) refuse(fmt::format("min_count = {}, but it must be at least 1", min_count));
  if (max_size != 0 && (max_size < 2 || max_size > std::numeric_limits<Index>::max())) {
    refuse(fmt::format("max_size = {}, but it must be 0 (no limit) or 2 … {}, the unknown word included", max_size,
                       std::numeric_limits<Index>::max()));
  }
  if (unknown.empty() || unknown.find_first_of(std::string_view(" \t\n\v\f\r\0", 7)) != std::string::npos) {
    refuse(fmt::format("unknown = {}, but it must be a word without white space", quoted(unknown)));
  }
}

Vocabulary::Vocabulary(const StringIndex& words, const std::vector<std::int64_t>& counts,
                       const VocabularyOptions& options) {
  options.validate();
  std::vector<Index> kept;
  for (Index i = 0; i < static_cast<Index>(words.size()); ++i) {
    if (counts[static_cast<std::size_t>(i)] < options.min_count || words[i] == options.unknown) continue;
    if (!options.letters_only || has_only_letters(words[i])) kept.push_back(i);
  }
  if (kept.empty()) throw std::invalid_argument("vocabulary: " + why_empty(words, counts, options));
  std::sort(kept.begin(), kept.end(), [&](Index a, Index b) {
    const auto count_a = counts[static_cast<std::size_t>(a)], count_b = counts[static_cast<std::size_t>(b)];
    return count_a != count_b ? count_a > count_b : words[a] < words[b];
  });
  const auto room = (options.max_size > 0 ? options.max_size : std::numeric_limits<Index>::max()) - 1;
  if (static_cast<Size>(kept.size()) > room) kept.resize(static_cast<std::size_t>(room));

  words_.insert(options.unknown);
  counts_.push_back(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  for (const Index i : kept) {
    words_.insert(words[i]);
    counts_.push_back(counts[static_cast<std::size_t>(i)]);
    counts_[unknown] -= counts_.back();
  }
}

Vocabulary Vocabulary::load(const std::string& path) {
  LineReader lines(path);
  return load(lines);
}

Vocabulary Vocabulary::load(LineReader& lines) {
  Vocabulary vocabulary;
  std::int64_t total = 0;
  while (const auto line = lines.next()) {
    const auto tab = line->find('\t');
    if (tab == std::string_view::npos) lines.fail(fmt::format("found {}, expected word<TAB>count", quoted(*line)));
    const auto word = line->substr(0, tab), count_text = line->substr(tab + 1);
    if (word.empty()) lines.fail("the word before the tab is empty");
    const auto count = parse_integer<std::int64_t>(count_text);
    if (!count || *count < 0) {
      lines.fail(fmt::format("the count is {}, expected an integer, 0 or more", quoted(count_text)));
    }
    if (*count > std::numeric_limits<std::int64_t>::max() - total) lines.fail("the counts add up to more than 2⁶³ − 1");
    total += *count;
    if (vocabulary.size() == std::numeric_limits<Index>::max()) lines.fail("there are more than 2³¹ − 1 words");
    const auto [index, is_new] = vocabulary.words_.insert(word);
    if (!is_new) lines.fail(fmt::format("the word {} is there twice, first on line {}", quoted(word), index + 1));
    if (index > 1 && *count > vocabulary.counts_.back()) {
      lines.fail(fmt::format("the count {} is larger than {} before it: words must come by decreasing count", *count,
                             vocabulary.counts_.back()));
    }
    vocabulary.counts_.push_back(*count);
  }
  if (vocabulary.size() < 2) {
    lines.fail(fmt::format("found {} words, expected the unknown word and at least one other", vocabulary.size()));
  }
  return vocabulary;
}

void Vocabulary::save(const std::string& path) const {
  OutputFile file(path);
  for (Index i = 0; i < static_cast<Index>(size()); ++i) file.write(fmt::format("{}\t{}\n", word(i), count(i)));
  file.commit();
}

}  // namespace widehead
