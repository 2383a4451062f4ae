#include "file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "widehead/errors.h"

namespace widehead {
namespace {

constexpr std::uint64_t page = 4096;               // what a hole is made of
constexpr std::uint64_t chunk = 256 * page;        // read at once
constexpr std::uint64_t largest_write = 1U << 30;  // the system takes no more than 2³¹ at once

/// Zeros to compare with and to hash.
const std::vector<char>& zeros() {
  static const std::vector<char> bytes(chunk);
  return bytes;
}

bool is_zero(std::span<const char> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += chunk) {
    const auto part = bytes.subspan(at, std::min<std::size_t>(chunk, bytes.size() - at));
    if (std::memcmp(part.data(), zeros().data(), part.size()) != 0) return false;
  }
  return true;
}

/// The end of the page that `offset` of the file lies in, or `last` if that comes first.
std::uint64_t end_of_page(std::uint64_t offset, std::uint64_t last) {
  return std::min(last, (offset / page + 1) * page);
}

}  // namespace

void throw_system_error(const std::filesystem::path& path, const char* what) {
  throw std::system_error(errno, std::generic_category(), path.string() + ": " + what);
}

File File::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not make us wait
  if (descriptor < 0) throw_system_error(path, "cannot open");
  File file(path, descriptor);
  struct stat status {};
  if (fstat(descriptor, &status) != 0) throw_system_error(path, "cannot look at it");
  if (!S_ISREG(status.st_mode)) throw FileError(path.string() + ": is not a regular file");
  return file;
}

File File::create(const std::filesystem::path& path) {
  auto file = open_or_create(path);
  file.resize(0);
  return file;
}

File File::open_or_create(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) throw_system_error(path, "cannot create");
  return {path, descriptor};
}

File::File(File&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::uint64_t File::size() const {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0) throw_system_error(path_, "cannot look at it");
  return static_cast<std::uint64_t>(status.st_size);
}

void File::resize(std::uint64_t bytes) {
  if (ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) throw_system_error(path_, "cannot set its size");
}

void File::read(std::uint64_t offset, std::span<char> out) const {
  while (!out.empty()) {
    const auto part = out.first(std::min<std::size_t>(out.size(), largest_write));
    const ssize_t got = pread(descriptor_, part.data(), part.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_system_error(path_, "cannot read");
    if (got == 0) {
      throw FileError(
          fmt::format("{}: ends at byte {}, but {} more were expected", path_.string(), offset, out.size()));
    }
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

void File::write(std::uint64_t offset, std::span<const char> in) {
  while (!in.empty()) {
    const auto part = in.first(std::min<std::size_t>(in.size(), largest_write));
    const ssize_t put = pwrite(descriptor_, part.data(), part.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_system_error(path_, "cannot write");
    in = in.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
}

void File::sync() {
  if (fsync(descriptor_) != 0) throw_system_error(path_, "cannot bring it to the disk");
}

// ── holes ───────────────────────────────────────────────────────────────────────────────────────

void File::write_sparse(std::uint64_t offset, std::span<const char> in) {
  const std::uint64_t last = offset + in.size();
  const auto bytes = [&](std::uint64_t from, std::uint64_t to) { return in.subspan(from - offset, to - from); };
  std::uint64_t pending = offset;  // from here on nothing is written yet
  for (std::uint64_t at = offset; at < last;) {
    const std::uint64_t end = end_of_page(at, last);
    if (is_zero(bytes(at, end))) {
      write(pending, bytes(pending, at));
      pending = end;
    }
    at = end;
  }
  write(pending, bytes(pending, last));
}

/// A system without SEEK_DATA calls everything data.
template <class Data, class Hole>
void File::for_each_part(std::uint64_t first, std::uint64_t last, const Data& data, const Hole& hole) const {
  while (first < last) {
    const off_t start = lseek(descriptor_, static_cast<off_t>(first), SEEK_DATA);
    if (start < 0 && errno != ENXIO) return data(first, last);
    const auto data_begin = start < 0 ? last : std::min(last, static_cast<std::uint64_t>(start));
    if (data_begin > first) hole(first, data_begin);
    if (data_begin == last) return;
    const off_t stop = lseek(descriptor_, static_cast<off_t>(data_begin), SEEK_HOLE);
    const auto data_end = stop < 0 ? last : std::min(last, static_cast<std::uint64_t>(stop));
    data(data_begin, data_end);
    first = data_end;
  }
}

void File::read_sparse(std::uint64_t offset, std::span<char> out, bool out_is_zero) const {
  if (out.size() < page && !out_is_zero) return read(offset, out);
  const auto place = [&](std::uint64_t from, std::uint64_t to) { return out.subspan(from - offset, to - from); };
  const auto clear = [&](std::uint64_t from, std::uint64_t to) {
    if (out_is_zero) return;
    for (std::uint64_t at = from; at < to; at = end_of_page(at, to)) {
      const auto part = place(at, end_of_page(at, to));
      if (!is_zero(part)) std::fill(part.begin(), part.end(), '\0');
    }
  };
  if (size() < offset + out.size()) {  // what lies beyond the end is no hole
    throw FileError(
        fmt::format("{}: ends at byte {}, but {} were expected", path_.string(), size(), offset + out.size()));
  }
  const auto into_page = reinterpret_cast<std::uintptr_t>(out.data()) % page;  // where `out` begins
  std::vector<char> buffer(std::min<std::size_t>(chunk, out.size()));
  for_each_part(
      offset, offset + out.size(),
      [&](std::uint64_t from, std::uint64_t to) {
        while (from < to) {
          const auto bytes = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), to - from));
          read(from, bytes);
          for (std::uint64_t at = from; at < from + bytes.size();) {  // by pages of `out`, not of the file
            const std::uint64_t end =
                offset + end_of_page(at - offset + into_page, from + bytes.size() - offset + into_page) - into_page;
            const auto part = bytes.subspan(at - from, end - at);
            if (is_zero(part)) {
              clear(at, end);
            } else {
              std::memcpy(place(at, end).data(), part.data(), part.size());
            }
            at = end;
          }
          from += bytes.size();
        }
      },
      clear);
}

std::string File::checksum(std::uint64_t bytes) const {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  if (state == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state.get());
  if (size() < bytes) {
    throw FileError(fmt::format("{}: ends at byte {}, but {} were expected", path_.string(), size(), bytes));
  }
  std::vector<char> buffer(std::min(chunk, bytes));
  for_each_part(
      0, bytes,
      [&](std::uint64_t from, std::uint64_t to) {
        while (from < to) {
          const auto part = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), to - from));
          read(from, part);
          XXH3_128bits_update(state.get(), part.data(), part.size());
          from += part.size();
        }
      },
      [&](std::uint64_t from, std::uint64_t to) {
        for (; from < to; from += std::min(chunk, to - from)) {
          XXH3_128bits_update(state.get(), zeros().data(), std::min(chunk, to - from));
        }
      });
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// ── folders ─────────────────────────────────────────────────────────────────────────────────────

void sync_folder(const std::filesystem::path& folder) {
  const auto name = folder.empty() ? std::filesystem::path(".") : folder;
  const int descriptor = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_system_error(name, "cannot open the folder");
  const int result = fsync(descriptor), error = errno;
  close(descriptor);
  errno = error;
  if (result != 0 && error != EINVAL) throw_system_error(name, "cannot bring the folder to the disk");
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) throw_system_error(to, "cannot rename to it");
  sync_folder(to.parent_path());
}

}  // namespace widehead
