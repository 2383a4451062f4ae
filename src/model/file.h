#pragma once
/// Files as the model keeps them: by descriptor, with holes where they are zero, and on the disk when they are
/// said to be. What the system refuses is a std::system_error that names the path.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace widehead {

[[noreturn]] void throw_system_error(const std::filesystem::path& path, const char* what);

class File {
 public:
  static File open(const std::filesystem::path& path);            ///< to read; regular files only
  static File create(const std::filesystem::path& path);          ///< to write; emptied
  static File open_or_create(const std::filesystem::path& path);  ///< to read and write
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  std::uint64_t size() const;
  void resize(std::uint64_t bytes);
  /// @throws FileError where the file ends before
  void read(std::uint64_t offset, std::span<char> out) const;
  void write(std::uint64_t offset, std::span<const char> in);
  /// Until it is on the disk.
  void sync();

  /// Writes to a part of the file that is one hole, and leaves holes where whole pages are zero.
  void write_sparse(std::uint64_t offset, std::span<const char> in);
  /// Reads without touching pages of `out` that are zero and stay so. Where `out` is known to be zero throughout,
  /// it is not even looked at.
  void read_sparse(std::uint64_t offset, std::span<char> out, bool out_is_zero) const;
  /// XXH3, 128 bits, of the first `bytes`, as 32 hexadecimal digits: what `xxhsum -H2` prints. Holes are not read.
  std::string checksum(std::uint64_t bytes) const;

 private:
  File(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  /// Calls data(first, last) and hole(first, last) for the parts of [first, last) in order.
  template <class Data, class Hole>
  void for_each_part(std::uint64_t first, std::uint64_t last, const Data& data, const Hole& hole) const;

  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Until the names in a folder are on the disk.
void sync_folder(const std::filesystem::path& folder);

/// Renames, over what was there, and syncs the folder.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace widehead
