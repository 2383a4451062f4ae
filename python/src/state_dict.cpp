#include "state_dict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace widehead::python {
namespace {

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
using ReadArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

const char* numpy_name(ElementType type) {
  switch (type) {
    case ElementType::u8: return "uint8";
    case ElementType::i32: return "int32";
    case ElementType::u32: return "uint32";
    case ElementType::i64: return "int64";
    case ElementType::u64: return "uint64";
    case ElementType::f32: return "float32";
    default: return "float64";
  }
}

nb::dlpack::dtype dtype_of(ElementType type) {
  switch (type) {
    case ElementType::u8: return nb::dtype<std::uint8_t>();
    case ElementType::i32: return nb::dtype<std::int32_t>();
    case ElementType::u32: return nb::dtype<std::uint32_t>();
    case ElementType::i64: return nb::dtype<std::int64_t>();
    case ElementType::u64: return nb::dtype<std::uint64_t>();
    case ElementType::f32: return nb::dtype<float>();
    default: return nb::dtype<double>();
  }
}

std::size_t bytes_of(ElementType type, const StateVisitor::Shape& shape) {
  std::size_t bytes = size_of(type);
  for (const auto extent : shape) bytes *= static_cast<std::size_t>(extent);
  return bytes;
}

class DictSaver final : public StateVisitor {
 public:
  explicit DictSaver(nb::dict& state) : state_(state) {}
  bool loading() const override { return false; }

 protected:
  Shape saved_shape(const std::string&, ElementType, const Shape&) override { throw std::logic_error("not loading"); }
  FileError error(const std::string& name, const std::string& why) const override {
    return FileError(fmt::format("state: {} {}", name, why));
  }
  /// Zeros are the system's own pages: what was never touched takes no memory in the copy either.
  void transfer(const StateVisitor::Array& array) override {
    char* out = make(array);
    const auto* data = static_cast<const char*>(array.data);
    if (!array.next_used) {
      if (const auto bytes = bytes_of(array.type, array.shape); bytes > 0) std::memcpy(out, data, bytes);
      return;
    }
    const auto column = bytes_of(array.type, {array.shape[1]});
    for (Size c = array.next_used(0); c < array.shape[0]; c = array.next_used(c + 1)) {
      std::memcpy(out + static_cast<std::size_t>(c) * column, data + static_cast<std::size_t>(c) * column, column);
    }
  }

 private:
  char* make(const StateVisitor::Array& array) {
    const nb::gil_scoped_acquire gil;
    nb::list shape;
    for (const auto extent : array.shape) shape.append(extent);
    const nb::object made = nb::module_::import_("numpy").attr("zeros")(nb::tuple(shape), numpy_name(array.type));
    state_[array.name.c_str()] = made;
    return static_cast<char*>(nb::cast<python::Array>(made).data());
  }

  nb::dict& state_;
};

class DictLoader final : public StateVisitor {
 public:
  explicit DictLoader(const nb::dict& state) : state_(state) {}
  bool loading() const override { return true; }

  void expect_all_loaded() const {
    const nb::gil_scoped_acquire gil;
    for (const auto& [name, value] : state_) {
      if (const auto text = nb::cast<std::string>(name); std::ranges::find(loaded_, text) == loaded_.end()) {
        throw error(text, "does not belong to this layer");
      }
    }
  }

 protected:
  FileError error(const std::string& name, const std::string& why) const override {
    return FileError(fmt::format("state: {} {}", name, why));
  }
  Shape saved_shape(const std::string& name, ElementType type, const Shape& extents) override {
    const nb::gil_scoped_acquire gil;
    const auto array = find(name);
    Shape shape;
    for (std::size_t k = 0; k < array.ndim(); ++k) shape.push_back(static_cast<std::int64_t>(array.shape(k)));
    bool matches = array.dtype() == dtype_of(type) && shape.size() == extents.size();
    for (std::size_t k = 0; matches && k < extents.size(); ++k) matches = extents[k] == any || extents[k] == shape[k];
    if (!matches) {
      throw error(name, fmt::format("has shape {} or another type, but {} {} is expected", to_string(shape),
                                    name_of(type), to_string(extents)));
    }
    return shape;
  }
  /// Pages of zeros are not written where the array is sparse.
  void transfer(const StateVisitor::Array& array) override {
    const char* data = nullptr;
    {
      const nb::gil_scoped_acquire gil;
      data = static_cast<const char*>(find(array.name).data());
    }
    static constexpr std::size_t page = 4096;
    static constexpr std::array<char, page> zeros{};
    const auto bytes = bytes_of(array.type, array.shape);
    for (std::size_t first = 0; first < bytes; first += page) {
      const auto count = std::min(page, bytes - first);
      if (array.is_sparse && std::memcmp(data + first, zeros.data(), count) == 0) continue;
      std::memcpy(static_cast<char*>(array.data) + first, data + first, count);
    }
    loaded_.push_back(array.name);
  }

 private:
  ReadArray find(const std::string& name) const {
    if (!state_.contains(name.c_str())) throw error(name, "is missing");
    try {
      return nb::cast<ReadArray>(state_[name.c_str()], false);
    } catch (const nb::cast_error&) {
      throw error(name, "is not a contiguous array");
    }
  }

  const nb::dict& state_;
  std::vector<std::string> loaded_;
};

}  // namespace

nb::dict save_to_dict(const std::function<void(StateVisitor&)>& visit) {
  const nb::gil_scoped_acquire gil;
  nb::dict state;
  {
    const nb::gil_scoped_release release;
    DictSaver saver(state);
    visit(saver);
  }
  return state;
}

void load_from_dict(const nb::dict& state, const std::function<void(StateVisitor&)>& visit) {
  DictLoader loader(state);
  visit(loader);
  loader.expect_all_loaded();
}

}  // namespace widehead::python
