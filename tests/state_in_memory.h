#pragma once
/// Saved states as a map of named arrays, to be looked at and spoilt.

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "widehead/errors.h"
#include "widehead/state.h"

namespace widehead::test {

struct SavedArray {
  ElementType type;
  StateVisitor::Shape shape;
  std::vector<char> bytes;

  friend bool operator==(const SavedArray&, const SavedArray&) = default;
};
using SavedState = std::map<std::string, SavedArray>;

inline std::size_t bytes_of(ElementType type, const StateVisitor::Shape& shape) {
  std::size_t bytes = size_of(type);
  for (const auto extent : shape) bytes *= static_cast<std::size_t>(extent);
  return bytes;
}

class MemorySaver final : public StateVisitor {
 public:
  bool loading() const override { return false; }
  SavedState state;

 protected:
  Shape saved_shape(const std::string&, ElementType, const Shape&) override { throw std::logic_error("not loading"); }
  void transfer(const Array& array) override {
    SavedArray saved{array.type, array.shape, {}};
    const auto* data = static_cast<const char*>(array.data);
    saved.bytes.resize(bytes_of(array.type, array.shape));
    if (!array.next_used) {
      if (!saved.bytes.empty()) std::memcpy(saved.bytes.data(), data, saved.bytes.size());
    } else {
      const auto column = bytes_of(array.type, {array.shape[1]});
      for (Size c = array.next_used(0); c < array.shape[0]; c = array.next_used(c + 1)) {
        const auto offset = static_cast<std::size_t>(c) * column;
        std::memcpy(saved.bytes.data() + offset, data + offset, column);
      }
    }
    if (!state.emplace(array.name, std::move(saved)).second) throw std::logic_error(array.name + " is listed twice");
  }
  FileError error(const std::string& name, const std::string& why) const override {
    return FileError(name + " " + why);
  }
};

class MemoryLoader final : public StateVisitor {
 public:
  explicit MemoryLoader(const SavedState& state) : state_(state) {}
  bool loading() const override { return true; }
  std::size_t loaded = 0;

 protected:
  Shape saved_shape(const std::string& name, ElementType type, const Shape& extents) override {
    const auto found = state_.find(name);
    if (found == state_.end()) throw error(name, "is missing");
    const auto& saved = found->second;
    bool fits = saved.type == type && saved.shape.size() == extents.size();
    for (std::size_t k = 0; fits && k < extents.size(); ++k) fits = extents[k] == any || extents[k] == saved.shape[k];
    if (!fits) throw error(name, "has shape " + to_string(saved.shape) + ", not " + to_string(extents));
    return saved.shape;
  }
  void transfer(const Array& array) override {
    const auto& bytes = state_.at(array.name).bytes;
    constexpr std::size_t chunk = 64;  // as pages are: zeros are not written where the array is sparse
    for (std::size_t first = 0; first < bytes.size(); first += chunk) {
      const std::vector<char> part(bytes.begin() + static_cast<std::ptrdiff_t>(first),
                                   bytes.begin() + static_cast<std::ptrdiff_t>(std::min(first + chunk, bytes.size())));
      if (array.is_sparse && part == std::vector<char>(part.size())) continue;
      std::memcpy(static_cast<char*>(array.data) + first, part.data(), part.size());
    }
    ++loaded;
  }
  FileError error(const std::string& name, const std::string& why) const override {
    return FileError(name + " " + why);
  }

 private:
  const SavedState& state_;
};

template <class Object>
SavedState save(Object& object) {
  MemorySaver saver;
  object.visit_state(saver);
  return std::move(saver.state);
}

/// Loads all of the state, no more and no less.
template <class Object>
void load(const SavedState& state, Object& object) {
  MemoryLoader loader(state);
  object.visit_state(loader);
  if (loader.loaded != state.size()) throw FileError("arrays are left over");
}

}  // namespace widehead::test
