#include "widehead/model/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "file.h"
#include "widehead/errors.h"

namespace widehead {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and data are written as they lie");

using Json = nlohmann::ordered_json;
using Tensor = SafetensorsFile::Tensor;
using Shape = StateVisitor::Shape;

constexpr const char* metadata_key = "__metadata__";
constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t data_alignment = 64;
constexpr std::uint64_t largest_header = 100'000'000;  // as the format's own library has it

constexpr std::array<std::pair<ElementType, std::string_view>, 7> dtypes = {{{ElementType::u8, "U8"},
                                                                             {ElementType::i32, "I32"},
                                                                             {ElementType::u32, "U32"},
                                                                             {ElementType::i64, "I64"},
                                                                             {ElementType::u64, "U64"},
                                                                             {ElementType::f32, "F32"},
                                                                             {ElementType::f64, "F64"}}};

std::string_view dtype_of(ElementType type) {
  return std::find_if(dtypes.begin(), dtypes.end(), [&](const auto& pair) { return pair.first == type; })->second;
}

/// Bytes of an array; false where they are more than a file can have.
bool measure(ElementType type, const Shape& shape, std::uint64_t& bytes) {
  bytes = size_of(type);
  for (const auto extent : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) return false;
  }
  return bytes <= INT64_MAX;
}

// ── saving ──────────────────────────────────────────────────────────────────────────────────────

/// A visitor that is not loading.
class Saver : public StateVisitor {
 public:
  explicit Saver(std::filesystem::path path) : path_(std::move(path)) {}
  bool loading() const final { return false; }

 protected:
  Shape saved_shape(const std::string& name, ElementType, const Shape&) final {
    throw std::logic_error("state: '" + name + "' is asked for while saving");
  }
  FileError error(const std::string& name, const std::string& why) const final {
    return FileError(fmt::format("{}: tensor '{}' {}", path_.string(), name, why));
  }

 private:
  std::filesystem::path path_;
};

/// The first pass: names and shapes.
class Measurer final : public Saver {
 public:
  using Saver::Saver;

  /// The tensors with their places, larger elements first.
  std::vector<Tensor> laid_out() && {
    std::stable_sort(tensors_.begin(), tensors_.end(),
                     [](const Tensor& a, const Tensor& b) { return size_of(a.type) > size_of(b.type); });
    std::uint64_t offset = 0;
    for (auto& tensor : tensors_) {
      tensor.offset = offset;
      offset += tensor.bytes;
    }
    return std::move(tensors_);
  }

 protected:
  void transfer(const Array& array) override {
    if (array.name == metadata_key || !names_.insert(array.name).second) {
      throw std::invalid_argument(fmt::format("state: '{}' is listed twice, or is not a name", array.name));
    }
    Tensor tensor{array.name, array.type, array.shape, 0, 0};
    if (!measure(tensor.type, tensor.shape, tensor.bytes)) {
      throw std::invalid_argument(fmt::format("state: '{}' is too large", array.name));
    }
    tensors_.push_back(std::move(tensor));
  }

 private:
  std::vector<Tensor> tensors_;
  std::set<std::string> names_;
};

/// The second: data, to the places of the first.
class Writer final : public Saver {
 public:
  Writer(const std::filesystem::path& path, File& file, const std::vector<Tensor>& tensors) : Saver(path), file_(file) {
    for (const auto& tensor : tensors) places_.emplace(tensor.name, &tensor);
  }

 protected:
  void transfer(const Array& array) override {
    const auto found = places_.find(array.name);
    if (found == places_.end() || found->second->type != array.type || found->second->shape != array.shape) {
      throw std::logic_error(fmt::format("state: '{}' is not what it was when it was measured", array.name));
    }
    const Tensor& tensor = *found->second;
    const std::span<const char> data(static_cast<const char*>(array.data), tensor.bytes);
    if (array.next_used) {
      write_used(array, tensor, data);
    } else {
      file_.write_sparse(tensor.offset, data);
    }
  }

 private:
  /// Columns in use; those that share a page of the file are written together.
  void write_used(const Array& array, const Tensor& tensor, std::span<const char> data) {
    constexpr std::uint64_t page = 4096;
    const Size count = array.shape[0];
    if (count == 0 || data.empty()) return;
    const std::uint64_t column = tensor.bytes / static_cast<std::uint64_t>(count);
    for (Size next = array.next_used(0); next < count;) {
      const auto first = static_cast<std::uint64_t>(next) * column;
      std::uint64_t last = first;
      do {
        last = (static_cast<std::uint64_t>(next) + 1) * column;
        next = array.next_used(next + 1);
      } while (next < count &&
               (tensor.offset + static_cast<std::uint64_t>(next) * column) / page <= (tensor.offset + last) / page);
      file_.write_sparse(tensor.offset + first, data.subspan(first, last - first));
    }
  }

