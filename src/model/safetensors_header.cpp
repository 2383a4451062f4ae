#include "safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "file.h"
#include "widehead/errors.h"

namespace widehead {
namespace {

using Json = nlohmann::ordered_json;
using Tensor = SafetensorsFile::Tensor;
using Shape = StateVisitor::Shape;

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
  if (!measure_tensor(tensor.type, tensor.shape, tensor.bytes) || tensor.bytes != offsets[1] - offsets[0]) {
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

}  // namespace

bool measure_tensor(ElementType type, const Shape& shape, std::uint64_t& bytes) {
  bytes = size_of(type);
  for (const auto extent : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) return false;
  }
  return bytes <= INT64_MAX;
}

std::string make_safetensors_header(const std::vector<Tensor>& tensors, const Metadata& metadata) {
  Json json = Json::object();
  if (!metadata.empty()) json[safetensors_metadata_key] = metadata;
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

SafetensorsHeader read_safetensors_header(const File& file) {
  SafetensorsHeader header;
  try {
    const std::uint64_t size = file.size();
    if (size < length_bytes) throw FileError(fmt::format("has {} bytes, too few for a safetensors file", size));
    std::uint64_t length = 0;
    file.read(0, {reinterpret_cast<char*>(&length), length_bytes});
    if (length > largest_header || length > size - length_bytes) {
      throw FileError(fmt::format("its header would have {} bytes, but the file has {} (and at most {} are allowed)",
                                  length, size, largest_header));
    }
    std::string text(length, '\0');
    file.read(length_bytes, text);
    if (text.empty() || text.front() != '{') throw FileError("its header does not begin with {");
    const Json document = parse_header(text);
    for (const auto& [name, json] : document.items()) {
      if (name == safetensors_metadata_key) {
        if (!json.is_object()) throw FileError("__metadata__ is not an object");
        for (const auto& [key, value] : json.items()) {
          if (!value.is_string()) throw FileError(fmt::format("__metadata__ '{}' is not a text", key));
          header.metadata[key] = value.get<std::string>();
        }
        continue;
      }
      try {
        header.tensors.push_back(parse_tensor(name, json));
      } catch (const FileError& error) {
        throw FileError(fmt::format("tensor '{}' {}", name, error.what()));
      }
    }
    check_places(header.tensors, size - length_bytes - length);
    for (auto& tensor : header.tensors) tensor.offset += length_bytes + length;
    return header;
  } catch (const Json::exception& error) {
    throw FileError(fmt::format("{}: its header is not JSON: {}", file.path().string(), error.what()));
  } catch (const FileError& error) {
    throw FileError(fmt::format("{}: {}", file.path().string(), error.what()));
  }
}

}  // namespace widehead
