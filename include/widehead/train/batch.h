#pragma once
/// Minibatches and where they come from. A source is a pure function of a cursor: the same cursor gives the same
/// minibatch, in whichever run and thread, so that a checkpoint need only hold the cursor.

#include <cstdint>
#include <vector>

#include "widehead/sparse_batch.h"

namespace widehead {

/// A place in the stream of minibatches.
struct Cursor {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  ///< in the epoch; its unit is the source's
  bool operator==(const Cursor&) const = default;
};

/// Sparse rows under construction, example after example.
template <class T>
struct BatchRows {
  std::vector<std::int64_t> offsets = {0};
  std::vector<Index> indices;
  std::vector<T> values;

  Size examples() const { return static_cast<Size>(offsets.size()) - 1; }
  void clear() {
    offsets.resize(1);
    indices.clear();
    values.clear();
  }
  void add(Index index, T value) {
    indices.push_back(index);
    values.push_back(value);
  }
  void end_example() { offsets.push_back(static_cast<std::int64_t>(indices.size())); }
  SparseBatch<T> view(Size extent) const { return {extent, offsets, indices, values}; }
};

template <class T>
struct Batch {
  BatchRows<T> inputs, targets;
  Cursor next;  ///< where the following minibatch begins

  Size examples() const { return inputs.examples(); }
  void clear() {
    inputs.clear();
    targets.clear();
  }
};

template <class T>
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  virtual Size features() const = 0;  ///< F
  virtual Size outputs() const = 0;   ///< D
  /// Fills `batch` with up to m examples from `at` on, all of one epoch; the last one of an epoch may be smaller. Empty
  /// only where the whole epoch has no example. Safe to call from several threads.
  virtual void fill(const Cursor& at, Size m, Batch<T>& batch) const = 0;
  /// The share of its epoch that is done at a cursor, 0 … 1.
  virtual double share_of_epoch(const Cursor& at) const = 0;
};

}  // namespace widehead
