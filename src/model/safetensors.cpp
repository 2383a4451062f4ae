#include "widehead/model/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <list>
#include <optional>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "file.h"
#include "safetensors_header.h"
#include "widehead/errors.h"

namespace widehead {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and data are written as they lie");

using Tensor = SafetensorsFile::Tensor;
using Shape = StateVisitor::Shape;

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
  /// @param apart  whether sparse blocks have a file of their own
  Measurer(const std::filesystem::path& path, bool apart) : Saver(path), apart_(apart) {}

  /// The tensors of one of the two files with their places, larger elements first.
  std::vector<Tensor> laid_out(bool sparse) const {
    std::vector<Tensor> tensors;
    for (const auto& [tensor, is_sparse] : tensors_) {
      if (is_sparse == sparse) tensors.push_back(tensor);
    }
    std::stable_sort(tensors.begin(), tensors.end(),
                     [](const Tensor& a, const Tensor& b) { return size_of(a.type) > size_of(b.type); });
    std::uint64_t offset = 0;
    for (auto& tensor : tensors) {
      tensor.offset = offset;
      offset += tensor.bytes;
    }
    return tensors;
  }

 protected:
  void transfer(const Array& array) override {
    if (array.name == safetensors_metadata_key || !names_.insert(array.name).second) {
      throw std::invalid_argument(fmt::format("state: '{}' is listed twice, or is not a name", array.name));
    }
    Tensor tensor{array.name, array.type, array.shape, 0, 0};
    if (!measure_tensor(tensor.type, tensor.shape, tensor.bytes)) {
      throw std::invalid_argument(fmt::format("state: '{}' is too large", array.name));
    }
    tensors_.emplace_back(std::move(tensor), apart_ && array.is_sparse);
  }

 private:
  bool apart_;
  std::vector<std::pair<Tensor, bool>> tensors_;  // and whether it goes to the other file
  std::set<std::string> names_;
};

/// The second: data, to the places of the first.
class Writer final : public Saver {
 public:
  explicit Writer(const std::filesystem::path& path) : Saver(path) {}
  void add(File& file, const std::vector<Tensor>& tensors) {
    for (const auto& tensor : tensors) places_.emplace(tensor.name, Place{&file, &tensor});
  }

 protected:
  void transfer(const Array& array) override {
    const auto found = places_.find(array.name);
    if (found == places_.end() || found->second.tensor->type != array.type ||
        found->second.tensor->shape != array.shape) {
      throw std::logic_error(fmt::format("state: '{}' is not what it was when it was measured", array.name));
    }
    const auto& [file, place] = found->second;
    const Tensor& tensor = *place;
    const std::span<const char> data(static_cast<const char*>(array.data), tensor.bytes);
    if (array.next_used) {
      write_used(*file, array, tensor, data);
    } else {
      file->write_sparse(tensor.offset, data);
    }
  }

 private:
  /// Columns in use; those that share a page of the file are written together.
  static void write_used(File& file, const Array& array, const Tensor& tensor, std::span<const char> data) {
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
      file.write_sparse(tensor.offset + first, data.subspan(first, last - first));
    }
  }

  struct Place {
    File* file;
    const Tensor* tensor;
  };
  std::unordered_map<std::string_view, Place> places_;
};

}  // namespace

// ── loading ─────────────────────────────────────────────────────────────────────────────────────

class SafetensorsFile::Loader final : public StateVisitor {
 public:
  Loader(const SafetensorsFile& file, const SafetensorsFile* sparse) : path_(file.file_->path()) {
    for (const SafetensorsFile* source : {&file, sparse}) {
      if (source == nullptr) continue;
      for (const auto& tensor : source->tensors_) {
        if (!tensors_.emplace(tensor.name, Place{source->file_.get(), &tensor}).second) {
          throw FileError(fmt::format("{}: tensor '{}' is in {}, too", source->file_->path().string(), tensor.name,
                                      path_.string()));
        }
      }
    }
  }
  bool loading() const override { return true; }

  void expect_nothing_left() const {
    if (tensors_.empty()) return;
    const auto first = std::min_element(tensors_.begin(), tensors_.end(),
                                        [](const auto& a, const auto& b) { return a.first < b.first; });
    throw error(std::string(first->first), fmt::format("and {} more are not expected here", tensors_.size() - 1));
  }

