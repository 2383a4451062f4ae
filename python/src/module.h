#pragma once
/// What the parts of the extension module share.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "widehead/matrix.h"

namespace widehead::python {

namespace nb = nanobind;

/// Signals are handled on a stack of their own from now on, by the thread that calls this: Python's handlers ask for
/// one where it is there (SA_ONSTACK). A kernel of oneDNN's (2.6) keeps its workspace where the stack pointer says, on
/// the heap, and a handler that is called there, as by Ctrl-C in a step, writes over what lies beside it.
void give_signals_a_stack();

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

/// A table in the memory of any device, as an array or by its address. Arrays of a GPU come as DLPack capsules: who
/// makes one has seen to the order of streams. (address, rows, columns) are contiguous rows of V in the host's memory:
/// who says so has looked at type and layout, and holds that memory. It is for tensors, whose address costs less than
/// an array.
template <class V>
class AnyTable {
 public:
  using Array = nb::ndarray<V, nb::ndim<2>>;

  AnyTable() = default;
  explicit AnyTable(Array array) : array_(std::move(array)) {}
  AnyTable(std::uintptr_t address, Size rows, Size columns)
      : address_(reinterpret_cast<V*>(address)), rows_(rows), columns_(columns) {}

  bool is_host() const { return !array_.is_valid() || array_.device_type() == nb::device::cpu::value; }
  MatrixView<V> view() const {
    return array_.is_valid() ? view_of(array_) : MatrixView<V>(address_, columns_, rows_, columns_);
  }

 private:
  Array array_;
  V* address_ = nullptr;  // where there is no array
  Size rows_ = 0, columns_ = 0;
};

}  // namespace widehead::python

namespace nanobind::detail {

template <class V>
struct type_caster<widehead::python::AnyTable<V>> {
  using Table = widehead::python::AnyTable<V>;
  using Array = make_caster<typename Table::Array>;
  NB_TYPE_CASTER(Table, Array::Name)

  template <class Flags>  // whose type depends on nanobind's version
  bool from_python(handle source, Flags flags, cleanup_list* cleanup) noexcept {
    if (!PyTuple_CheckExact(source.ptr())) {
      Array array;
      if (!array.from_python(source, flags, cleanup)) return false;
      value = Table(std::move(array.value));
      return true;
    }
    if (PyTuple_Size(source.ptr()) != 3) return false;
    std::uintptr_t address = 0;
    widehead::Size sizes[2] = {};
    if (!load(PyTuple_GetItem(source.ptr(), 0), address, cleanup)) return false;
    for (int k = 0; k < 2; ++k) {
      if (!load(PyTuple_GetItem(source.ptr(), k + 1), sizes[k], cleanup) || sizes[k] < 0) return false;
    }
    value = Table(address, sizes[0], sizes[1]);
    return true;
  }

 private:
  template <class Integer>
  static bool load(PyObject* source, Integer& to, cleanup_list* cleanup) noexcept {
    make_caster<Integer> caster;
    if (!caster.from_python(source, 0, cleanup)) return false;
    to = caster.value;
    return true;
  }
};

}  // namespace nanobind::detail
