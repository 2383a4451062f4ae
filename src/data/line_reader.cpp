#include "widehead/data/line_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "byte_stream.h"
#include "read_ahead.h"
#include "widehead/errors.h"

namespace widehead {
namespace {

constexpr std::size_t first_buffer = std::size_t{1} << 18;
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

}  // namespace

LineReader::LineReader(std::string name, std::unique_ptr<ByteReader> stream, std::size_t max_line)
    : path_(std::move(name)),
      stream_(std::move(stream)),
      max_line_(std::min(max_line, SIZE_MAX / 4)),
      buffer_(first_buffer) {}

LineReader::LineReader(const std::string& path, std::size_t max_line)
    : LineReader(path, std::make_unique<ByteStream>(open_file_source(path)), max_line) {}

LineReader::LineReader(std::string name, std::span<const std::byte> bytes, std::size_t max_line)
    : LineReader(std::move(name),
                 std::make_unique<ByteStream>(
                     make_memory_source({reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()})),
                 max_line) {}

LineReader LineReader::ahead(const std::string& path, std::size_t max_line) {
  auto stream = std::make_unique<ByteStream>(open_file_source(path));
  return {path, std::make_unique<ReadAhead>(std::move(stream)), max_line};
}

LineReader::LineReader(LineReader&& other) noexcept = default;
LineReader& LineReader::operator=(LineReader&& other) noexcept = default;
LineReader::~LineReader() = default;

std::int64_t LineReader::bytes_read() const { return stream_->bytes_read(); }
std::int64_t LineReader::bytes_total() const { return stream_->bytes_total(); }

void LineReader::fail(std::string_view what) const {
  throw FileError(line_ > 0 ? fmt::format("{}:{}: {}", path_, line_, what) : fmt::format("{}: {}", path_, what));
}

/// More bytes behind those in the buffer: [begin_, end_) is moved to its front, and the buffer grows
/// only when a single line fills it.
void LineReader::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  if (end_ == buffer_.size()) buffer_.resize(2 * buffer_.size());
  try {
    const auto got = stream_->read({buffer_.data() + end_, buffer_.size() - end_});
    end_ += got;
    ended_ = got == 0;
  } catch (const StreamError& error) {
    fail(error.what());
  }
}

std::optional<std::string_view> LineReader::next() {
  ++line_;
  const void* newline = nullptr;
  for (std::size_t searched = 0;;) {
    newline = std::memchr(buffer_.data() + begin_ + searched, '\n', end_ - begin_ - searched);
    searched = end_ - begin_;
    if (newline != nullptr || ended_ || searched > max_line_ + 1) break;  // + 1: a "\r", which does not count
    fill();
  }
  if (newline == nullptr && begin_ == end_) {
    --line_;
    return std::nullopt;
  }
  const char* first = buffer_.data() + begin_;
  const char* last = newline != nullptr ? static_cast<const char*>(newline) : buffer_.data() + end_;
  begin_ = static_cast<std::size_t>(last - buffer_.data()) + (newline != nullptr ? 1 : 0);

  std::string_view line(first, static_cast<std::size_t>(last - first));
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.size() > max_line_) fail(fmt::format("the line is longer than {} bytes", max_line_));
  if (const auto nul = line.find('\0'); nul != std::string_view::npos) {
    fail(fmt::format("byte {} of the line is NUL: this is not text", nul + 1));
  }
  if (line_ == 1 && line.starts_with(byte_order_mark)) line.remove_prefix(byte_order_mark.size());
  return line;
}

}  // namespace widehead