  File& file_;
  std::unordered_map<std::string_view, const Tensor*> places_;
};

/// The length and the header, so long that data after it are aligned.
std::string make_header(const std::vector<Tensor>& tensors, const Metadata& metadata) {
  Json json = Json::object();
  if (!metadata.empty()) json[metadata_key] = metadata;
  std::string text;
  try {
    for (const auto& tensor : tensors) {
      json[tensor.name] = {{"dtype", dtype_of(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.offset, tensor.offset + tensor.bytes}}};
    }
    text = json.dump();
  } catch (const Json::exception& error) {
    throw std::invalid_argument(fmt::format("state: names and metadata must be UTF-8: {}", error.what()));
  }
  const std::uint64_t end = length_bytes + text.size();
  text.append((data_alignment - end % data_alignment) % data_alignment, ' ');
  if (text.size() > largest_header) throw std::invalid_argument("state: the header would exceed 100 MB");
  const std::uint64_t length = text.size();
  std::string header(length_bytes, '\0');
  std::memcpy(header.data(), &length, length_bytes);
  return header + text;
}

// ── the header of a file ────────────────────────────────────────────────────────────────────────

/// JSON without repeated keys and no deeper than a header is.
Json parse_header(const std::string& text) {
  constexpr int deepest = 4;
  std::vector<std::set<std::string>> keys(deepest + 2);
  return Json::parse(text, [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > deepest) throw FileError("the header is nested too deeply");
    if (event == Json::parse_event_t::object_start) keys[static_cast<std::size_t>(depth) + 1].clear();
    if (event == Json::parse_event_t::key &&
        !keys[static_cast<std::size_t>(depth)].insert(parsed.get<std::string>()).second) {
      throw FileError(fmt::format("'{}' is there twice", parsed.get<std::string>()));
    }
    return true;
  });
}

std::vector<std::uint64_t> naturals(const Json& json, const char* what) {
  if (!json.is_array()) throw FileError(fmt::format("{} is not a list", what));
  std::vector<std::uint64_t> values;
  for (const auto& value : json) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX) {
      throw FileError(fmt::format("{} holds {}", what, value.dump()));
    }
    values.push_back(value.get<std::uint64_t>());
  }
  return values;
}

Tensor parse_tensor(const std::string& name, const Json& json) {
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!json.is_object() || !json.contains(key) || json.size() != 3) {
      throw FileError("should have dtype, shape and data_offsets, no more and no less");
    }
  }
  const auto* const dtype = std::find_if(dtypes.begin(), dtypes.end(),
                                         [&](const auto& pair) { return json["dtype"] == std::string(pair.second); });
  if (dtype == dtypes.end()) {
    throw FileError(
        fmt::format("has dtype {}, which is not among U8, I32, U32, I64, U64, F32, F64", json["dtype"].dump()));
  }
  Tensor tensor{name, dtype->first, {}, 0, 0};
  for (const auto extent : naturals(json["shape"], "shape")) tensor.shape.push_back(static_cast<std::int64_t>(extent));
  const auto offsets = naturals(json["data_offsets"], "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    throw FileError(fmt::format("has data_offsets [{}]", fmt::join(offsets, ", ")));
  }
  if (!measure(tensor.type, tensor.shape, tensor.bytes) || tensor.bytes != offsets[1] - offsets[0]) {
    throw FileError(fmt::format("is {} {}, but has {} bytes", name_of(tensor.type), to_string(tensor.shape),
                                offsets[1] - offsets[0]));
  }
  tensor.offset = offsets[0];
  return tensor;
}

/// Tensors in the order of their data, which must follow each other from 0 to `bytes`.
void check_places(std::vector<Tensor>& tensors, std::uint64_t bytes) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  std::uint64_t end = 0;
  for (const auto& tensor : tensors) {
    if (tensor.offset != end) {
      throw FileError(
          fmt::format("tensor '{}' begins at {}, but the one before it ends at {}", tensor.name, tensor.offset, end));
    }
    end += tensor.bytes;
  }
  if (end != bytes) throw FileError(fmt::format("the tensors have {} bytes, but the file has {} of data", end, bytes));
}

// ── loading ─────────────────────────────────────────────────────────────────────────────────────

class Loader final : public StateVisitor {
 public:
  Loader(const File& file, std::span<const Tensor> tensors) : file_(file) {
    for (const auto& tensor : tensors) tensors_.emplace(tensor.name, &tensor);
  }
  bool loading() const override { return true; }

