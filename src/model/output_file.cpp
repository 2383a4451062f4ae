#include "widehead/model/output_file.h"

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

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  buffer_.reserve(buffer_bytes);
  // Another writer of the same file, or one that crashed, may have taken the name.
  for (int attempt = 0; file_ < 0; ++attempt) {
    temporary_ = fmt::format("{}.{}-{}.partial", path_, getpid(), attempt);
    file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0 && errno != EEXIST) fail("cannot be created");
  }
}

OutputFile::~OutputFile() {
  if (file_ >= 0) close(file_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void OutputFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto part = bytes.substr(0, buffer_bytes - buffer_.size());
    buffer_.insert(buffer_.end(), part.begin(), part.end());
    bytes.remove_prefix(part.size());
    if (buffer_.size() == buffer_bytes) flush();
  }
}

void OutputFile::flush() {
  for (std::size_t done = 0; done < buffer_.size();) {
    const auto written = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (written < 0 && errno != EINTR) fail("cannot be written");
    if (written > 0) done += static_cast<std::size_t>(written);
  }
  buffer_.clear();
}

void OutputFile::commit() {
  flush();
  if (fsync(file_) != 0) fail("cannot be brought to the disk");
  if (close(std::exchange(file_, -1)) != 0) fail("cannot be closed");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be given its name");
  temporary_.clear();

  // The name itself is on the disk once the folder is.
  const auto parent = std::filesystem::path(path_).parent_path();
  const int folder = open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail("has a folder that cannot be opened");
  const int synced = fsync(folder);
  const int error = errno;
  close(folder);
  // Some file systems cannot sync a folder, and say EINVAL.
  errno = error;
  if (synced != 0 && error != EINVAL) fail("has a folder that cannot be brought to the disk");
}

void OutputFile::fail(const char* what) const {
  throw std::system_error(errno, std::generic_category(), path_ + ": " + what);
}

}  // namespace widehead
