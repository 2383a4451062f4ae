#include "widehead/data/sparse_dataset.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <stdexcept>

namespace widehead {

void SparseRows::validate(std::string_view name, Size row_count, Size columns) const {
  const auto refuse = [&](const std::string& what) { throw std::invalid_argument(fmt::format("{}: {}", name, what)); };
  if (offsets.empty() || offsets.front() != 0) refuse("offsets must begin with 0");
  if (rows() != row_count) refuse(fmt::format("{} rows, but there must be {}", rows(), row_count));
  if (offsets.back() != nonzeros() || indices.size() != values.size()) {
    refuse(fmt::format("offsets end at {}, but there are {} indices and {} values", offsets.back(), indices.size(),
                       values.size()));
  }
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) {
      refuse(fmt::format("offsets[{}] = {} is less than offsets[{}] = {}", i, offsets[i], i - 1, offsets[i - 1]));
    }
  }
  for (Size row = 0; row < rows(); ++row) {
    Index before = -1;
    for (std::size_t e = begin(row); e < begin(row + 1); ++e) {
      if (indices[e] < 0 || indices[e] >= columns) {
        refuse(fmt::format("row {} has index {}, but it must be 0 … {}", row, indices[e], columns - 1));
      }
      if (indices[e] <= before) {
        refuse(fmt::format("row {} has index {} after {}, but they must ascend", row, indices[e], before));
      }
      if (!std::isfinite(values[e])) refuse(fmt::format("row {} has value {} at index {}", row, values[e], indices[e]));
      before = indices[e];
    }
  }
}

void SparseDataset::validate() const {
  constexpr Size most = std::numeric_limits<Index>::max();
  const auto check = [](const char* name, Size value, Size limit) {
    if (value < 1 || value > limit) {
      throw std::invalid_argument(fmt::format("dataset: {} = {}, but it must be 1 … {}", name, value, limit));
    }
  };
  check("examples", examples, std::numeric_limits<Size>::max());
  check("inputs", inputs, most);
  check("outputs", outputs, most);
  features.validate("dataset: features", examples, inputs);
  targets.validate("dataset: targets", examples, outputs);
}

}  // namespace widehead
