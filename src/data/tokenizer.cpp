#include "widehead/data/tokenizer.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace widehead {
namespace {

constexpr std::array<bool, 256> make_separators(Tokenization tokenization) {
  std::array<bool, 256> table{};
  for (unsigned c = 0; c < 128; ++c) {
    const bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    const bool white = c == ' ' || (c >= '\t' && c <= '\r');
    table[c] = tokenization == Tokenization::words ? !alphanumeric : white;
  }
  return table;
}

constexpr auto whitespace_separators = make_separators(Tokenization::whitespace);
constexpr auto words_separators = make_separators(Tokenization::words);

// ── characters of two bytes: U+0080 … U+07FF ────────────────────────────────────────────────────

constexpr unsigned first_of_two = 0x80, end_of_two = 0x800;

/// Upper-case letters alternate with their lower-case ones over long stretches.
constexpr bool is_upper_of_pair(unsigned c) {
  const bool even = c % 2 == 0;
  if ((c >= 0x100 && c <= 0x12F) || (c >= 0x132 && c <= 0x137) || (c >= 0x14A && c <= 0x177)) return even;
  return ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17E)) && !even;
}

constexpr unsigned lower_of_two(unsigned c) {
  if (is_upper_of_pair(c)) return c + 1;
  if (c >= 0xC0 && c <= 0xDE && c != 0xD7) return c + 0x20;  // Latin-1
  if (c == 0x178) return 0xFF;                               // Ÿ
  if (c == 0x386) return 0x3AC;                              // Greek with tonos
  if (c >= 0x388 && c <= 0x38A) return c + 0x25;
  if (c == 0x38C) return 0x3CC;
  if (c == 0x38E || c == 0x38F) return c + 0x3F;
  if (c >= 0x391 && c <= 0x3AB && c != 0x3A2) return c + 0x20;  // Greek
  if (c >= 0x400 && c <= 0x40F) return c + 0x50;                // Cyrillic
  if (c >= 0x410 && c <= 0x42F) return c + 0x20;
  return c;
}

constexpr bool separates_of_two(unsigned c) {
  return (c < 0xC0 && c != 0xAA && c != 0xB5 && c != 0xBA) || c == 0xD7 || c == 0xF7;
}

constexpr auto lower_table = [] {
  std::array<std::uint16_t, end_of_two - first_of_two> table{};
  for (unsigned c = first_of_two; c < end_of_two; ++c) {
    table[c - first_of_two] = static_cast<std::uint16_t>(lower_of_two(c));
  }
  return table;
}();

// ── UTF-8 ───────────────────────────────────────────────────────────────────────────────────────

/// Bytes in the character at p, 0 if it is not valid UTF-8: no overlong form, no surrogate, at most U+10FFFF.
std::size_t character_length(const unsigned char* p, std::size_t room) {
  const auto follows = [&](std::size_t k, unsigned least = 0x80, unsigned most = 0xBF) {
    return k < room && p[k] >= least && p[k] <= most;
  };
  const unsigned lead = p[0];
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return follows(1) ? 2 : 0;
  if (lead < 0xF0) return follows(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF) && follows(2) ? 3 : 0;
  if (lead > 0xF4) return 0;
  const bool valid = follows(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF) && follows(2) && follows(3);
  return valid ? 4 : 0;
}

// ── eight ASCII bytes at a time ─────────────────────────────────────────────────────────────────

constexpr std::uint64_t each_byte = 0x0101010101010101;

/// x in lower case; all bytes are below 0x80, so no sum carries into its neighbour.
std::uint64_t lower_of_eight(std::uint64_t x) {
  const auto from_A = x + (0x80 - 'A') * each_byte, beyond_Z = x + (0x80 - 'Z' - 1) * each_byte;
  return x | ((from_A & ~beyond_Z & 0x80 * each_byte) >> 2);  // 'a' − 'A' = 0x20 = 0x80 >> 2
}

}  // namespace

Tokenization tokenization_from_name(std::string_view name) {
  for (const auto tokenization : {Tokenization::whitespace, Tokenization::words}) {
    if (name_of(tokenization) == name) return tokenization;
  }
  throw std::invalid_argument(fmt::format(R"(tokenization: "{}", but there are "whitespace" and "words")", name));
}

std::string_view name_of(Tokenization tokenization) {
  return tokenization == Tokenization::words ? "words" : "whitespace";
}

const std::array<bool, 256>& Tokenizer::separators(Tokenization tokenization) {
  return tokenization == Tokenization::words ? words_separators : whitespace_separators;
}

std::string_view Tokenizer::normalize(std::string_view line) {
  if (scratch_.size() < line.size()) scratch_.resize(line.size());
  const auto* in = reinterpret_cast<const unsigned char*>(line.data());
  auto* out = reinterpret_cast<unsigned char*>(scratch_.data());
  for (std::size_t i = 0; i < line.size();) {
    std::uint64_t eight = 0;
    if (i + sizeof eight <= line.size()) {
      std::memcpy(&eight, in + i, sizeof eight);
      if ((eight & 0x80 * each_byte) == 0) {
        if (lowercase_) eight = lower_of_eight(eight);
        std::memcpy(out + i, &eight, sizeof eight);
        i += sizeof eight;
        continue;
      }
    }
    const auto length = character_length(in + i, line.size() - i);
    if (length == 0) {
      throw std::invalid_argument(fmt::format("byte {} of the line (0x{:02X}) is not valid UTF-8", i + 1, in[i]));
    }
    std::memcpy(out + i, in + i, length);
    if (length == 1) {
      if (lowercase_ && in[i] >= 'A' && in[i] <= 'Z') out[i] += 'a' - 'A';
    } else if (length == 2) {
      const unsigned c = (in[i] & 0x1FU) << 6 | (in[i + 1] & 0x3FU);
      if (tokenization_ == Tokenization::words && separates_of_two(c)) {
        std::memset(out + i, ' ', 2);
      } else if (lowercase_) {
        const unsigned lower = lower_table[c - first_of_two];
        out[i] = static_cast<unsigned char>(0xC0 | lower >> 6);
        out[i + 1] = static_cast<unsigned char>(0x80 | (lower & 0x3F));
      }
    } else if (length == 3 && in[i] == 0xE2 && tokenization_ == Tokenization::words) {
      const unsigned c = 0x2000 | (in[i + 1] & 0x3FU) << 6 | (in[i + 2] & 0x3FU);
      if (c <= 0x206F && c != 0x200C && c != 0x200D) std::memset(out + i, ' ', 3);
    }
    i += length;
  }
  return {scratch_.data(), line.size()};
}

}  // namespace widehead
