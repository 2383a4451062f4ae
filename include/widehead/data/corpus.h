#pragma once
/// From text files to a token file: one pass over the text, in which only the dictionary of different
/// words is held in memory. The text may be larger than RAM.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "widehead/data/tokenizer.h"
#include "widehead/data/vocabulary.h"

namespace widehead {

struct CorpusProgress {
  std::int64_t bytes_read = 0;   ///< of the files as they are, compressed
  std::int64_t bytes_total = 0;  ///< of all files
  std::int64_t lines = 0;        ///< with words in them
  std::int64_t words = 0;
};
/// Called now and then, and at the end. What it throws ends the work and leaves no file.
using CorpusCallback = std::function<void(const CorpusProgress&)>;

struct BuiltCorpus {
  Vocabulary vocabulary;
  std::int64_t words = 0;  ///< in the text, unknown ones too
  std::int64_t lines = 0;  ///< with words in them
};

struct EncodedCorpus {
  std::int64_t words = 0;    ///< in the text, unknown ones too
  std::int64_t unknown = 0;  ///< those that are not in the vocabulary
  std::int64_t lines = 0;    ///< with words in them
};

/// Counts words, makes the vocabulary and writes `token_path`, all texts one after the other. A line is
/// a unit: TokenFile::boundary follows its last word; lines without words leave no trace.
/// @throws FileError naming path and line (damaged, not UTF-8), or if there is no word at all;
///         std::invalid_argument if the options leave no word; std::system_error (no such file, disk full)
BuiltCorpus build_corpus(const std::vector<std::string>& text_paths, Tokenization tokenization,
                         const VocabularyOptions& options, const std::string& token_path,
                         const CorpusCallback& progress = {});

/// The same with a vocabulary that exists: for validation and test.
/// @param lowercase  as the vocabulary was made
EncodedCorpus encode_corpus(const std::vector<std::string>& text_paths, Tokenization tokenization, bool lowercase,
                            const Vocabulary& vocabulary, const std::string& token_path,
                            const CorpusCallback& progress = {});

}  // namespace widehead
