#pragma once
/// Text as the compressors of this world write it.

#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace widehead::test {

inline std::string gzip(std::string_view text) {
  z_stream stream = {};
  constexpr int gzip_header = 16 + MAX_WBITS;
  if (deflateInit2(&stream, 6, Z_DEFLATED, gzip_header, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("zlib");
  std::string result(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  const int status = deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  if (status != Z_STREAM_END) throw std::runtime_error("zlib");
  return result;
}

inline std::string xz(std::string_view text) {
  std::string result(lzma_stream_buffer_bound(text.size()), '\0');
  std::size_t size = 0;
  if (lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const std::uint8_t*>(text.data()),
                              text.size(), reinterpret_cast<std::uint8_t*>(result.data()), &size,
                              result.size()) != LZMA_OK) {
    throw std::runtime_error("lzma");
  }
  result.resize(size);
  return result;
}

/// With a checksum, as the zstd program writes it.
inline std::string zstd(std::string_view text) {
  std::string result(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  const auto size = ZSTD_compress2(context, result.data(), result.size(), text.data(), text.size());
  ZSTD_freeCCtx(context);
  if (ZSTD_isError(size) != 0) throw std::runtime_error("zstd");
  result.resize(size);
  return result;
}

}  // namespace widehead::test
