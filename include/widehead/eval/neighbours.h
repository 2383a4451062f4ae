#pragma once
/// The nearest words: of a word, or of an arithmetic combination of words.

#include <span>
#include <string_view>
#include <vector>

#include "widehead/backend.h"
#include "widehead/eval/word_index.h"
#include "widehead/matrix.h"

namespace widehead {

/// Σ weight · x̂, x̂ being the word's vector scaled to length 1.
struct WordCombination {
  struct Term {
    Index word;
    double weight = 1;
  };
  std::vector<Term> terms;
};

/// From words joined by "+" and "-" that stand between spaces: "king - man + woman", or "berlin" alone.
/// @throws std::invalid_argument naming the word that is not known, or what was expected instead
WordCombination parse_combination(std::string_view text, const WordIndex& index);

struct Neighbour {
  Index word;
  float cosine;
};

/// The k words of largest cosine with each combination, nearest first, equal ones in the order of the
/// words; without the words of the combination itself and without those whose vector is zero. Fewer than k
/// where there are no more. A combination that is zero has no neighbours (std::invalid_argument).
/// @param vectors  d x n, one word per column
std::vector<std::vector<Neighbour>> nearest_words(std::span<const WordCombination> combinations, Size k,
                                                  ConstView<float> vectors, Backend<float>& backend);

}  // namespace widehead
