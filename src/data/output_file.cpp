#include "widehead/data/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

namespace widehead {
namespace {

constexpr std::size_t buffer_size = std::size_t{1} << 20;

/// Renaming is on the disk when the folder is. Not every file system can do this for a folder, and
/// then there is nothing better.
void sync_folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  const int file = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  fsync(file);
  close(file);
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  for (int attempt = 0; file_ < 0; ++attempt) {
    temporary_ = fmt::format("{}.{}-{}.partial", path_, getpid(), attempt);
    file_ = open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0 && errno != EEXIST) fail("cannot create the file");
  }
  buffer_.reserve(buffer_size);
}

OutputFile::~OutputFile() {
  if (file_ < 0) return;
  close(file_);
  unlink(temporary_.c_str());
}

void OutputFile::write(std::string_view bytes) {
  if (buffer_.size() + bytes.size() > buffer_size) flush();
  if (bytes.size() > buffer_size) {
    put(written_, bytes);
    written_ += static_cast<std::int64_t>(bytes.size());
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void OutputFile::flush() {
  put(written_, buffer_);
  written_ += static_cast<std::int64_t>(buffer_.size());
  buffer_.clear();
}

void OutputFile::put(std::int64_t offset, std::span<const char> bytes) {
  while (!bytes.empty()) {
    const auto count = pwrite(file_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot write the file");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

void OutputFile::write_at(std::int64_t offset, std::span<const char> bytes) {
  flush();
  put(offset, bytes);
}

void OutputFile::read_at(std::int64_t offset, std::span<char> bytes) {
  flush();
  while (!bytes.empty()) {
    const auto got = pread(file_, bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = EIO;  // somebody has shortened it
    if (got <= 0) fail("cannot read the file back");
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
}

void OutputFile::commit() {
  flush();
  if (fsync(file_) != 0) fail("cannot write the file");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot rename the file into place");
  close(std::exchange(file_, -1));
  sync_folder_of(path_);
}

void OutputFile::fail(const char* what) const {
  throw std::system_error(errno, std::generic_category(), path_ + ": " + what);
}

}  // namespace widehead
