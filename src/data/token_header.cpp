#include "token_header.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>
#include <limits>

#include "widehead/errors.h"
#include "widehead/matrix.h"

namespace widehead {
namespace {

constexpr std::string_view magic = "WHTOKENS";
constexpr std::uint32_t version = 1;
constexpr std::size_t checked_bytes = 32;

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T get(std::span<const std::byte> file, std::size_t offset) {
  T value{};
  std::memcpy(&value, file.data() + offset, sizeof value);
  return value;
}

}  // namespace

std::string TokenHeader::to_bytes() const {
  std::string result(magic);
  put(result, version);
  put(result, vocabulary);
  put(result, ids);
  put(result, words);
  put<std::uint64_t>(result, XXH3_64bits(result.data(), result.size()));
  return result;
}

TokenHeader TokenHeader::parse(std::span<const std::byte> file, std::string_view path) {
  const auto refuse = [&](const std::string& what) { throw FileError(fmt::format("{}: {}", path, what)); };
  if (file.size() < magic.size() || std::memcmp(file.data(), magic.data(), magic.size()) != 0) {
    refuse("not a token file: it does not begin with WHTOKENS");
  }
  if (file.size() < bytes) {
    refuse(fmt::format("{} bytes, but the header of a token file has {}: truncated", file.size(), bytes));
  }
  if (const auto found = get<std::uint32_t>(file, 8); found != version) {
    refuse(fmt::format("token file of version {}, but this program knows version {}", found, version));
  }
  if (get<std::uint64_t>(file, checked_bytes) != XXH3_64bits(file.data(), checked_bytes)) {
    refuse("the header's checksum is wrong: damaged");
  }
  const TokenHeader header{get<std::uint32_t>(file, 12), get<std::uint64_t>(file, 16), get<std::uint64_t>(file, 24)};
  const auto body = file.size() - bytes;
  if (body % sizeof(Index) != 0 || body / sizeof(Index) != header.ids) {
    refuse(fmt::format("{} bytes of ids, but the header tells of {} ids of 4 bytes: {}", body, header.ids,
                       body / sizeof(Index) < header.ids ? "truncated" : "something follows them"));
  }
  if (header.words > header.ids || header.vocabulary < 1 || header.vocabulary > std::numeric_limits<Index>::max()) {
    refuse(fmt::format("the header makes no sense: {} words among {} ids, {} words in the vocabulary", header.words,
                       header.ids, header.vocabulary));
  }
  return header;
}

}  // namespace widehead
