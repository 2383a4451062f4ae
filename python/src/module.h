#pragma once
/// What the parts of the extension module share.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <optional>
#include <span>

#include "widehead/matrix.h"

namespace widehead::python {

namespace nb = nanobind;

// Each adds its part to the module.
void add_errors(nb::module_& m);
void add_targets(nb::module_& m);
void add_layers(nb::module_& m);
void add_files(nb::module_& m);
void add_training(nb::module_& m);

/// A list of numbers, of the CPU's memory.
template <class V>
using List = nb::ndarray<V, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
/// (m, d) as NumPy has it, rows contiguous: a column-major d x m matrix.
template <class V>
using Table = nb::ndarray<V, nb::ndim<2>, nb::device::cpu>;
/// The same in the memory of any device. Arrays of a GPU come as DLPack capsules: who makes one has seen to the order
/// of streams.
template <class V>
using AnyTable = nb::ndarray<V, nb::ndim<2>>;

template <class V>
std::span<V> span_of(const List<V>& list) {
  return {list.data(), list.size()};
}

template <class V>
std::span<V> span_of(const std::optional<List<V>>& list) {
  return list ? span_of(*list) : std::span<V>();
}

/// The view of a table. @throws std::invalid_argument where its rows are not contiguous, or overlap
template <class V, class... Where>
MatrixView<V> view_of(const nb::ndarray<V, nb::ndim<2>, Where...>& table) {
  const auto rows = static_cast<Size>(table.shape(0)), cols = static_cast<Size>(table.shape(1));
  const bool is_dense = cols <= 1 || table.stride(1) == 1;
  const Size stride = rows <= 1 ? cols : static_cast<Size>(table.stride(0));
  if (!is_dense || stride < cols) throw std::invalid_argument("array: rows must be contiguous");
  return {table.data(), cols, rows, stride};
}

}  // namespace widehead::python
