#include "text_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "widehead/errors.h"

namespace widehead {

TextLines::TextLines(std::string path) : path_(std::move(path)) {
  errno = 0;
  file_.open(path_, std::ios::binary);
  if (!file_) throw std::system_error(errno, std::generic_category(), path_ + ": cannot be opened");
}

bool TextLines::next() {
  errno = 0;
  if (!std::getline(file_, line_)) {
    if (file_.bad()) throw std::system_error(errno, std::generic_category(), path_ + ": cannot be read");
    return false;
  }
  if (!line_.empty() && line_.back() == '\r') line_.pop_back();
  ++number_;
  return true;
}

std::vector<std::string_view> TextLines::fields() const {
  constexpr std::string_view white = " \t\v\f\r";
  const std::string_view line = line_;
  std::vector<std::string_view> list;
  for (auto first = line.find_first_not_of(white); first != std::string_view::npos;) {
    const auto end = std::min(line.find_first_of(white, first), line.size());
    list.push_back(line.substr(first, end - first));
    first = line.find_first_not_of(white, end);
  }
  return list;
}

void TextLines::fail(std::string_view what) const { throw FileError(fmt::format("{}:{}: {}", path_, number_, what)); }

}  // namespace widehead
