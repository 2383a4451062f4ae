#pragma once
/// Bytes of a file as they were before it was compressed: plain, gzip, xz or zstd, told apart by the
/// first bytes. Several members or frames one after the other are one text, as the tools have it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace widehead {

/// Compressed bytes that are damaged or end too early; who knows path and line makes a FileError of it.
class StreamError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Bytes = std::span<const unsigned char>;

/// Where the bytes come from, as they lie there.
class ByteSource {
 public:
  ByteSource() = default;
  virtual ~ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  /// The next piece, valid until the next call; empty at the end. The first holds at least 8 bytes if
  /// there are as many. @throws std::system_error naming the path
  virtual Bytes next() = 0;
  virtual std::int64_t total() const = 0;  ///< bytes in all, 0 if unknown
};

std::unique_ptr<ByteSource> open_file_source(const std::string& path);
std::unique_ptr<ByteSource> make_memory_source(Bytes bytes);  ///< which must outlive it

/// One compressed format, as a state machine over pieces of input.
class Decoder {
 public:
  Decoder() = default;
  virtual ~Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// Takes what it needs from the front of `in`, writes to `out` and returns how many bytes it wrote.
  /// An error is thrown by a call that wrote nothing: what precedes the damage is delivered first.
  /// @param last  no input follows `in`
  virtual std::size_t decode(Bytes& in, bool last, std::span<char> out) = 0;
  virtual bool complete() const = 0;  ///< the input may end here
  virtual const char* name() const = 0;
};

/// The decoder of what begins with these bytes. @throws std::bad_alloc
std::unique_ptr<Decoder> make_decoder(Bytes first);

/// What lines are cut from.
class ByteReader {
 public:
  ByteReader() = default;
  virtual ~ByteReader() = default;
  ByteReader(const ByteReader&) = delete;
  ByteReader& operator=(const ByteReader&) = delete;

  /// Fills the front of `out`, which is not empty, and returns how much of it; 0 is the end.
  /// @throws StreamError, std::system_error
  virtual std::size_t read(std::span<char> out) = 0;
  virtual std::int64_t bytes_read() const = 0;   ///< of the file as it is, compressed
  virtual std::int64_t bytes_total() const = 0;  ///< 0 if unknown
};

class ByteStream final : public ByteReader {
 public:
  explicit ByteStream(std::unique_ptr<ByteSource> source) : source_(std::move(source)) {}

  std::size_t read(std::span<char> out) override;
  std::int64_t bytes_read() const override { return taken_ - static_cast<std::int64_t>(pending_.size()); }
  std::int64_t bytes_total() const override { return source_->total(); }

 private:
  std::unique_ptr<ByteSource> source_;
  std::unique_ptr<Decoder> decoder_;  // made when the first bytes are seen
  Bytes pending_;                     // of the source's last piece, what is not decoded yet
  std::int64_t taken_ = 0;            // bytes in all pieces so far
  bool ended_ = false;
};

}  // namespace widehead
