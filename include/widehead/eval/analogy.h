#pragma once
/// Word analogies: "a is to b as c is to …?", answered by vector arithmetic.

#include <string>
#include <vector>

#include "widehead/backend.h"
#include "widehead/eval/word_index.h"
#include "widehead/matrix.h"

namespace widehead {

/// a is to b as c is to d.
struct Analogy {
  std::string a, b, c, d;
};

struct AnalogySection {
  std::string name;
  std::vector<Analogy> questions;
};

struct AnalogyQuestions {
  std::string path;
  std::vector<AnalogySection> sections;
};

/// Reads the layout of word2vec's questions-words.txt: ": SECTION", then lines "A B C D". Empty lines are
/// passed over. @throws FileError naming the line; std::system_error
AnalogyQuestions read_analogies(const std::string& path);

struct AnalogyOptions {
  /// Only this many words, the most frequent, are asked for and answered with: what rare words would add
  /// is mostly noise, and published figures are so restricted.
  Size most_frequent = 30000;
};

struct AnalogyScore {
  std::string name;
  Size correct = 0;
  Size found = 0;    ///< questions whose four words are known, frequent enough and not zero
  Size missing = 0;  ///< the others, which are not held against the vectors

  /// correct/found; NaN where none was found.
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(found); }
};

struct AnalogyResult {
  std::string path;
  std::vector<AnalogyScore> sections;
  AnalogyScore total;  ///< named "total"
};

/// 3CosAdd (Mikolov, Yih, Zweig 2013): the answer is
///   argmax over x ∉ {a, b, c} of x̂ · (b̂ − â + ĉ),   ^ for scaled to length 1,
/// the more frequent word where two are equal. A question whose d is one of a, b, c cannot be answered and
/// counts as wrong. Where the index ignores case, a word stands for all its spellings.
/// @param vectors  d x n, column i belonging to word i of the index; most frequent first
AnalogyResult evaluate_analogies(const AnalogyQuestions& questions, const WordIndex& index, ConstView<float> vectors,
                                 Backend<float>& backend, const AnalogyOptions& options = {});

}  // namespace widehead
