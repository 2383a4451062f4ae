#pragma once
/// A corpus as ids on disk, mapped into memory and read as it is needed: it may be larger than RAM.
/// Made by build_corpus and encode_corpus (corpus.h): a header of 40 bytes (src/data/token_header.h), then 4 bytes an
/// id.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "widehead/matrix.h"

namespace widehead {

class TokenFile {
 public:
  /// Follows the last word of every line, so that contexts do not cross lines.
  static constexpr Index boundary = -1;

  /// @throws FileError if this is no token file, or not the whole of one; std::system_error
  explicit TokenFile(const std::string& path);
  /// The same over bytes in memory, aligned to 4, which must outlive it; `name` stands for the path in errors.
  TokenFile(std::string name, std::span<const std::byte> bytes);

  /// Words (0 … vocabulary_size() − 1, 0 is the unknown one) and boundaries; no line is empty.
  std::span<const Index> tokens() const { return tokens_; }
  Size words() const { return words_; }                      ///< tokens that are no boundaries
  Size vocabulary_size() const { return vocabulary_size_; }  ///< D
  const std::string& path() const { return path_; }

  /// Opening looks at the header alone. This reads everything once.
  /// @throws FileError naming the first id out of range, or if words() is not their number
  void verify() const;

 private:
  void parse(std::span<const std::byte> file);

  std::string path_;
  std::shared_ptr<const std::byte> mapping_;  // copies share it; nothing over memory of others
  std::span<const Index> tokens_;
  Size words_ = 0;
  Size vocabulary_size_ = 0;
};

}  // namespace widehead
