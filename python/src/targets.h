#pragma once
/// The targets of a minibatch as Python gave them: its arrays, held and read where they lie if their types allow.

#include <cstdint>
#include <vector>

#include "module.h"
#include "widehead/sparse_batch.h"

namespace widehead::python {

template <class T>
class Targets {
 public:
  using Integers = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;  // int32 or int64

  /// @param offsets  as in a CSR matrix, or nothing where each example has one target
  /// @param values   or nothing for 1 each
  Targets(Size outputs, const std::optional<Integers>& offsets, const Integers& indices,
          std::optional<List<const T>> values);
  /// A target of value 1 for each example; the indices are copied.
  Targets(Size outputs, std::span<const std::int64_t> indices);

  Size examples() const { return static_cast<Size>(offsets().size()) - 1; }
  Size nonzeros() const { return static_cast<Size>(indices().size()); }
  /// Validated each time: the arrays are not ours alone. @param weights  of the examples, or empty
  SparseBatch<T> batch(std::span<const T> weights = {}) const {
    return {outputs_, offsets(), indices(), values_ ? span_of(*values_) : std::span<const T>(ones_), weights};
  }

  std::span<const Index> indices() const {
    return given_indices_ ? span_of(*given_indices_) : std::span<const Index>(indices_);
  }

 private:
  void narrow(std::span<const std::int64_t> wide);
  void name_one_each();
  std::span<const std::int64_t> offsets() const {
    return given_offsets_ ? span_of(*given_offsets_) : std::span<const std::int64_t>(offsets_);
  }

  Size outputs_;
  std::optional<List<const std::int64_t>> given_offsets_;
  std::optional<List<const Index>> given_indices_;
  std::optional<List<const T>> values_;
  std::vector<std::int64_t> offsets_;  // where they had to be converted
  std::vector<Index> indices_;
  std::vector<T> ones_;
};

}  // namespace widehead::python