  void expect_nothing_left() const {
    if (tensors_.empty()) return;
    const auto first = std::min_element(tensors_.begin(), tensors_.end());
    throw error(std::string(first->first), fmt::format("and {} more are not expected here", tensors_.size() - 1));
  }

 protected:
  Shape saved_shape(const std::string& name, ElementType type, const Shape& extents) override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw error(name, "is missing");
    const Tensor& tensor = *found->second;
    bool fits = tensor.type == type && tensor.shape.size() == extents.size();
    for (std::size_t k = 0; fits && k < extents.size(); ++k) fits = extents[k] == any || extents[k] == tensor.shape[k];
    if (!fits) {
      std::vector<std::string> wanted;
      for (const auto extent : extents) wanted.push_back(extent == any ? "any" : std::to_string(extent));
      throw error(name, fmt::format("is {} {}, but {} {{{}}} was expected", name_of(tensor.type),
                                    to_string(tensor.shape), name_of(type), fmt::join(wanted, ", ")));
    }
    return tensor.shape;
  }
  void transfer(const Array& array) override {
    const auto found = tensors_.find(array.name);
    const Tensor& tensor = *found->second;
    file_.read_sparse(tensor.offset, {static_cast<char*>(array.data), tensor.bytes}, array.is_sparse);
    tensors_.erase(found);  // a name asked for twice is missing
  }
  FileError error(const std::string& name, const std::string& why) const override {
    return FileError(fmt::format("{}: tensor '{}' {}", file_.path().string(), name, why));
  }

 private:
  const File& file_;
  std::unordered_map<std::string_view, const Tensor*> tensors_;
};

}  // namespace

TensorWriter::TensorWriter(const std::string& path, const std::string& name, Size rows, Size dim,
                           const Metadata& metadata)
    : RowWriter(
          path,
          make_header({{name, ElementType::f32, {rows, dim}, 0, static_cast<std::uint64_t>(rows * dim) * 4}}, metadata),
          rows, dim) {}

void save_state(const std::filesystem::path& path, const VisitState& visit, const Metadata& metadata) {
  Measurer measurer(path);
  visit(measurer);
  auto tensors = std::move(measurer).laid_out();
  const auto header = make_header(tensors, metadata);
  for (auto& tensor : tensors) tensor.offset += header.size();

  const std::filesystem::path temporary = path.string() + fmt::format(".{}.tmp", getpid());
  try {
    auto file = File::create(temporary);
    file.resize(tensors.empty() ? header.size() : tensors.back().offset + tensors.back().bytes);
    file.write(0, header);
    Writer writer(path, file, tensors);
    visit(writer);
    file.sync();
    rename_durably(temporary, path);
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(std::make_shared<const File>(File::open(path))) {
  try {
    const std::uint64_t size = file_->size();
    if (size < length_bytes) throw FileError(fmt::format("has {} bytes, too few for a safetensors file", size));
    std::uint64_t length = 0;
    file_->read(0, {reinterpret_cast<char*>(&length), length_bytes});
    if (length > largest_header || length > size - length_bytes) {
      throw FileError(fmt::format("its header would have {} bytes, but the file has {} (and at most {} are allowed)",
                                  length, size, largest_header));
    }
    std::string text(length, '\0');
    file_->read(length_bytes, text);
    if (text.empty() || text.front() != '{') throw FileError("its header does not begin with {");
    const Json header = parse_header(text);
    for (const auto& [name, json] : header.items()) {
      if (name == metadata_key) {
        if (!json.is_object()) throw FileError("__metadata__ is not an object");
        for (const auto& [key, value] : json.items()) {
          if (!value.is_string()) throw FileError(fmt::format("__metadata__ '{}' is not a text", key));
          metadata_[key] = value.get<std::string>();
        }
        continue;
      }
      try {
        tensors_.push_back(parse_tensor(name, json));
      } catch (const FileError& error) {
        throw FileError(fmt::format("tensor '{}' {}", name, error.what()));
      }
    }
    check_places(tensors_, size - length_bytes - length);
    for (auto& tensor : tensors_) tensor.offset += length_bytes + length;
  } catch (const Json::exception& error) {
    throw FileError(fmt::format("{}: its header is not JSON: {}", path.string(), error.what()));
  } catch (const FileError& error) {
    throw FileError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

void SafetensorsFile::load(const VisitState& visit) const {
  Loader loader(*file_, tensors_);
  visit(loader);
  loader.expect_nothing_left();
}

void SafetensorsFile::load_part(const VisitState& visit) const {
  Loader loader(*file_, tensors_);
  visit(loader);
}

Metadata load_state(const std::filesystem::path& path, const VisitState& visit) {
  const SafetensorsFile file(path);
  file.load(visit);
  return file.metadata();
}

}  // namespace widehead
