#pragma once
/// Examples with sparse inputs and sparse targets, in memory.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "widehead/matrix.h"

namespace widehead {

/// Sparse rows in compressed form (CSR), the layout of SparseBatch: row i owns entries offsets[i] … offsets[i+1] − 1,
/// in ascending order of indices, each index at most once.
struct SparseRows {
  std::vector<std::int64_t> offsets{0};
  std::vector<Index> indices;
  std::vector<float> values;

  Size rows() const { return static_cast<Size>(offsets.size()) - 1; }
  Size nonzeros() const { return static_cast<Size>(indices.size()); }
  std::span<const Index> row_indices(Size row) const {
    return std::span(indices).subspan(begin(row), begin(row + 1) - begin(row));
  }
  std::span<const float> row_values(Size row) const {
    return std::span(values).subspan(begin(row), begin(row + 1) - begin(row));
  }
  /// Whatever was appended to indices and values since is the next row.
  void end_row() { offsets.push_back(nonzeros()); }

  /// @param name  what they are called in errors
  /// @throws std::invalid_argument unless there are `row_count` rows over 0 … columns − 1 as described, all values
  /// finite
  void validate(std::string_view name, Size row_count, Size columns) const;

 private:
  std::size_t begin(Size row) const { return static_cast<std::size_t>(offsets[static_cast<std::size_t>(row)]); }
};

struct SparseDataset {
  Size examples = 0;    ///< N
  Size inputs = 0;      ///< F, the width of an example
  Size outputs = 0;     ///< D
  SparseRows features;  ///< N x F
  SparseRows targets;   ///< N x D

  void validate() const;  ///< @throws std::invalid_argument naming the first thing that does not fit
};

}  // namespace widehead
