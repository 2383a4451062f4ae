#include "widehead/train/permutation.h"

#include <bit>

namespace widehead {
namespace {

constexpr unsigned rounds = 4;

/// A bijective mix of 64 bits; as a round function only its quality as a hash matters.
std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0x9FB21C651E98DF25ULL;
  x ^= x >> 29;
  x *= 0xC2B2AE3D27D4EB4FULL;
  return x ^ (x >> 32);
}

}  // namespace

Permutation::Permutation(std::uint64_t n, std::uint64_t key)
    : n_(n),
      key_(mix(key + 0x9E3779B97F4A7C15ULL)),
      half_bits_((static_cast<unsigned>(std::bit_width(n > 1 ? n - 1 : 1)) + 1) / 2),
      half_mask_((std::uint64_t{1} << half_bits_) - 1) {}

std::uint64_t Permutation::operator()(std::uint64_t i) const {
  do {
    std::uint64_t left = i >> half_bits_, right = i & half_mask_;
    for (unsigned round = 0; round < rounds; ++round) {
      const auto next = left ^ (mix(right + key_ + (std::uint64_t{round} << 56)) & half_mask_);
      left = right;
      right = next;
    }
    i = (left << half_bits_) | right;
  } while (i >= n_);
  return i;
}

}  // namespace widehead
