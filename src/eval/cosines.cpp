#include "cosines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace widehead {
namespace {

// 4 MB of products: they are read again before they have left the cache.
constexpr Size columns_per_block = 4096;
constexpr Size queries_per_block = 256;

}  // namespace

void check_columns(const WordIndex& index, ConstView<float> vectors) {
  if (vectors.cols == index.size()) return;
  throw std::invalid_argument(fmt::format("vectors: {} columns, but there are {} words", vectors.cols, index.size()));
}

double column_dot(ConstView<float> vectors, Index i, Index j) {
  const float *x = vectors.column(i), *y = vectors.column(j);
  double sum = 0;
  for (Size r = 0; r < vectors.rows; ++r) sum += static_cast<double>(x[r]) * static_cast<double>(y[r]);
  return sum;
}

double column_norm(ConstView<float> vectors, Index i) {
  const double norm = std::sqrt(column_dot(vectors, i, i));  // squares of floats neither overflow nor vanish in double
  if (!std::isfinite(norm)) throw std::invalid_argument(fmt::format("vectors: column {} is not finite", i));
  return norm;
}

bool add_unit_vector(ConstView<float> vectors, Index i, double weight, std::span<double> out) {
  const double norm = column_norm(vectors, i);
  if (norm == 0) return false;
  const float* x = vectors.column(i);
  for (std::size_t r = 0; r < out.size(); ++r) out[r] += weight * (static_cast<double>(x[r]) / norm);
  return true;
}

std::vector<Index> columns_with_direction(ConstView<float> vectors, Size count) {
  std::vector<Index> list;
  for (Index i = 0; i < count; ++i) {
    if (column_norm(vectors, i) > 0) list.push_back(i);
  }
  return list;
}

void CosineBlock::exclude(Index i, Size j) const {
  const auto found = std::lower_bound(columns.begin(), columns.end(), i);
  if (found == columns.end() || *found != i) return;
  scores(found - columns.begin(), j) = -std::numeric_limits<float>::infinity();
}

void scan_cosines(ConstView<float> vectors, std::span<const Index> columns, ConstView<float> queries,
                  Backend<float>& backend, const std::function<void(const CosineBlock&)>& visit) {
  const Size d = vectors.rows, total = static_cast<Size>(columns.size());
  Matrix<float> unit(d, std::min(total, columns_per_block));
  Matrix<float> products(unit.cols(), std::min(queries.cols, queries_per_block));
  for (Size first = 0; first < total; first += columns_per_block) {
    const auto block = columns.subspan(static_cast<std::size_t>(first),
                                       static_cast<std::size_t>(std::min(columns_per_block, total - first)));
    const auto count = static_cast<Size>(block.size());
    for (Size k = 0; k < count; ++k) {
      const Index i = block[static_cast<std::size_t>(k)];
      const double norm = column_norm(vectors, i);
      std::transform(vectors.column(i), vectors.column(i) + d, unit.view().column(k),
                     [&](float x) { return static_cast<float>(static_cast<double>(x) / norm); });
    }
    for (Size query = 0; query < queries.cols; query += queries_per_block) {
      const Size width = std::min(queries_per_block, queries.cols - query);
      const auto scores = products.view().block(0, 0, count, width);
      backend.gemm(Op::transpose, Op::none, 1, unit.view().columns(0, count), queries.columns(query, width), 0, scores);
      visit({block, query, scores});
    }
  }
}

}  // namespace widehead
