#pragma once
/// How a line of text becomes words.
///
///   whitespace  tokens as they are, between ASCII white space: for text that is tokenised already
///   words       runs of letters and digits; everything else separates, apostrophes and hyphens too
///               ("don't" is "don" and "t")
///
/// Letters are those of ASCII and every character beyond it, except punctuation and symbols of the
/// blocks Latin-1 (U+0080 – U+00BF without ª, µ, º; ×, ÷) and General Punctuation (U+2000 – U+206F without the
/// joiners U+200C and U+200D). Lower-casing knows ASCII and the two-byte letters of Latin-1, Latin Extended-A,
/// Greek and Cyrillic (U+00C0 – U+017F, U+0386 – U+03AB, U+0400 – U+042F); others stay as they are.

#include <array>
#include <string>
#include <string_view>

#include "widehead/matrix.h"

namespace widehead {

enum class Tokenization { whitespace, words };

/// "whitespace", "words". @throws std::invalid_argument listing the names
Tokenization tokenization_from_name(std::string_view name);
std::string_view name_of(Tokenization tokenization);

class Tokenizer {
 public:
  explicit Tokenizer(Tokenization tokenization = Tokenization::words, bool lowercase = true)
      : tokenization_(tokenization), lowercase_(lowercase) {}

  Tokenization tokenization() const { return tokenization_; }
  bool lowercase() const { return lowercase_; }

  /// Calls take(std::string_view) with every word in turn; a word is valid until the next call of split.
  /// @throws std::invalid_argument naming the first byte that is not UTF-8; then nothing was taken
  template <class Take>
  void split(std::string_view line, Take&& take) {
    line = normalize(line);
    const auto& separates = separators(tokenization_);
    const char* p = line.data();
    const char* const end = p + line.size();
    while (true) {
      while (p < end && separates[static_cast<unsigned char>(*p)]) ++p;
      if (p == end) return;
      const char* const first = p;
      while (p < end && !separates[static_cast<unsigned char>(*p)]) ++p;
      take(std::string_view(first, static_cast<std::size_t>(p - first)));
    }
  }

 private:
  static const std::array<bool, 256>& separators(Tokenization tokenization);
  /// The line in lower case if so wanted, with blanks for separators beyond ASCII; checked to be UTF-8.
  std::string_view normalize(std::string_view line);

  Tokenization tokenization_;
  bool lowercase_;
  std::string scratch_;
};

}  // namespace widehead
