#pragma once
/// Several softmaxes over rows of one matrix, each for some examples of a minibatch: what a hierarchy of softmaxes asks
/// of a backend.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "widehead/matrix.h"
#include "widehead/sparse_batch.h"

namespace widehead {

/// A part is a softmax over consecutive rows. Its pairs are the examples that it is for, its entries their targets.
/// Parts are independent of each other: no two of them share a row. Keeps its memory between minibatches.
template <class T>
class SoftmaxParts {
 public:
  struct Part {
    Size first_row, rows;  ///< of the matrix
    Size first_pair, pairs;
    Size first_entry, entries;
    Size offset;  ///< of its logits, rows x pairs, among those of all parts
  };
  struct Pair {
    Index part, example;
    double mass;  ///< s in R = p s − Y
  };
  struct Entry {
    Index row;   ///< within its part
    Index pair;  ///< among all; at most one entry for each of its rows
    T value;     ///< of Y
  };

  void clear() {
    parts_.clear();
    pairs_.clear();
    examples_.clear();
    entries_.clear();
    logits_ = 0;
    ++version_;
  }
  /// What is added from here on belongs to this part.
  void begin_part(Size first_row, Size rows) {
    parts_.push_back({first_row, rows, pair_count(), 0, entry_count(), 0, logits_});
  }
  /// Returns its number.
  Index add_pair(Index example, double mass) {
    auto& part = parts_.back();
    const auto number = static_cast<Index>(pairs_.size());
    pairs_.push_back({static_cast<Index>(parts_.size()) - 1, example, mass});
    examples_.push_back(example);
    ++part.pairs;
    logits_ += part.rows;
    return number;
  }
  void add_entry(Index row, Index pair, T value) {
    entries_.push_back({row, pair, value});
    ++parts_.back().entries;
  }
  Pair& pair(Index number) { return pairs_[static_cast<std::size_t>(number)]; }

  std::span<const Part> parts() const { return parts_; }
  std::span<const Pair> pairs() const { return pairs_; }
  std::span<const Entry> entries() const { return entries_; }
  std::span<const Index> examples() const { return examples_; }  ///< by pair
  std::span<const Entry> entries_of(const Part& part) const {
    return entries().subspan(static_cast<std::size_t>(part.first_entry), static_cast<std::size_t>(part.entries));
  }
  Size pair_count() const { return static_cast<Size>(pairs_.size()); }
  Size entry_count() const { return static_cast<Size>(entries_.size()); }
  Size logits() const { return logits_; }  ///< of all parts

  /// For the backend of a device: its copy of these lists, made anew after `clear`.
  std::unique_ptr<DeviceCopy>& device_copy() const { return device_copy_; }
  std::uint64_t version() const { return version_; }  ///< how often it was cleared

 private:
  std::vector<Part> parts_;
  std::vector<Pair> pairs_;
  std::vector<Index> examples_;
  std::vector<Entry> entries_;
  Size logits_ = 0;
  std::uint64_t version_ = 0;
  mutable std::unique_ptr<DeviceCopy> device_copy_;
};

/// Parts first … first + count − 1.
struct PartRange {
  Size first, count;
};

/// What is found out about parts.
template <class T>
struct PartStatistics {
  MatrixView<double> o;      ///< logits of the targets, by entry
  MatrixView<T> maxima;      ///< by pair: the largest logit
  MatrixView<double> sums;   ///< by pair: of the exponentials relative to it
  MatrixView<double> log_Z;  ///< by pair
};

}  // namespace widehead
