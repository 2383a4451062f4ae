#pragma once
/// How well the cosines between word vectors follow people's judgement of how similar the words are:
/// SimLex-999, WordSim-353, MEN, Rare Words.

#include <span>
#include <string>
#include <vector>

#include "widehead/eval/word_index.h"
#include "widehead/matrix.h"

namespace widehead {

struct WordPair {
  std::string first, second;
  double score;  ///< people's; on whatever scale, as only the order counts
};

struct WordPairs {
  std::string path;
  std::vector<WordPair> pairs;
};

/// Reads lines "WORD WORD SCORE", separated by white space; more fields may follow. Empty lines and lines
/// that begin with '#' are passed over, and so is a header: the first line, if its third field is no number.
/// @throws FileError naming the line; std::system_error
WordPairs read_word_pairs(const std::string& path);

/// ρ = the correlation of the ranks of x and y, equal values sharing the mean of their ranks. NaN where
/// there are fewer than two values or where all of x or all of y are equal. O(n log n).
double spearman(std::span<const double> x, std::span<const double> y);

struct WordSimilarity {
  std::string path;
  double spearman = 0;  ///< over the pairs that were found
  Size found = 0;
  Size missing = 0;  ///< pairs with a word that is unknown or whose vector is zero
};

/// Spearman's ρ between the scores and the cosines of the vectors.
/// @param vectors  d x n, column i belonging to word i of the index
WordSimilarity evaluate_similarity(const WordPairs& pairs, const WordIndex& index, ConstView<float> vectors);

}  // namespace widehead
