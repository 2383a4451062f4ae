#pragma once
/// Small text files, line by line, with errors that name the line.

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace widehead {

class TextLines {
 public:
  /// @throws std::system_error naming the path
  explicit TextLines(std::string path);

  /// Goes to the next line; false after the last one. A carriage return at its end is not part of it.
  bool next();
  const std::string& line() const { return line_; }
  /// What stands between white space; the views are good until the next line.
  std::vector<std::string_view> fields() const;
  /// @throws FileError "PATH:LINE: what"
  [[noreturn]] void fail(std::string_view what) const;

 private:
  std::string path_;
  std::ifstream file_;
  std::string line_;
  long number_ = 0;
};

}  // namespace widehead
