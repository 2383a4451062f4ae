#pragma once
/// Who has had to do with what, in either of two layouts:
///
///   lists   user item item …        separated by white space; a user may have no items
///   csv     user,item[,rating[,…]]  separated by commas, semicolons or tabs; further columns are ignored
///
/// Users and items are any texts. Blank lines are skipped. A pair that occurs again counts once, with its
/// largest rating.

#include <cstdint>
#include <string>

#include "widehead/data/item_index.h"
#include "widehead/data/line_reader.h"
#include "widehead/data/sparse_dataset.h"

namespace widehead {

enum class ItemsLayout {
  detect,  ///< csv if the first line holds a comma, a semicolon or a tab
  lists,
  csv,
};

enum class ItemsHeader {
  detect,  ///< there is one if the third field of the first line is no number, or if the first two are
           ///< called as users and items often are (user, userId, item_id, movieId, …)
  absent,
  present,
};

struct ItemsOptions {
  ItemsLayout layout = ItemsLayout::detect;
  ItemsHeader header = ItemsHeader::detect;  ///< of a csv file
  float min_rating = 0;                      ///< pairs rated lower are left out: a bad rating is no interest
  bool numeric = true;  ///< if all items of a lists file are integers, these are the indices themselves, so that
                        ///< they mean the same in every file; else items are numbered as they appear

  void validate() const;  ///< @throws std::invalid_argument
};

/// What a model is trained on.
struct Interactions {
  StringIndex users;   ///< in order of appearance
  ItemIndex items;     ///< D of them
  SparseRows ratings;  ///< users x D; 1 where the file has no ratings

  std::int64_t repeated = 0;   ///< pairs that had occurred before
  std::int64_t rated_low = 0;  ///< pairs left out for min_rating
};

/// What it is tested on: pairs of its users and items.
struct HeldOutInteractions {
  SparseRows ratings;  ///< users x D, as in training

  std::int64_t repeated = 0;
  std::int64_t rated_low = 0;
  std::int64_t unknown_users = 0;  ///< pairs left out because training has no such user
  std::int64_t unknown_items = 0;  ///< pairs left out because training has no such item
};

/// @throws FileError naming path and line, also if no pair is left; std::system_error
Interactions read_items(const std::string& path, const ItemsOptions& options = {});
Interactions read_items(LineReader& lines, const ItemsOptions& options = {});
HeldOutInteractions read_held_out_items(const std::string& path, const Interactions& training,
                                        const ItemsOptions& options = {});
HeldOutInteractions read_held_out_items(LineReader& lines, const Interactions& training,
                                        const ItemsOptions& options = {});

}  // namespace widehead
