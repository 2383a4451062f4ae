#pragma once
/// The targets of a minibatch, Y (D x m, sparse): any number of (output, value) pairs per example,
/// including none; an output named twice counts with the sum of its values.

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "widehead/matrix.h"

namespace widehead {

/// A non-owning view in compressed form: example j owns entries offsets[j] … offsets[j+1] − 1. This
/// is a SciPy CSR matrix of shape (m, D) as it lies in memory. Validated once, on construction.
template <class T>
class SparseBatch {
 public:
  /// @param outputs  D
  /// @param offsets  m + 1 positions, not decreasing, from 0 to indices.size()
  /// @param weights  importance of each example (m values ≥ 0), or empty for 1 each
  /// @throws std::invalid_argument naming the first bad entry
  SparseBatch(Size outputs, std::span<const std::int64_t> offsets, std::span<const Index> indices,
              std::span<const T> values, std::span<const T> weights = {});

  Size outputs() const { return outputs_; }                                 ///< D
  Size examples() const { return static_cast<Size>(offsets_.size()) - 1; }  ///< m
  Size nonzeros() const { return static_cast<Size>(indices_.size()); }      ///< entries in all
  Size begin(Size example) const { return offsets_[static_cast<std::size_t>(example)]; }
  Size end(Size example) const { return offsets_[static_cast<std::size_t>(example) + 1]; }
  std::span<const Index> indices() const { return indices_; }
  Index index(Size entry) const { return indices_[static_cast<std::size_t>(entry)]; }
  T value(Size entry) const { return values_[static_cast<std::size_t>(entry)]; }
  bool weighted() const { return !weights_.empty(); }
  std::span<const T> weights() const { return weights_; }  ///< m, or empty for 1 each
  T weight(Size example) const { return weighted() ? weights_[static_cast<std::size_t>(example)] : T(1); }

  /// The same targets with other values (used to fold the weights in). Not validated again.
  SparseBatch with_values(std::span<const T> values) const;
  /// The same entries cut into other examples: offsets from 0 to nonzeros(). Not validated again.
  SparseBatch with_offsets(std::span<const std::int64_t> offsets) const;

 private:
  SparseBatch() = default;

  Size outputs_ = 0;
  std::span<const std::int64_t> offsets_;
  std::span<const Index> indices_;
  std::span<const T> values_;
  std::span<const T> weights_;
};

/// Σ|y| over all entries: no norm of Y is larger.
template <class T>
double sum_of_magnitudes(const SparseBatch<T>& batch) {
  double sum = 0;
  for (Size e = 0; e < batch.nonzeros(); ++e) sum += std::abs(static_cast<double>(batch.value(e)));
  return sum;
}

/// What a device keeps of a pattern.
class DeviceCopy {
 public:
  DeviceCopy() = default;
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  virtual ~DeviceCopy() = default;
};

/// The elements of Y regrouped by output, which makes every scatter free of collisions and its sums
/// independent of the number of threads; entries that name the same element are added up. Another matrix of the same
/// pattern (Γ) has values of its own, by the same entries. Keeps its memory between minibatches.
template <class T>
class RowGroups {
 public:
  struct Entry {
    Index row;      ///< output
    Index example;  ///< column of Y; at most one entry for each
    T value;
  };

  void assign(const SparseBatch<T>& batch);

  Size examples() const { return static_cast<Size>(example_starts_.size()) - 1; }  ///< m
  Size nonzeros() const { return static_cast<Size>(entries_.size()); }
  const Entry& entry(Size e) const { return entries_[static_cast<std::size_t>(e)]; }
  /// Which entries belong to an example, in ascending order of outputs.
  std::span<const Index> of_example(Size example) const {
    const auto first = static_cast<std::size_t>(example_starts_[static_cast<std::size_t>(example)]);
    return {by_example_.data() + first,
            static_cast<std::size_t>(example_starts_[static_cast<std::size_t>(example) + 1]) - first};
  }

  Size count() const { return static_cast<Size>(starts_.size()) - 1; }  ///< distinct outputs
  Index row(Size group) const { return rows_[static_cast<std::size_t>(group)]; }
  std::span<const Entry> entries(Size group) const {
    const auto first = starts_[static_cast<std::size_t>(group)];
    return {entries_.data() + first, starts_[static_cast<std::size_t>(group) + 1] - first};
  }
  Index group_of(Size e) const { return groups_[static_cast<std::size_t>(e)]; }  ///< to which an entry belongs
  /// Position of a group's first entry; of the group behind the last: their number.
  Size first_entry(Size group) const { return static_cast<Size>(starts_[static_cast<std::size_t>(group)]); }
  /// The first group whose output is at least `row`.
  Size first_group(Size row) const;
  std::span<const Index> rows() const { return rows_; }                      ///< the distinct outputs, ascending
  std::span<const T> values() const { return values_; }                      ///< of Y itself, by entry
  std::span<const Index> by_example() const { return by_example_; }          ///< all of of_example, in order
  std::span<const Index> example_starts() const { return example_starts_; }  ///< where each example's begin; m + 1

  /// For the backend of a device: its copy of this pattern, made anew after `assign`.
  std::unique_ptr<DeviceCopy>& device_copy() const { return device_copy_; }
  std::uint64_t version() const { return version_; }  ///< how often it was assigned

 private:
  void sort_by_row();

  std::vector<Entry> entries_, sorted_;  // the second: room to sort in
  std::vector<T> values_;
  std::vector<std::size_t> starts_{0};
  std::vector<Index> rows_, groups_;
  std::vector<Index> by_example_, example_starts_{0};
  std::uint64_t version_ = 0;
  mutable std::unique_ptr<DeviceCopy> device_copy_;
};

}  // namespace widehead
