#include "widehead/sparse_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

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

/// By radix, a byte at a time from the lowest: examples, which come in order, stay in order within a row. Several times
/// as fast as comparing, and a minibatch with many targets spends a good part of its time here.
template <class T>
void RowGroups<T>::sort_by_row() {
  constexpr int digits = sizeof(Index);
  constexpr std::size_t values = 256;
  const auto digit = [](const Entry& entry, int d) {
    return (static_cast<std::uint32_t>(entry.row) >> (8 * d)) % values;
  };
  std::array<std::array<std::uint32_t, values>, digits> counts{};
  for (const Entry& entry : entries_) {
    for (int d = 0; d < digits; ++d) ++counts[static_cast<std::size_t>(d)][digit(entry, d)];
  }
  sorted_.resize(entries_.size());
  for (int d = 0; d < digits; ++d) {
    auto& starts = counts[static_cast<std::size_t>(d)];
    if (!entries_.empty() && starts[digit(entries_.front(), d)] == entries_.size()) continue;  // the same in all
    std::uint32_t next = 0;
    for (auto& start : starts) start = std::exchange(next, next + start);
    for (const Entry& entry : entries_) sorted_[starts[digit(entry, d)]++] = entry;
    std::swap(entries_, sorted_);
  }
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
  sort_by_row();
  starts_.clear();
  rows_.clear();
  groups_.clear();
  example_starts_.assign(static_cast<std::size_t>(batch.examples()) + 1, 0);
  std::size_t kept = 0;
  for (std::size_t e = 0; e < entries_.size();) {
    const Entry first = entries_[e];
    const std::size_t begin = e;
    while (++e < entries_.size() && entries_[e].row == first.row && entries_[e].example == first.example) continue;
    const std::span named(entries_.data() + begin, e - begin);
    if (named.size() > 1) {  // by value, so that the sum does not depend on the order given
      std::sort(named.begin(), named.end(), [](const Entry& a, const Entry& b) { return a.value < b.value; });
    }
    double value = 0;
    for (const Entry& entry : named) value += static_cast<double>(entry.value);
    if (kept == 0 || entries_[kept - 1].row != first.row) {
      starts_.push_back(kept);
      rows_.push_back(first.row);
    }
    groups_.push_back(static_cast<Index>(rows_.size()) - 1);
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
