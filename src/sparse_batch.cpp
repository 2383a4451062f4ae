#include "widehead/sparse_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace widehead {

template <class T>
SparseBatch<T>::SparseBatch(Size outputs, std::span<const std::int64_t> offsets, std::span<const Index> indices,
                            std::span<const T> values, std::span<const T> weights)
    : outputs_(outputs), offsets_(offsets), indices_(indices), values_(values), weights_(weights) {
  if (outputs < 1 || outputs > std::numeric_limits<Index>::max()) {
    throw std::invalid_argument(
        fmt::format("targets: D = {}, but it must be 1 … {}", outputs, std::numeric_limits<Index>::max()));
  }
  if (offsets.size() < 2) throw std::invalid_argument("targets: no examples (offsets must hold m + 1 ≥ 2 values)");
  if (offsets.front() != 0) {
    throw std::invalid_argument(fmt::format("targets: offsets[0] = {}, but it must be 0", offsets.front()));
  }
  for (std::size_t j = 1; j < offsets.size(); ++j) {
    if (offsets[j] < offsets[j - 1]) {
      throw std::invalid_argument(
          fmt::format("targets: offsets[{}] = {} is less than offsets[{}] = {}", j, offsets[j], j - 1, offsets[j - 1]));
    }
  }
  if (offsets.back() != static_cast<std::int64_t>(indices.size()) || indices.size() != values.size()) {
    throw std::invalid_argument(fmt::format("targets: offsets end at {}, but there are {} indices and {} values",
                                            offsets.back(), indices.size(), values.size()));
  }
  for (std::size_t e = 0; e < indices.size(); ++e) {
    if (indices[e] < 0 || indices[e] >= outputs) {
      throw std::invalid_argument(fmt::format("targets: indices[{}] = {}, but D = {}", e, indices[e], outputs));
    }
    if (!std::isfinite(values[e])) {
      throw std::invalid_argument(fmt::format("targets: values[{}] = {} is not finite", e, values[e]));
    }
  }
  if (!weights.empty() && static_cast<Size>(weights.size()) != examples()) {
    throw std::invalid_argument(fmt::format("targets: {} weights for {} examples", weights.size(), examples()));
  }
  for (std::size_t j = 0; j < weights.size(); ++j) {
    if (!(weights[j] >= T(0)) || !std::isfinite(weights[j])) {
      throw std::invalid_argument(
          fmt::format("targets: weights[{}] = {}, but weights must be finite and not negative", j, weights[j]));
    }
  }
}

template <class T>
SparseBatch<T> SparseBatch<T>::with_values(std::span<const T> values) const {
  SparseBatch batch;
  batch.outputs_ = outputs_;
  batch.offsets_ = offsets_;
  batch.indices_ = indices_;
  batch.values_ = values;
  return batch;
}

template <class T>
SparseBatch<T> SparseBatch<T>::with_offsets(std::span<const std::int64_t> offsets) const {
  SparseBatch batch = *this;
  batch.offsets_ = offsets;
  batch.weights_ = {};
  return batch;
}

template <class T>
Size RowGroups<T>::first_group(Size row) const {
  return std::lower_bound(rows_.begin(), rows_.end(), row) - rows_.begin();
}

template <class T>
void RowGroups<T>::assign(const SparseBatch<T>& batch) {
  ++version_;
  entries_.clear();
  values_.clear();
  for (Size j = 0; j < batch.examples(); ++j) {
    for (Size e = batch.begin(j); e < batch.end(j); ++e) {
      entries_.push_back({batch.index(e), static_cast<Index>(j), batch.value(e)});
    }
  }
  // By value where an example names an output twice, so that the sum does not depend on the order given.
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    if (a.row != b.row) return a.row < b.row;
    if (a.example != b.example) return a.example < b.example;
    return a.value < b.value;
  });
  starts_.clear();
  rows_.clear();
  example_starts_.assign(static_cast<std::size_t>(batch.examples()) + 1, 0);
  std::size_t kept = 0;
  for (std::size_t e = 0; e < entries_.size();) {
    const Entry first = entries_[e];
    double value = 0;
    for (; e < entries_.size() && entries_[e].row == first.row && entries_[e].example == first.example; ++e) {
      value += static_cast<double>(entries_[e].value);
    }
    if (kept == 0 || entries_[kept - 1].row != first.row) {
      starts_.push_back(kept);
      rows_.push_back(first.row);
    }
    entries_[kept++] = {first.row, first.example, static_cast<T>(value)};
    values_.push_back(static_cast<T>(value));
    ++example_starts_[static_cast<std::size_t>(first.example)];
  }
  entries_.resize(kept);
  starts_.push_back(kept);

  // By example, a counting sort: counts become ends, and each entry, last first, steps its end back.
  Index end = 0;
  for (auto& start : example_starts_) start = end += start;
  by_example_.resize(kept);
  for (std::size_t e = kept; e-- > 0;) {
    by_example_[static_cast<std::size_t>(--example_starts_[static_cast<std::size_t>(entries_[e].example)])] =
        static_cast<Index>(e);
  }
}

template class SparseBatch<float>;
template class SparseBatch<double>;
template class RowGroups<float>;
template class RowGroups<double>;

}  // namespace widehead
