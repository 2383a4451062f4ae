#include <fmt/format.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string_view>

#include "byte_stream.h"

namespace widehead {
namespace {

/// A header of a few bytes may ask for gigabytes of history. This is four times what `xz -9` asks for,
/// and zstd refuses more than 128 MiB of its own accord.
constexpr std::uint64_t max_xz_memory = std::uint64_t{1} << 28;

/// zlib counts in 32 bits.
constexpr std::size_t max_piece = std::size_t{1} << 30;

class PlainDecoder final : public Decoder {
 public:
  std::size_t decode(Bytes& in, bool /*last*/, std::span<char> out) override {
    const auto count = std::min(in.size(), out.size());
    std::copy_n(in.data(), count, out.data());
    in = in.subspan(count);
    return count;
  }
  bool complete() const override { return true; }
  const char* name() const override { return "plain"; }
};

/// Keeps an error back until what was written before it has been delivered.
class FallibleDecoder : public Decoder {
 public:
  std::size_t decode(Bytes& in, bool last, std::span<char> out) final {
    if (failure_.empty()) {
      const auto written = step(in, last, out);
      if (written > 0 || failure_.empty()) return written;
    }
    throw StreamError(failure_);
  }

 protected:
  virtual std::size_t step(Bytes& in, bool last, std::span<char> out) = 0;
  void fail(std::string_view reason) { failure_ = fmt::format("the {} data are damaged ({})", name(), reason); }

 private:
  std::string failure_;
};

class GzipDecoder final : public FallibleDecoder {
 public:
  GzipDecoder() {
    constexpr int gzip_only = 16 + MAX_WBITS;
    if (inflateInit2(&stream_, gzip_only) != Z_OK) throw std::bad_alloc();
  }
  ~GzipDecoder() override { inflateEnd(&stream_); }
  GzipDecoder(const GzipDecoder&) = delete;
  GzipDecoder& operator=(const GzipDecoder&) = delete;

  bool complete() const override { return between_members_; }
  const char* name() const override { return "gzip"; }

 protected:
  std::size_t step(Bytes& in, bool /*last*/, std::span<char> out) override {
    if (between_members_) {
      if (in.empty()) return 0;
      inflateReset(&stream_);
      between_members_ = false;
    }
    const auto offered = std::min(in.size(), max_piece), room = std::min(out.size(), max_piece);
    stream_.next_in = const_cast<Bytef*>(in.data());  // zlib only reads it
    stream_.avail_in = static_cast<uInt>(offered);
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(room);
    const int status = inflate(&stream_, Z_NO_FLUSH);
    in = in.subspan(offered - stream_.avail_in);
    if (status == Z_MEM_ERROR) throw std::bad_alloc();
    if (status == Z_STREAM_END) {
      between_members_ = true;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      fail(stream_.msg != nullptr ? stream_.msg : "unknown error");
    }
    return room - stream_.avail_out;
  }

 private:
  z_stream stream_ = {};
  bool between_members_ = false;
};

class XzDecoder final : public FallibleDecoder {
 public:
  XzDecoder() {
    if (lzma_stream_decoder(&stream_, max_xz_memory, LZMA_CONCATENATED) != LZMA_OK) throw std::bad_alloc();
  }
  ~XzDecoder() override { lzma_end(&stream_); }
  XzDecoder(const XzDecoder&) = delete;
  XzDecoder& operator=(const XzDecoder&) = delete;

  bool complete() const override { return complete_; }
  const char* name() const override { return "xz"; }

 protected:
  std::size_t step(Bytes& in, bool last, std::span<char> out) override {
    if (complete_) return 0;
    stream_.next_in = in.data();
    stream_.avail_in = in.size();
    stream_.next_out = reinterpret_cast<std::uint8_t*>(out.data());
    stream_.avail_out = out.size();
    const auto status = lzma_code(&stream_, last ? LZMA_FINISH : LZMA_RUN);
    in = in.subspan(in.size() - stream_.avail_in);
    switch (status) {
      case LZMA_OK:
      case LZMA_BUF_ERROR: break;  // no progress without more input
      case LZMA_STREAM_END: complete_ = true; break;
      case LZMA_MEM_ERROR: throw std::bad_alloc();
      case LZMA_MEMLIMIT_ERROR:
        fail(fmt::format("they ask for more than {} MiB of memory", max_xz_memory >> 20));
        break;
      case LZMA_OPTIONS_ERROR: fail("unsupported options"); break;
      default: fail("checksum or structure"); break;
    }
    return out.size() - stream_.avail_out;
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool complete_ = false;
};

class ZstdDecoder final : public FallibleDecoder {
 public:
  ZstdDecoder() : context_(ZSTD_createDCtx()) {
    if (context_ == nullptr) throw std::bad_alloc();
  }
  ~ZstdDecoder() override { ZSTD_freeDCtx(context_); }
  ZstdDecoder(const ZstdDecoder&) = delete;
  ZstdDecoder& operator=(const ZstdDecoder&) = delete;

  bool complete() const override { return between_frames_; }
  const char* name() const override { return "zstd"; }

 protected:
  std::size_t step(Bytes& in, bool /*last*/, std::span<char> out) override {
    if (between_frames_ && in.empty()) return 0;
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    const auto status = ZSTD_decompressStream(context_, &output, &input);
    in = in.subspan(input.pos);
    if (ZSTD_isError(status) != 0) fail(ZSTD_getErrorName(status));
    between_frames_ = status == 0;
    return output.pos;
  }

 private:
  ZSTD_DCtx* context_;
  bool between_frames_ = false;
};

bool begins_with(Bytes bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

}  // namespace

std::unique_ptr<Decoder> make_decoder(Bytes first) {
  using namespace std::string_view_literals;
  if (begins_with(first, "\x1F\x8B"sv)) return std::make_unique<GzipDecoder>();
  if (begins_with(first,
                  "\xFD"
                  "7zXZ\0"sv)) {
    return std::make_unique<XzDecoder>();
  }
  if (begins_with(first, "\x28\xB5\x2F\xFD"sv)) return std::make_unique<ZstdDecoder>();
  // A zstd file may also begin with a skippable frame, 0x184D2A50 … 0x184D2A5F, as parallel compressors write it.
  if (begins_with(first.subspan(std::min<std::size_t>(first.size(), 1)), "\x2A\x4D\x18"sv) && first[0] >> 4 == 5) {
    return std::make_unique<ZstdDecoder>();
  }
  return std::make_unique<PlainDecoder>();
}

}  // namespace widehead
