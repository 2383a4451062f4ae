#pragma once
/// States (state.h) in files of the safetensors format, which NumPy, PyTorch and others read:
///   8 bytes      N, the length of the header, little-endian
///   N bytes      JSON, padded with spaces: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …,
///                "__metadata__": {"key": "text", …}}; offsets count from the end of the header
///   the rest     the arrays, one after the other, without gaps
/// Arrays of larger elements come first, so that every one is aligned to its elements; the data begin at a multiple
/// of 64. Pages of zeros are not written: a state that is mostly untouched makes a file that is mostly a hole.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "widehead/model/row_writer.h"
#include "widehead/state.h"

namespace widehead {

class File;

using VisitState = std::function<void(StateVisitor&)>;
using Metadata = std::map<std::string, std::string>;

/// Writes what `visit` lists to the file, wholly or not at all: a temporary takes the name when it is on the disk.
/// `visit` is called twice, to measure and to write, and must list the same.
/// @param sparse_path  where sparse blocks go, to a file of their own; empty for no such file. Of the two files the
///                     first may be there without the second, where the second fails.
/// @throws std::invalid_argument for a name listed twice, std::system_error where the system refuses
void save_state(const std::filesystem::path& path, const VisitState& visit, const Metadata& metadata = {},
                const std::filesystem::path& sparse_path = {});

/// A file of one float32 array of shape (rows, d), written block by block: it may be larger than memory.
class TensorWriter : public RowWriter<float> {
 public:
  TensorWriter(const std::string& path, const std::string& name, Size rows, Size dim, const Metadata& metadata = {});
};

/// A safetensors file, its header checked: every array lies within the file and nothing else does.
class SafetensorsFile {
 public:
  struct Tensor {
    std::string name;
    ElementType type;
    StateVisitor::Shape shape;
    std::uint64_t offset;  ///< in the file
    std::uint64_t bytes;
  };

  /// @throws FileError for anything but a safetensors file of our element types; std::system_error
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  const Metadata& metadata() const { return metadata_; }
  std::span<const Tensor> tensors() const { return tensors_; }  ///< as they lie in the file

  /// Loads what `visit` lists, which must be all there is.
  /// @param sparse  the state's other file, where it has two
  /// @throws FileError naming what is missing, does not fit, or is left over
  void load(const VisitState& visit, const SafetensorsFile* sparse = nullptr) const;
  /// The same where the files may hold more.
  void load_part(const VisitState& visit, const SafetensorsFile* sparse = nullptr) const;

 private:
  class Loader;

  std::shared_ptr<const File> file_;
  Metadata metadata_;
  std::vector<Tensor> tensors_;
};

/// Loads a state, and returns the metadata saved with it.
Metadata load_state(const std::filesystem::path& path, const VisitState& visit,
                    const std::filesystem::path& sparse_path = {});

}  // namespace widehead
