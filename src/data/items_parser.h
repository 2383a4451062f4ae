#pragma once
/// The two layouts of an items file, read line by line into (user, item, rating).

#include <functional>
#include <string_view>

#include "widehead/data/items_file.h"

namespace widehead {

class ItemsParser {
 public:
  /// Called with each user before that user's items.
  using OnUser = std::function<void(std::string_view)>;
  using OnItem = std::function<void(std::string_view, float)>;

  ItemsParser(LineReader& lines, const ItemsOptions& options) : lines_(lines), options_(options) {}

  /// Reads the file to its end. @throws FileError
  void parse(const OnUser& on_user, const OnItem& on_item);

  bool is_csv() const { return layout_ == ItemsLayout::csv; }  ///< known after parse
  std::int64_t rated_low() const { return rated_low_; }        ///< pairs below min_rating

 private:
  void begin_csv(std::string_view line);
  bool is_header(std::string_view line) const;
  void parse_csv(std::string_view line, const OnUser& on_user, const OnItem& on_item);
  std::string_view take_column(std::string_view& rest) const;
  std::string_view take_name(std::string_view& rest, const char* what) const;

  LineReader& lines_;
  const ItemsOptions& options_;
  ItemsLayout layout_ = ItemsLayout::detect;
  char separator_ = ',';
  bool has_ratings_ = false;
  std::int64_t rated_low_ = 0;
};

}  // namespace widehead
