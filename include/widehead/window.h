#pragma once
/// Γ_w, the targets of the present window, by output: which columns of Γ_w (rows of E) an output
/// appears in, known to the host, and with which values, in the backend's memory. Keeps its memory between windows.

#include <cstdint>
#include <span>
#include <vector>

#include "widehead/backend.h"
#include "widehead/matrix.h"
#include "widehead/sparse_batch.h"
#include "widehead/state.h"

namespace widehead {

template <class T>
class Window {
 public:
  struct Entry {
    Index column;       ///< of Γ_w
    std::int32_t next;  ///< the output's next entry, or none
  };
  static constexpr std::int32_t none = -1;

  explicit Window(Backend<T>& backend) : backend_(backend), values_(backend.memory()) {}

  Size columns() const { return columns_; }              ///< n, rows of E
  Size examples() const { return examples_; }            ///< in the window
  std::span<const Index> rows() const { return rows_; }  ///< distinct outputs, in order of appearance
  /// First entry of the output at position `slot` of rows().
  std::int32_t first_entry(std::size_t slot) const { return heads_[slot]; }
  const Entry& entry(std::int32_t e) const { return entries_[static_cast<std::size_t>(e)]; }
  /// By entry.
  ConstView<T> values() const { return {values_.data(), static_cast<Size>(entries_.size()), 1}; }
  /// Whether E's rows are the outputs' own, in the order of rows(): (Γ_w E)_i is a row of E.
  bool is_plain() const;
  /// Position of an output in rows(), or none.
  std::int32_t find(Index row) const;

  /// Appends the columns of a minibatch, with values by entry of `groups`.
  void append(const RowGroups<T>& groups, ConstView<T> values, Size examples);
  /// Instead of these, one column for each output that has none of its own in this window yet, with a 1 there. Returns
  /// the outputs' own columns, by group; valid until the next call.
  std::span<const Index> append_by_output(const RowGroups<T>& groups, Size examples);
  void clear();

  /// The entries in the order they came, each by the position of its output in rows(): what heads, chains
  /// and table follow from.
  /// @param outputs  D, which bounds the rows
  /// @param room     columns that a window may hold
  void visit_state(StateVisitor& visitor, Size outputs, Size room);

 private:
  std::size_t slot_of(Index row);
  void add_entry(std::int32_t slot, Index column);
  void reserve_values(Size count);
  std::size_t bucket_of(Index row) const;
  void grow_table();

  Backend<T>& backend_;
  Size columns_ = 0, examples_ = 0;
  Matrix<T> values_;
  std::vector<Index> rows_;
  std::vector<std::int32_t> heads_;
  std::vector<std::int32_t> own_;  // column that belongs to an output alone, or none
  std::vector<Entry> entries_;
  std::vector<Index> group_columns_;                                       // scratch
  std::vector<std::int32_t> table_ = std::vector<std::int32_t>(64, none);  // open addressing, a power of two
};

}  // namespace widehead
