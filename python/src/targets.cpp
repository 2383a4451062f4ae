#include "targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace widehead::python {
namespace {

template <class V>
std::span<const V> read(const nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>& array) {
  return {static_cast<const V*>(array.data()), array.size()};
}

}  // namespace

template <class T>
Targets<T>::Targets(Size outputs, const std::optional<Integers>& offsets, const Integers& indices,
                    std::optional<List<const T>> values)
    : outputs_(outputs), values_(std::move(values)) {
  if (indices.dtype() == nb::dtype<Index>()) {
    given_indices_ = List<const Index>(indices);
  } else if (indices.dtype() == nb::dtype<std::int64_t>()) {
    narrow(read<std::int64_t>(indices));
  } else {
    throw std::invalid_argument("targets: indices must be int32 or int64");
  }
  if (!offsets) {
    name_one_each();
  } else if (offsets->dtype() == nb::dtype<std::int64_t>()) {
    given_offsets_ = List<const std::int64_t>(*offsets);
  } else if (offsets->dtype() == nb::dtype<std::int32_t>()) {
    const auto narrow = read<std::int32_t>(*offsets);
    offsets_.assign(narrow.begin(), narrow.end());
  } else {
    throw std::invalid_argument("targets: indptr must be int32 or int64");
  }
  if (!values_) ones_.assign(this->indices().size(), T(1));
  batch();  // whatever is wrong with them is said now
}

template <class T>
Targets<T>::Targets(Size outputs, std::span<const std::int64_t> indices) : outputs_(outputs) {
  narrow(indices);
  name_one_each();
  ones_.assign(indices.size(), T(1));
}

template <class T>
void Targets<T>::narrow(std::span<const std::int64_t> wide) {
  indices_.resize(wide.size());
  for (std::size_t e = 0; e < wide.size(); ++e) {
    if (wide[e] < 0 || wide[e] >= outputs_) {
      throw std::invalid_argument(fmt::format("targets: indices[{}] = {}, but D = {}", e, wide[e], outputs_));
    }
    indices_[e] = static_cast<Index>(wide[e]);
  }
}

template <class T>
void Targets<T>::name_one_each() {
  offsets_.resize(indices().size() + 1);
  std::iota(offsets_.begin(), offsets_.end(), std::int64_t{0});
}

namespace {

template <class T>
void add_targets_of(nb::module_& m, const char* name) {
  using Class = Targets<T>;
  nb::class_<Class>(m, name)
      .def(nb::init<Size, const std::optional<typename Class::Integers>&, const typename Class::Integers&,
                    std::optional<List<const T>>>(),
           nb::arg("outputs"), nb::arg("indptr").none().noconvert(), nb::arg("indices").noconvert(),
           nb::arg("values").none().noconvert())
      .def(
          "__init__",
          [](Class* self, Size outputs, std::uintptr_t address, std::size_t count) {
            new (self) Class(outputs, {reinterpret_cast<const std::int64_t*>(address), count});
          },
          nb::arg("outputs"), nb::arg("address"), nb::arg("count"))  // of int64, one for each example
      .def_prop_ro("examples", &Class::examples)
      .def_prop_ro("nonzeros", &Class::nonzeros)
      .def(
          "copy_indices",
          [](const Class& self, const List<Index>& out) {
            if (static_cast<Size>(out.size()) != self.nonzeros())
              throw std::invalid_argument("copy_indices: another size");
            std::ranges::copy(self.indices(), out.data());
          },
          nb::arg("out").noconvert());
}

}  // namespace

void add_targets(nb::module_& m) {
  add_targets_of<float>(m, "Targets32");
  add_targets_of<double>(m, "Targets64");
}

template class Targets<float>;
template class Targets<double>;

}  // namespace widehead::python
