#pragma once
/// The lines of a text file: plain, gzip, xz or zstd, told apart by their first bytes, not by name;
/// several compressed members or frames in one file are one text. In fixed memory, whatever the size
/// of the file; only a line longer than the buffer makes it grow, up to a limit.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "widehead/matrix.h"

namespace widehead {

class ByteReader;

class LineReader {
 public:
  static constexpr std::size_t default_max_line = std::size_t{1} << 26;  ///< 64 MiB

  /// @param max_line  bytes in the longest line that is accepted
  /// @throws std::system_error naming the path
  explicit LineReader(const std::string& path, std::size_t max_line = default_max_line);
  /// The same over bytes in memory, which must outlive the reader; `name` stands for the path in errors.
  LineReader(std::string name, std::span<const std::byte> bytes, std::size_t max_line = default_max_line);
  /// The same as the first, unpacked by a thread of its own while lines are worked on.
  static LineReader ahead(const std::string& path, std::size_t max_line = default_max_line);
  LineReader(LineReader&& other) noexcept;
  LineReader& operator=(LineReader&& other) noexcept;
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;
  ~LineReader();

  /// The next line without its end ("\n" or "\r\n"; the last line may lack it), valid until the next
  /// call; nothing at the end of the file. A byte order mark (UTF-8) before the first line is skipped.
  /// @throws FileError naming path and line: damaged or truncated compression, a NUL byte, a line that is too long
  std::optional<std::string_view> next();

  const std::string& path() const { return path_; }
  Size line() const { return line_; }                   ///< number of the line returned last, from 1
  std::int64_t bytes_read() const;                      ///< of the file as it is, compressed: for progress
  std::int64_t bytes_total() const;                     ///< of the file as it is; 0 if unknown
  [[noreturn]] void fail(std::string_view what) const;  ///< @throws FileError "PATH:LINE: what"

 private:
  LineReader(std::string name, std::unique_ptr<ByteReader> stream, std::size_t max_line);
  void fill();

  std::string path_;
  std::unique_ptr<ByteReader> stream_;
  std::size_t max_line_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of the current line in the buffer
  std::size_t end_ = 0;    // of what is in the buffer
  Size line_ = 0;
  bool ended_ = false;
};

}  // namespace widehead
