#pragma once
/// A made-up language with known similarities, for demonstrations and tests without any data.
///
/// Content words belong to a theme and, within it, to a kind ("birdc17" is word 17 of kind c of the theme bird). A
/// sentence stays with one theme; each kind has kinds that may follow it; function words ("of", "the", …) stand
/// between. Within a kind, words follow Zipf's law. So words of one kind occur in the same contexts, words of one theme
/// in similar ones, and what a model should find out is known:
///   similarity 2 within a kind, 1 within a theme, 0 otherwise.

#include <cstdint>
#include <string>

#include "widehead/matrix.h"

namespace widehead {

struct SyntheticTextOptions {
  Size words = 120000;  ///< different content words, about
  Size kinds = 6;       ///< in a theme
  std::int64_t tokens = 4'000'000;
  std::int64_t pairs = 3000;  ///< of words, for the file of similarities; a third of each degree
  std::uint64_t seed = 0;

  void validate() const;  ///< @throws std::invalid_argument
};

/// Writes the text, a sentence a line, words separated by blanks. @throws std::system_error
void write_synthetic_text(const std::string& path, const SyntheticTextOptions& options);
/// Writes pairs of the language's more frequent words as "WORD WORD SIMILARITY", as word_similarity.h reads them.
void write_synthetic_pairs(const std::string& path, const SyntheticTextOptions& options);

}  // namespace widehead
