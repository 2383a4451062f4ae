#include "byte_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

namespace widehead {
namespace {

constexpr std::size_t piece_size = std::size_t{1} << 18;

class FileSource final : public ByteSource {
 public:
  explicit FileSource(std::string path)
      : path_(std::move(path)), file_(open(path_.c_str(), O_RDONLY | O_CLOEXEC)), buffer_(piece_size) {
    if (file_ < 0) fail("cannot open the file");
    struct stat status = {};
    if (fstat(file_, &status) == 0 && S_ISREG(status.st_mode)) total_ = status.st_size;
    (void)posix_fadvise(file_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~FileSource() override { close(file_); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  Bytes next() override {
    std::size_t filled = 0;
    while (filled < buffer_.size()) {
      const auto got = ::read(file_, buffer_.data() + filled, buffer_.size() - filled);
      if (got == 0) break;
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail("cannot read the file");
      filled += static_cast<std::size_t>(got);
    }
    return {buffer_.data(), filled};
  }
  std::int64_t total() const override { return total_; }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw std::system_error(errno, std::generic_category(), path_ + ": " + what);
  }

  std::string path_;
  int file_;
  std::int64_t total_ = 0;
  std::vector<unsigned char> buffer_;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(Bytes bytes) : bytes_(bytes), total_(static_cast<std::int64_t>(bytes.size())) {}
  Bytes next() override { return std::exchange(bytes_, {}); }
  std::int64_t total() const override { return total_; }

 private:
  Bytes bytes_;
  std::int64_t total_;
};

}  // namespace

std::unique_ptr<ByteSource> open_file_source(const std::string& path) { return std::make_unique<FileSource>(path); }

std::unique_ptr<ByteSource> make_memory_source(Bytes bytes) { return std::make_unique<MemorySource>(bytes); }

std::size_t ByteStream::read(std::span<char> out) {
  while (true) {
    if (pending_.empty() && !ended_) {
      pending_ = source_->next();
      taken_ += static_cast<std::int64_t>(pending_.size());
      ended_ = pending_.empty();
      if (decoder_ == nullptr) decoder_ = make_decoder(pending_);
    }
    const auto before = pending_.size();
    const auto written = decoder_->decode(pending_, ended_, out);
    if (written > 0) return written;
    if (ended_ && decoder_->complete()) return 0;
    if (ended_) {
      throw StreamError(fmt::format("the {} data stop before their end: the file is truncated", decoder_->name()));
    }
    if (before > 0 && pending_.size() == before) {
      throw StreamError(fmt::format("the {} data are damaged", decoder_->name()));
    }
  }
}

}  // namespace widehead
