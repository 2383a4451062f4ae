#pragma once
/// The words a model knows, by decreasing count; words of equal count in the order of their bytes.
/// Word 0 is the unknown one, which stands for all others: its count is theirs.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "widehead/data/line_reader.h"
#include "widehead/data/string_index.h"

namespace widehead {

struct VocabularyOptions {
  std::int64_t min_count = 5;     ///< words met less often are unknown: too few examples to learn from
  Size max_size = 0;              ///< the most frequent ones only, with the unknown word; 0: all
  bool lowercase = true;          ///< "The" is "the" (done by the tokenizer, before words are counted)
  std::string unknown = "<unk>";  ///< how the unknown word is spelled; in a text it stands for itself
  bool letters_only = false;      ///< words with anything but letters in them are unknown (years, part numbers)

  void validate() const;  ///< @throws std::invalid_argument
};

class Vocabulary {
 public:
  /// From different words and their counts.
  /// @throws std::invalid_argument if no word is left, with the option that is to blame
  Vocabulary(const StringIndex& words, const std::vector<std::int64_t>& counts, const VocabularyOptions& options);

  /// A line for each word, "word<TAB>count", the unknown word first; no header.
  /// @throws FileError naming the line, std::system_error
  static Vocabulary load(const std::string& path);
  static Vocabulary load(LineReader& lines);
  void save(const std::string& path) const;  ///< @throws std::system_error

  Size size() const { return words_.size(); }  ///< D, with the unknown word
  std::optional<Index> find(std::string_view word) const { return words_.find(word); }
  std::string_view word(Index i) const { return words_[i]; }
  std::int64_t count(Index i) const { return counts_[static_cast<std::size_t>(i)]; }
  const std::vector<std::int64_t>& counts() const { return counts_; }

  static constexpr Index unknown = 0;

 private:
  Vocabulary() = default;

  StringIndex words_;
  std::vector<std::int64_t> counts_;
};

}  // namespace widehead
