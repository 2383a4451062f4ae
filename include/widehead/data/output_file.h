#pragma once
/// A file that appears whole or not at all: bytes go to a temporary in the same folder, which commit()
/// brings to the disk and renames. Without commit(), also when an exception passes, nothing is left.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace widehead {

class OutputFile {
 public:
  /// @throws std::system_error naming the path, here and in all that writes
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);
  template <class T>
  void write_values(std::span<const T> values) {
    write({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }
  void commit();

  /// Access to bytes that have been written, as often as wanted before commit().
  void read_at(std::int64_t offset, std::span<char> bytes);
  void write_at(std::int64_t offset, std::span<const char> bytes);

  const std::string& path() const { return path_; }

 private:
  void flush();
  void put(std::int64_t offset, std::span<const char> bytes);
  [[noreturn]] void fail(const char* what) const;

  std::string path_, temporary_;
  int file_ = -1;
  std::vector<char> buffer_;
  std::int64_t written_ = 0;  // bytes in the file, without the buffer
};

}  // namespace widehead
