#include "widehead/data/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "token_header.h"
#include "widehead/errors.h"

namespace widehead {
namespace {

/// The whole file, read-only; empty for an empty one, which cannot be mapped.
std::span<const std::byte> map_file(const std::string& path) {
  const auto fail = [&](const char* what) {
    throw std::system_error(errno, std::generic_category(), path + ": " + what);
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail("cannot open the token file");
  struct stat status = {};
  void* data = nullptr;
  std::size_t bytes = 0;
  if (fstat(file, &status) == 0 && status.st_size > 0) {
    bytes = static_cast<std::size_t>(status.st_size);
    data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  }
  const int error = errno;
  close(file);  // the mapping keeps the file
  if (data == MAP_FAILED) {
    errno = error;
    fail("cannot map the token file");
  }
  return {static_cast<const std::byte*>(data), bytes};
}

}  // namespace

TokenFile::TokenFile(const std::string& path) : path_(path) {
  const auto file = map_file(path);
  mapping_ = {file.data(), [bytes = file.size()](const std::byte* data) {
                if (bytes > 0) munmap(const_cast<std::byte*>(data), bytes);
              }};
  parse(file);
}

TokenFile::TokenFile(std::string name, std::span<const std::byte> bytes) : path_(std::move(name)) {
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(Index) != 0) {
    throw std::invalid_argument("token file: bytes in memory must be aligned to 4");
  }
  parse(bytes);
}

void TokenFile::parse(std::span<const std::byte> file) {
  const auto header = TokenHeader::parse(file, path_);
  const auto body = file.subspan(TokenHeader::bytes);
  tokens_ = {reinterpret_cast<const Index*>(body.data()), static_cast<std::size_t>(header.ids)};
  words_ = static_cast<Size>(header.words);
  vocabulary_size_ = static_cast<Size>(header.vocabulary);
}

void TokenFile::verify() const {
  Size words = 0;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i] < boundary || tokens_[i] >= vocabulary_size_) {
      throw FileError(
          fmt::format("{}: id {} is {}, but the vocabulary has {} words", path_, i, tokens_[i], vocabulary_size_));
    }
    words += tokens_[i] != boundary ? 1 : 0;
  }
  if (words != words_) {
    throw FileError(fmt::format("{}: {} words, but the header tells of {}", path_, words, words_));
  }
}

}  // namespace widehead
