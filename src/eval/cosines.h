#pragma once
/// Cosines between the columns of a matrix of word vectors, one pair at a time or all of them in blocks.

#include <functional>
#include <span>
#include <vector>

#include "widehead/backend.h"
#include "widehead/eval/word_index.h"
#include "widehead/matrix.h"

namespace widehead {

/// @throws std::invalid_argument unless there is one column for each word
void check_columns(const WordIndex& index, ConstView<float> vectors);

/// xᵢ · xⱼ, in double.
double column_dot(ConstView<float> vectors, Index i, Index j);
/// ‖xᵢ‖, in double. @throws std::invalid_argument where it is not finite
double column_norm(ConstView<float> vectors, Index i);
/// out ← out + weight · xᵢ/‖xᵢ‖. False, and nothing done, where xᵢ = 0.
bool add_unit_vector(ConstView<float> vectors, Index i, double weight, std::span<double> out);

/// Those of the first `count` columns that have a direction, increasing.
std::vector<Index> columns_with_direction(ConstView<float> vectors, Size count);

/// Some of the products xᵢ/‖xᵢ‖ · q.
struct CosineBlock {
  std::span<const Index> columns;  // whose scores these are, increasing
  Size first_query;
  MatrixView<float> scores;  // columns x queries; the visitor may overwrite them

  /// Makes column i, if it is in this block, the last choice of query j.
  void exclude(Index i, Size j) const;
};

/// Visits xᵢ/‖xᵢ‖ · q for all i in `columns` (increasing, with a direction) and all queries q (d x count). No
/// more than a block of unit vectors and of products is held, and columns are visited in their order.
void scan_cosines(ConstView<float> vectors, std::span<const Index> columns, ConstView<float> queries,
                  Backend<float>& backend, const std::function<void(const CosineBlock&)>& visit);

}  // namespace widehead
