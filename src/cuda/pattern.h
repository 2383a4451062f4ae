#pragma once
/// The pattern of a minibatch's targets on the device: a mirror of RowGroups, made once each time it is assigned.

#include <memory>
#include <utility>

#include "context.h"
#include "widehead/sparse_batch.h"

namespace widehead::cuda {

/// RowGroups in a kernel. Entries are numbered as there.
template <class T>
struct Pattern {
  const Index* rows;            // by group: its output
  const Index* starts;          // groups + 1: a group's first entry
  const Index* examples;        // by entry
  const Index* groups;          // by entry
  const Index* by_example;      // entries, example after example
  const Index* example_starts;  // m + 1, positions in by_example
  const T* values;              // by entry
};

template <class T>
struct PatternCopy final : DeviceCopy {
  explicit PatternCopy(std::shared_ptr<Context> owner) : context(std::move(owner)) {}
  std::shared_ptr<Context> context;  ///< of the backend that made it
  std::uint64_t version = 0;
  std::uint64_t program = 0;  ///< whose lists they are among
  Pattern<T> pattern = {};
};

}  // namespace widehead::cuda
