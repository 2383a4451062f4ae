#include "widehead/data/item_index.h"

#include <fmt/format.h>

#include <limits>

#include "text.h"
#include "widehead/data/output_file.h"

namespace widehead {

ItemIndex ItemIndex::load(const std::string& path) {
  LineReader lines(path);
  return load(lines);
}

ItemIndex ItemIndex::load(LineReader& lines) {
  StringIndex names;
  while (const auto line = lines.next()) {
    if (line->empty()) lines.fail("the line is empty, expected the name of an item");
    if (names.size() == std::numeric_limits<Index>::max()) lines.fail("there are more than 2³¹ − 1 items");
    const auto [index, is_new] = names.insert(*line);
    if (!is_new) lines.fail(fmt::format("the item {} is there twice, first on line {}", quoted(*line), index + 1));
  }
  if (names.size() == 0) lines.fail("the file is empty, expected names of items, one a line");
  return ItemIndex(std::move(names));
}

void ItemIndex::save(const std::string& path) const {
  OutputFile file(path);
  for (Index i = 0; i < static_cast<Index>(size()); ++i) {
    file.write(name(i));
    file.write("\n");
  }
  file.commit();
}

}  // namespace widehead
