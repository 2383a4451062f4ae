#include "widehead/random.h"

#include <Random123/philox.h>

#include <cmath>
#include <numbers>

namespace widehead {
namespace {

/// 53 of 64 random bits as a double in (0, 1); never 0, so that its logarithm is finite.
double to_unit(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32 | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

}  // namespace

Random::Pair Random::uniform(std::uint64_t major, std::uint32_t minor) const {
  const r123::Philox4x32::ctr_type counter = {
      {static_cast<std::uint32_t>(major), static_cast<std::uint32_t>(major >> 32), minor, stream_}};
  const r123::Philox4x32::key_type key = {{static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)}};
  const auto bits = r123::Philox4x32{}(counter, key);
  return {to_unit(bits[0], bits[1]), to_unit(bits[2], bits[3])};
}

Random::Pair Random::normal(std::uint64_t major, std::uint32_t minor) const {
  const auto [u, v] = uniform(major, minor);  // Box-Muller
  const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * std::numbers::pi * v;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace widehead
