#pragma once
/// Word vectors in the two formats of word2vec, which most tools read (gensim's load_word2vec_format among
/// them). Both begin with a line "WORDS DIM"; then, for each word,
///   text:    the word and DIM numbers, separated by spaces, and a newline;
///   binary:  the word, a space, DIM little-endian float32, and a newline (gensim leaves it out; either is read).
/// Reading and writing are done in blocks: the matrix may be larger than the memory.

#include <fstream>
#include <limits>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "widehead/data/output_file.h"
#include "widehead/matrix.h"

namespace widehead {

enum class WordVectorFormat { text, binary };

/// A word as it stands in such a file: white space, which would end it there, becomes '_'.
std::string written_word(const std::string& word);

/// Numbers are written with as many digits as it takes to read the same float. The file appears when it is
/// finished. To refuse repeated words, all words are remembered (some 70 bytes each).
class WordVectorWriter {
 public:
  WordVectorWriter(const std::string& path, WordVectorFormat format, Size words, Size dim);

  /// The next words and their vectors.
  /// @param vectors  d x words.size()
  /// @throws std::invalid_argument for a word that is empty or, as written, was there before, and for values
  ///   that are not finite; the writer can then only be thrown away
  void write(std::span<const std::string> words, ConstView<float> vectors);
  /// @throws std::invalid_argument if not all words were written; std::system_error
  void finish();

 private:
  OutputFile file_;
  WordVectorFormat format_;
  Size words_, dim_;
  Size written_ = 0;
  std::unordered_set<std::string> seen_;
};

/// @throws FileError from every function, naming the line (text) or the word (binary)
class WordVectorReader {
 public:
  /// Reads the header, and checks it against the size of the file: whoever allocates words() x dim() floats
  /// takes at most a few times the file.
  WordVectorReader(std::string path, WordVectorFormat format);

  Size words() const { return words_; }
  Size dim() const { return dim_; }

  /// Fills the columns of `vectors` (d x count) and appends their words, until it is full or all words are
  /// read. Returns the number of words read: 0 after the last.
  Size read(std::vector<std::string>& words, MatrixView<float> vectors);

 private:
  void read_header();
  std::string read_text(float* out);
  std::string read_binary(float* out);
  void expect_end();
  bool next_line();
  [[noreturn]] void fail(const std::string& what) const;

  std::string path_;
  WordVectorFormat format_;
  std::ifstream file_;
  std::string line_;
  Size line_number_ = 1;
  bool in_header_ = true;
  Size words_ = 0, dim_ = 0;
  Size read_ = 0;
};

struct WordVectors {
  std::vector<std::string> words;
  Matrix<float> vectors;  // d x n
};

/// The first `limit` words of a file, which are the most frequent ones.
WordVectors read_word_vectors(const std::string& path, WordVectorFormat format,
                              Size limit = std::numeric_limits<Size>::max());

}  // namespace widehead
