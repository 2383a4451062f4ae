#pragma once
/// Γ_w, the targets of the present window, by output: which columns of Γ_w (rows of E) an output
/// appears in, and with which values. Keeps its memory between windows.

#include <cstdint>
#include <span>
#include <vector>

#include "widehead/matrix.h"
#include "widehead/sparse_batch.h"
#include "widehead/state.h"

namespace widehead {

template <class T>
class Window {
 public:
  struct Entry {
    Size column;  ///< of Γ_w
    T value;
    std::int32_t next;  ///< the output's next entry, or none
  };
  static constexpr std::int32_t none = -1;

  Size columns() const { return columns_; }              ///< n, examples in the window
  std::span<const Index> rows() const { return rows_; }  ///< distinct outputs, in order of appearance
  /// First entry of the output at position `slot` of rows().
  std::int32_t first_entry(std::size_t slot) const { return heads_[slot]; }
  const Entry& entry(std::int32_t e) const { return entries_[static_cast<std::size_t>(e)]; }
  /// Position of an output in rows(), or none.
  std::int32_t find(Index row) const;
  /// (Γ_w)_i · x for an output i: Σ over its entries of value times x (n values) at their column.
  double dot(Index row, const T* x) const;

  /// Appends the columns of a minibatch.
  void append(const RowGroups<T>& groups, Size examples);
  void clear();

  /// The entries in the order they came, each by the position of its output in rows(): what heads, chains
  /// and table follow from.
  /// @param outputs  D, which bounds the rows
  /// @param room     examples that a window may hold
  void visit_state(StateVisitor& visitor, Size outputs, Size room);

 private:
  void add_entry(std::int32_t slot, Size column, T value);
  std::size_t bucket_of(Index row) const;
  void grow_table();

  Size columns_ = 0;
  std::vector<Index> rows_;
  std::vector<std::int32_t> heads_;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> table_ = std::vector<std::int32_t>(64, none);  // open addressing, a power of two
};

}  // namespace widehead
