#pragma once
/// Which column of a matrix of vectors belongs to a word, and the other way round.

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "widehead/matrix.h"

namespace widehead {

/// Whether "Paris" and "paris" are two words or one. Only ASCII letters are folded.
enum class Case { kept, ignored };

/// Words by number, most frequent first. Of words that are the same (also of those that are so because
/// their case is ignored) the first stands for all.
class WordIndex {
 public:
  explicit WordIndex(std::vector<std::string> words, Case letter_case = Case::kept);
  WordIndex(WordIndex&&) = default;
  WordIndex& operator=(WordIndex&&) = default;
  WordIndex(const WordIndex&) = delete;  // numbers_ points into the words
  WordIndex& operator=(const WordIndex&) = delete;
  ~WordIndex() = default;

  static constexpr Index none = -1;
  /// The number of a word, or none.
  Index find(std::string_view word) const;
  /// Whether a word stands for itself: find(word(i)) = i.
  bool is_first(Index i) const { return find(word(i)) == i; }

  const std::string& word(Index i) const { return words_[static_cast<std::size_t>(i)]; }
  Size size() const { return static_cast<Size>(words_.size()); }

 private:
  Case case_;
  std::vector<std::string> words_;
  std::vector<std::string> folded_;  // only where the case is ignored
  std::unordered_map<std::string_view, Index> numbers_;
};

}  // namespace widehead
