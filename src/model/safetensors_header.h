#pragma once
/// The header of a safetensors file, as text and as a list of arrays.

#include <cstdint>
#include <string>
#include <vector>

#include "widehead/model/safetensors.h"

namespace widehead {

struct SafetensorsHeader {
  std::vector<SafetensorsFile::Tensor> tensors;  ///< as they lie in the file, with their places in it
  Metadata metadata;
};

inline constexpr const char* safetensors_metadata_key = "__metadata__";  ///< no name for an array

/// Bytes of an array; false where they are more than a file can have.
bool measure_tensor(ElementType type, const StateVisitor::Shape& shape, std::uint64_t& bytes);

/// The length and the header, so long that data after it are aligned. Offsets are from the end of the header.
/// @throws std::invalid_argument for names that are not UTF-8
std::string make_safetensors_header(const std::vector<SafetensorsFile::Tensor>& tensors, const Metadata& metadata);

/// @throws FileError naming the file for anything but the header of a safetensors file of that size
SafetensorsHeader read_safetensors_header(const File& file);

}  // namespace widehead
