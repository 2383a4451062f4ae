#pragma once
/// Counter-based random numbers (Philox4x32-10): a value depends on the seed, a stream and its
/// counters only, never on what was drawn before or by which thread.

#include <cstdint>

namespace widehead {

class Random {
 public:
  /// Streams of one seed are independent of each other.
  Random(std::uint64_t seed, std::uint32_t stream) : seed_(seed), stream_(stream) {}

  struct Pair {
    double first, second;
  };
  /// Two uniform values in (0, 1).
  Pair uniform(std::uint64_t major, std::uint32_t minor) const;
  /// Two independent standard normal values.
  Pair normal(std::uint64_t major, std::uint32_t minor) const;

 private:
  std::uint64_t seed_;
  std::uint32_t stream_;
};

}  // namespace widehead
