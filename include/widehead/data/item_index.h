#pragma once
/// The items a recommender knows: name ↔ Index. On disk one name a line, item 0 first. A name may hold
/// anything but line ends and NUL.

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "widehead/data/line_reader.h"
#include "widehead/data/string_index.h"

namespace widehead {

class ItemIndex {
 public:
  ItemIndex() = default;
  explicit ItemIndex(StringIndex names) : names_(std::move(names)) {}

  Size size() const { return names_.size(); }  ///< D
  std::optional<Index> find(std::string_view name) const { return names_.find(name); }
  std::string_view name(Index i) const { return names_[i]; }

  /// @throws FileError naming the line: a name twice, an empty one, no names; std::system_error
  static ItemIndex load(const std::string& path);
  static ItemIndex load(LineReader& lines);
  void save(const std::string& path) const;  ///< @throws std::system_error

 private:
  StringIndex names_;
};

}  // namespace widehead
