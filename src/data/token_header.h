#pragma once
/// The first 40 bytes of a token file, in the byte order of x86 and ARM (little endian):
///   0   8  magic "WHTOKENS"
///   8   4  version, 1
///  12   4  words of the vocabulary, D: ids are −1 (end of line) or 0 … D − 1
///  16   8  ids that follow, 4 bytes each
///  24   8  those of them that are words
///  32   8  XXH3-64 of bytes 0 … 31

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace widehead {

static_assert(std::endian::native == std::endian::little);

struct TokenHeader {
  static constexpr std::size_t bytes = 40;

  std::uint32_t vocabulary = 0;
  std::uint64_t ids = 0;
  std::uint64_t words = 0;

  std::string to_bytes() const;
  /// @param file  the whole token file
  /// @throws FileError naming the path
  static TokenHeader parse(std::span<const std::byte> file, std::string_view path);
};

}  // namespace widehead
