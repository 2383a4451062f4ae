#include "text.h"

#include <fmt/format.h>

namespace widehead {

std::string quoted(std::string_view text) {
  constexpr std::size_t longest = 40;
  std::string result = "\"";
  for (const char c : text.substr(0, longest)) {
    if (c >= ' ' && c <= '~') {
      result += c;
    } else {
      result += fmt::format("\\x{:02X}", static_cast<unsigned char>(c));
    }
  }
  result += text.size() > longest ? "…\"" : "\"";
  return result;
}

}  // namespace widehead
