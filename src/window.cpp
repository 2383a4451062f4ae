#include "widehead/window.h"

#include <fmt/format.h>

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
bool Window<T>::is_plain() const {
  if (entries_.size() != rows_.size()) return false;
  for (std::size_t slot = 0; slot < own_.size(); ++slot) {
    if (own_[slot] != static_cast<std::int32_t>(slot)) return false;
  }
  return true;
}

template <class T>
void Window<T>::grow_table() {
  table_.assign(2 * table_.size(), none);
  for (std::size_t slot = 0; slot < rows_.size(); ++slot) {
    table_[bucket_of(rows_[slot])] = static_cast<std::int32_t>(slot);
  }
}

template <class T>
void Window<T>::add_entry(std::int32_t slot, Index column) {
  std::int32_t& head = heads_[static_cast<std::size_t>(slot)];
  entries_.push_back({column, head});
  head = static_cast<std::int32_t>(entries_.size()) - 1;
}

/// Room for so many values, with those there are.
template <class T>
void Window<T>::reserve_values(Size count) {
  if (count <= values_.rows()) return;
  Matrix<T> larger(std::max(count, 2 * values_.rows()), 1, backend_.memory());
  if (!entries_.empty()) backend_.copy(values(), larger.view().block(0, 0, static_cast<Size>(entries_.size()), 1));
  values_ = std::move(larger);
}

/// Position of a row in rows(), where it is added if it was not there.
template <class T>
std::size_t Window<T>::slot_of(Index row) {
  if (2 * (rows_.size() + 1) > table_.size()) grow_table();
  std::int32_t& slot = table_[bucket_of(row)];
  if (slot == none) {
    slot = static_cast<std::int32_t>(rows_.size());
    rows_.push_back(row);
    heads_.push_back(none);
    own_.push_back(none);
  }
  return static_cast<std::size_t>(slot);
}

template <class T>
void Window<T>::append(const RowGroups<T>& groups, ConstView<T> values, Size examples) {
  const Size before = static_cast<Size>(entries_.size());
  reserve_values(before + groups.nonzeros());
  if (groups.nonzeros() > 0) backend_.copy(values, values_.view().block(before, 0, groups.nonzeros(), 1));
  for (Size group = 0; group < groups.count(); ++group) {
    const auto slot = static_cast<std::int32_t>(slot_of(groups.row(group)));
    for (const auto& entry : groups.entries(group)) add_entry(slot, static_cast<Index>(columns_) + entry.example);
  }
  columns_ += examples;
  examples_ += examples;
}

template <class T>
std::span<const Index> Window<T>::append_by_output(const RowGroups<T>& groups, Size examples) {
  reserve_values(static_cast<Size>(entries_.size()) + groups.count());
  group_columns_.clear();
  const T one = 1;
  for (Size group = 0; group < groups.count(); ++group) {
    const std::size_t slot = slot_of(groups.row(group));
    if (own_[slot] == none) {
      own_[slot] = static_cast<std::int32_t>(columns_++);
      const auto value = values_.view().block(static_cast<Size>(entries_.size()), 0, 1, 1);
      backend_.template transfer<T>(MatrixView<const T>(&one, 1, 1), value);
      add_entry(static_cast<std::int32_t>(slot), own_[slot]);
    }
    group_columns_.push_back(own_[slot]);
  }
  examples_ += examples;
  return group_columns_;
}

template <class T>
void Window<T>::clear() {
  std::fill(table_.begin(), table_.end(), none);
  rows_.clear();
  heads_.clear();
  own_.clear();
  entries_.clear();
  columns_ = examples_ = 0;
}

template <class T>
void Window<T>::visit_state(StateVisitor& visitor, Size outputs, Size room) {
  std::vector<Index> rows = rows_;
  std::vector<std::int32_t> slots(entries_.size());
  std::vector<std::int64_t> columns(entries_.size());
  std::vector<T> values(entries_.size());
  backend_.template transfer<T>(this->values(), MatrixView<T>(values.data(), static_cast<Size>(values.size()), 1));
  for (std::size_t slot = 0; slot < heads_.size(); ++slot) {
    for (auto e = heads_[slot]; e != none; e = entry(e).next) {
      slots[static_cast<std::size_t>(e)] = static_cast<std::int32_t>(slot);
    }
  }
  for (std::size_t e = 0; e < entries_.size(); ++e) {
    columns[e] = entries_[e].column;
  }
  Size width = columns_, examples = examples_;
  std::vector<std::int32_t> own = own_;
  visitor.scalar("columns", width);
  visitor.scalar("examples", examples);
  visitor.list("rows", rows);
  visitor.list("own_columns", own);
  visitor.list("entry_slots", slots);
  visitor.list("entry_columns", columns);
  visitor.list("entry_values", values);
  if (!visitor.loading()) return;

  if (width < 0 || width > room) {
    visitor.refuse("columns", fmt::format("is {}, but a window has room for {}", width, room));
  }
  if (examples < 0 || examples > 2 * room) {  // half as many again as the window is long, at most
    visitor.refuse("examples", fmt::format("is {}, but a window of {} columns has closed long before", examples, room));
  }
  if (own.size() != rows.size()) {
    visitor.refuse("own_columns", fmt::format("has {} entries, rows {}", own.size(), rows.size()));
  }
  for (const auto column : own) {
    if (column < none || column >= width) {
      visitor.refuse("own_columns", fmt::format("has {}, but there are {} columns", column, width));
    }
  }
  if (slots.size() != columns.size() || slots.size() != values.size() || slots.size() > INT32_MAX) {
    visitor.refuse("entry_slots", fmt::format("has {} entries, entry_columns {}, entry_values {}", slots.size(),
                                              columns.size(), values.size()));
  }
  clear();
  reserve_values(static_cast<Size>(values.size()));
  for (const Index row : rows) {
    if (row < 0 || row >= outputs) visitor.refuse("rows", fmt::format("names output {}, but D = {}", row, outputs));
    if (slot_of(row) + 1 != rows_.size()) visitor.refuse("rows", fmt::format("names output {} twice", row));
  }
  own_ = own;
  for (std::size_t e = 0; e < slots.size(); ++e) {
    if (slots[e] < 0 || static_cast<std::size_t>(slots[e]) >= rows_.size()) {
      visitor.refuse("entry_slots", fmt::format("has {} at {}, but there are {} rows", slots[e], e, rows_.size()));
    }
    if (columns[e] < 0 || columns[e] >= width) {
      visitor.refuse("entry_columns", fmt::format("has {} at {}, but there are {} columns", columns[e], e, width));
    }
    add_entry(slots[e], static_cast<Index>(columns[e]));
  }
  columns_ = width;
  examples_ = examples;
  const MatrixView<const T> loaded(values.data(), static_cast<Size>(values.size()), 1);
  backend_.template transfer<T>(loaded, values_.view().block(0, 0, loaded.rows, 1));
}

template class Window<float>;
template class Window<double>;

}  // namespace widehead
