#include "items_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "text.h"

namespace widehead {
namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// A column's name without case and underscores, "User_ID" as "userid".
std::string plain_name(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c != '_') result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return result;
}

template <std::size_t n>
bool is_one_of(const std::array<std::string_view, n>& names, std::string_view text) {
  return std::find(names.begin(), names.end(), plain_name(text)) != names.end();
}

constexpr std::array<std::string_view, 4> user_names = {"user", "userid", "uid", "username"};
constexpr std::array<std::string_view, 8> item_names = {"item",  "itemid",  "iid",     "itemname",
                                                        "movie", "movieid", "product", "productid"};

}  // namespace

void ItemsParser::parse(const OnUser& on_user, const OnItem& on_item) {
  while (const auto line = lines_.next()) {
    if (trim(*line).empty()) continue;
    if (layout_ == ItemsLayout::detect) {
      layout_ = options_.layout;
      if (layout_ == ItemsLayout::detect) {
        layout_ = line->find_first_of(",;\t") != std::string_view::npos ? ItemsLayout::csv : ItemsLayout::lists;
      }
      if (!is_csv() && options_.min_rating > 0) {
        lines_.fail(fmt::format("lists have no ratings, but min_rating is {}", options_.min_rating));
      }
      if (is_csv()) {
        begin_csv(*line);
        if (is_header(*line)) continue;
      }
    }
    if (is_csv()) {
      parse_csv(*line, on_user, on_item);
    } else {
      auto rest = *line;
      on_user(take_field(rest));
      for (auto item = take_field(rest); !item.empty(); item = take_field(rest)) on_item(item, 1.0F);
    }
  }
}

/// The first line decides on the separator and on whether there are ratings.
void ItemsParser::begin_csv(std::string_view line) {
  const auto first = line.find_first_of(",;\t");
  if (first == std::string_view::npos) {
    lines_.fail(fmt::format("found {}, expected user,item or user,item,rating", quoted(line)));
  }
  separator_ = line[first];
  has_ratings_ = std::count(line.begin(), line.end(), separator_) >= 2;
  if (!has_ratings_ && options_.min_rating > 0) {
    lines_.fail(fmt::format("there are no ratings, but min_rating is {}", options_.min_rating));
  }
}

bool ItemsParser::is_header(std::string_view line) const {
  if (options_.header != ItemsHeader::detect) return options_.header == ItemsHeader::present;
  const auto user = take_column(line), item = take_column(line);
  if (has_ratings_ && !parse_real(take_column(line))) return true;
  return is_one_of(user_names, user) && is_one_of(item_names, item);
}

void ItemsParser::parse_csv(std::string_view line, const OnUser& on_user, const OnItem& on_item) {
  auto rest = line;
  const auto user = take_name(rest, "user"), item = take_name(rest, "item");
  float rating = 1;
  if (has_ratings_) {
    const auto field = take_column(rest);
    const auto value = parse_real(field);
    if (!value || !(*value >= 0)) {
      lines_.fail(fmt::format("the rating is {}, expected a finite number, 0 or more", quoted(field)));
    }
    rating = *value;
  }
  if (rating < options_.min_rating) {
    ++rated_low_;
    return;
  }
  on_user(user);
  on_item(item, rating);
}

/// Takes a field and the separator behind it off the front of `rest`.
std::string_view ItemsParser::take_column(std::string_view& rest) const {
  const auto end = std::min(rest.find(separator_), rest.size());
  const auto field = trim(rest.substr(0, end));
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return field;
}

std::string_view ItemsParser::take_name(std::string_view& rest, const char* what) const {
  const auto name = take_column(rest);
  if (name.empty()) lines_.fail(fmt::format("the {} is missing, expected user,item or user,item,rating", what));
  if (name.front() == '"') {
    lines_.fail(
        fmt::format("the {} {} begins with a quotation mark: quoted fields are not supported", what, quoted(name)));
  }
  return name;
}

}  // namespace widehead
