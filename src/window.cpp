#include "widehead/window.h"

#include <algorithm>

namespace widehead {

/// Where the search for a row ends: its bucket, or the empty one it belongs in.
template <class T>
std::size_t Window<T>::bucket_of(Index row) const {
  const std::size_t mask = table_.size() - 1;
  std::size_t bucket = (static_cast<std::uint32_t>(row) * 2654435769U >> 7) & mask;  // Fibonacci hashing
  while (table_[bucket] != none && rows_[static_cast<std::size_t>(table_[bucket])] != row) bucket = (bucket + 1) & mask;
  return bucket;
}

template <class T>
std::int32_t Window<T>::find(Index row) const {
  return table_[bucket_of(row)];
}

template <class T>
double Window<T>::dot(Index row, const T* x) const {
  const auto slot = find(row);
  double sum = 0;
  for (auto e = slot == none ? none : heads_[static_cast<std::size_t>(slot)]; e != none; e = entry(e).next) {
    sum += static_cast<double>(entry(e).value) * static_cast<double>(x[entry(e).column]);
  }
  return sum;
}

template <class T>
void Window<T>::grow_table() {
  table_.assign(2 * table_.size(), none);
  for (std::size_t slot = 0; slot < rows_.size(); ++slot) {
    table_[bucket_of(rows_[slot])] = static_cast<std::int32_t>(slot);
  }
}

template <class T>
void Window<T>::append(const RowGroups<T>& groups, Size examples) {
  for (Size group = 0; group < groups.count(); ++group) {
    const Index row = groups.row(group);
    if (2 * (rows_.size() + 1) > table_.size()) grow_table();
    std::int32_t& slot = table_[bucket_of(row)];
    if (slot == none) {
      slot = static_cast<std::int32_t>(rows_.size());
      rows_.push_back(row);
      heads_.push_back(none);
    }
    for (const auto& entry : groups.entries(group)) {
      entries_.push_back({columns_ + entry.example, entry.value, heads_[static_cast<std::size_t>(slot)]});
      heads_[static_cast<std::size_t>(slot)] = static_cast<std::int32_t>(entries_.size()) - 1;
    }
  }
  columns_ += examples;
}

template <class T>
void Window<T>::clear() {
  std::fill(table_.begin(), table_.end(), none);
  rows_.clear();
  heads_.clear();
  entries_.clear();
  columns_ = 0;
}

template class Window<float>;
template class Window<double>;

}  // namespace widehead
