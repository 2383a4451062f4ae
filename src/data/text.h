#pragma once
/// Small things every reader of text does: numbers, fields, and texts of strangers in error messages.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace widehead {

/// The whole of `text` as a decimal integer that fits.
template <std::integral T>
std::optional<T> parse_integer(std::string_view text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The whole of `text` as a number that is finite also as a float.
inline std::optional<float> parse_real(std::string_view text) {
  double value = 0;  // so that what is too small for a float becomes 0, not an error
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  const auto rounded = static_cast<float>(value);
  if (!std::isfinite(rounded)) return std::nullopt;
  return rounded;
}

inline bool is_blank(char c) { return c == ' ' || c == '\t'; }

/// Takes the next run of non-blanks off the front of `rest`; empty when there is none.
inline std::string_view take_field(std::string_view& rest) {
  const auto first = std::find_if_not(rest.begin(), rest.end(), is_blank);
  const auto last = std::find_if(first, rest.end(), is_blank);
  const std::string_view field(first, last);
  rest = std::string_view(last, rest.end());
  return field;
}

/// All runs of non-blanks.
inline std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (auto field = take_field(line); !field.empty(); field = take_field(line)) fields.push_back(field);
  return fields;
}

/// A text of unknown origin for an error message: in quotes, cut after 40 bytes, and what is not
/// printable ASCII as \xNN.
std::string quoted(std::string_view text);

}  // namespace widehead
