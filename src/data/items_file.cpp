#include "widehead/data/items_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "items_parser.h"
#include "text.h"
#include "widehead/errors.h"

namespace widehead {
namespace {

struct Pair {
  Index user;
  Index item;
  float rating;
};

/// @param repeated  becomes the number of pairs that are there more than once
SparseRows to_rows(std::vector<Pair> pairs, Size users, std::int64_t& repeated) {
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    return std::tie(a.user, a.item, b.rating) < std::tie(b.user, b.item, a.rating);  // the largest rating first
  });
  const auto last = std::unique(pairs.begin(), pairs.end(),
                                [](const Pair& a, const Pair& b) { return a.user == b.user && a.item == b.item; });
  repeated = pairs.end() - last;
  SparseRows rows;
  for (auto pair = pairs.begin(); pair != last; ++pair) {
    while (rows.rows() < pair->user) rows.end_row();
    rows.indices.push_back(pair->item);
    rows.values.push_back(pair->rating);
  }
  while (rows.rows() < users) rows.end_row();
  return rows;
}

/// The integer that `name` spells in the one way it is spelled here: no sign, no leading zero.
std::optional<Index> canonical_integer(std::string_view name) {
  const auto value = parse_integer<Index>(name);
  if (!value || *value < 0 || *value == std::numeric_limits<Index>::max()) return std::nullopt;
  if (name.front() == '-' || (name.front() == '0' && name.size() > 1)) return std::nullopt;
  return value;
}

/// If all names are integers, makes each item's index the integer it is called by.
void number_by_name(std::vector<Pair>& pairs, StringIndex& names, const std::string& path) {
  std::vector<Index> ids;
  for (Index i = 0; i < static_cast<Index>(names.size()); ++i) {
    const auto id = canonical_integer(names[i]);
    if (!id) return;
    ids.push_back(*id);
  }
  const Size count = Size{1} + *std::max_element(ids.begin(), ids.end());
  // Every index up to the largest costs memory here and in the model: a stray large one is an error.
  constexpr Size harmless = Size{1} << 20, most_per_item = 64;
  if (count > std::max(harmless, most_per_item * names.size())) {
    throw FileError(
        fmt::format("{}: items go up to {}, but only {} different ones occur: set numeric to false to "
                    "number them as they appear",
                    path, count - 1, names.size()));
  }
  names = {};
  for (Size i = 0; i < count; ++i) names.insert(fmt::format_int(i).c_str());
  for (auto& pair : pairs) pair.item = ids[static_cast<std::size_t>(pair.item)];
}

}  // namespace

void ItemsOptions::validate() const {
  if (!(min_rating >= 0) || !std::isfinite(min_rating)) {
    throw std::invalid_argument(
        fmt::format("items: min_rating = {}, but it must be finite and not negative", min_rating));
  }
}

Interactions read_items(const std::string& path, const ItemsOptions& options) {
  LineReader lines(path);
  return read_items(lines, options);
}

Interactions read_items(LineReader& lines, const ItemsOptions& options) {
  options.validate();
  Interactions result;
  StringIndex names;
  std::vector<Pair> pairs;
  Index user = 0;
  ItemsParser parser(lines, options);
  parser.parse([&](std::string_view name) { user = result.users.insert(name).first; },
               [&](std::string_view name, float rating) {
                 pairs.push_back({user, names.insert(name).first, rating});
               });
  result.rated_low = parser.rated_low();
  if (pairs.empty()) {
    lines.fail(result.rated_low > 0 ? fmt::format("no pair is rated {} or higher: lower min_rating", options.min_rating)
                                    : "the file has no pairs of a user and an item");
  }
  if (options.numeric && !parser.is_csv()) number_by_name(pairs, names, lines.path());
  result.items = ItemIndex(std::move(names));
  result.ratings = to_rows(std::move(pairs), result.users.size(), result.repeated);
  return result;
}

HeldOutInteractions read_held_out_items(const std::string& path, const Interactions& training,
                                        const ItemsOptions& options) {
  LineReader lines(path);
  return read_held_out_items(lines, training, options);
}

HeldOutInteractions read_held_out_items(LineReader& lines, const Interactions& training, const ItemsOptions& options) {
  options.validate();
  HeldOutInteractions result;
  std::vector<Pair> pairs;
  std::optional<Index> user;
  ItemsParser parser(lines, options);
  parser.parse([&](std::string_view name) { user = training.users.find(name); },
               [&](std::string_view name, float rating) {
                 const auto item = training.items.find(name);
                 if (!user) {
                   ++result.unknown_users;
                 } else if (!item) {
                   ++result.unknown_items;
                 } else {
                   pairs.push_back({*user, *item, rating});
                 }
               });
  result.rated_low = parser.rated_low();
  if (pairs.empty()) {
    lines.fail(
        fmt::format("no pair of a user and an item that training has, and rated {} or higher", options.min_rating));
  }
  result.ratings = to_rows(std::move(pairs), training.users.size(), result.repeated);
  return result;
}

}  // namespace widehead