 protected:
  Shape saved_shape(const std::string& name, ElementType type, const Shape& extents) override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw error(name, "is missing");
    const Tensor& tensor = *found->second.tensor;
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
    const auto& [file, tensor] = found->second;
    file->read_sparse(tensor->offset, {static_cast<char*>(array.data), tensor->bytes}, array.is_sparse);
    tensors_.erase(found);  // a name asked for twice is missing
  }
  FileError error(const std::string& name, const std::string& why) const override {
    const auto found = tensors_.find(name);
    const auto& path = found == tensors_.end() ? path_ : found->second.file->path();
    return FileError(fmt::format("{}: tensor '{}' {}", path.string(), name, why));
  }

 private:
  struct Place {
    const File* file;
    const Tensor* tensor;
  };
  std::filesystem::path path_;
  std::unordered_map<std::string_view, Place> tensors_;
};

TensorWriter::TensorWriter(const std::string& path, const std::string& name, Size rows, Size dim,
                           const Metadata& metadata)
    : RowWriter(path,
                make_safetensors_header(
                    {{name, ElementType::f32, {rows, dim}, 0, static_cast<std::uint64_t>(rows * dim) * 4}}, metadata),
                rows, dim) {}

namespace {

/// A file that takes its name when it is complete and is gone otherwise.
class StateFile {
 public:
  StateFile(const std::filesystem::path& path, std::vector<Tensor> tensors)
      : path_(path), temporary_(path.string() + fmt::format(".{}.tmp", getpid())), tensors_(std::move(tensors)) {}
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;
  ~StateFile() {
    if (!is_complete_) unlink(temporary_.c_str());
  }

  /// Makes the file in its full size, with its header.
  void begin(const Metadata& metadata) {
    const auto header = make_safetensors_header(tensors_, metadata);
    for (auto& tensor : tensors_) tensor.offset += header.size();
    file_.emplace(File::create(temporary_));
    file_->resize(tensors_.empty() ? header.size() : tensors_.back().offset + tensors_.back().bytes);
    file_->write(0, header);
  }
  void add_to(Writer& writer) { writer.add(*file_, tensors_); }
  void sync() { file_->sync(); }
  void take_name() {
    rename_durably(temporary_, path_);
    is_complete_ = true;
  }

 private:
  std::filesystem::path path_, temporary_;
  std::vector<Tensor> tensors_;  // with their places in the file
  std::optional<File> file_;
  bool is_complete_ = false;
};

}  // namespace

void save_state(const std::filesystem::path& path, const VisitState& visit, const Metadata& metadata,
                const std::filesystem::path& sparse_path) {
  const bool apart = !sparse_path.empty();
  Measurer measurer(path, apart);
  visit(measurer);
  std::list<StateFile> files;
  files.emplace_back(path, measurer.laid_out(false));
  if (apart) files.emplace_back(sparse_path, measurer.laid_out(true));
  Writer writer(path);
  for (auto& file : files) {
    file.begin(metadata);
    file.add_to(writer);
  }
  visit(writer);
  for (auto& file : files) file.sync();
  for (auto& file : files) file.take_name();
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(std::make_shared<const File>(File::open(path))) {
  auto header = read_safetensors_header(*file_);
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
}

const std::filesystem::path& SafetensorsFile::path() const { return file_->path(); }

void SafetensorsFile::load(const VisitState& visit, const SafetensorsFile* sparse) const {
  Loader loader(*this, sparse);
  visit(loader);
  loader.expect_nothing_left();
}

void SafetensorsFile::load_part(const VisitState& visit, const SafetensorsFile* sparse) const {
  Loader loader(*this, sparse);
  visit(loader);
}

Metadata load_state(const std::filesystem::path& path, const VisitState& visit,
                    const std::filesystem::path& sparse_path) {
  const SafetensorsFile file(path);
  if (sparse_path.empty()) {
    file.load(visit);
  } else {
    const SafetensorsFile sparse(sparse_path);
    file.load(visit, &sparse);
  }
  return file.metadata();
}

}  // namespace widehead
