#pragma once
/// A file that appears under its name whole or not at all.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace widehead {

/// What is written goes to a temporary in the same folder; commit() brings it safely to the disk and renames
/// it, replacing what may have been there. A writer destroyed before that leaves nothing behind.
/// All failures are std::system_error with the path in the text.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void write(std::string_view bytes);
  template <class T>
  void write_values(std::span<const T> values) {
    write({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }
  /// Once, as the last thing.
  void commit();

  const std::string& path() const { return path_; }

 private:
  void flush();
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  std::string temporary_;
  int file_ = -1;
  std::vector<char> buffer_;
};

}  // namespace widehead
