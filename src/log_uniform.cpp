#include "widehead/log_uniform.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace widehead {
namespace {

constexpr std::uint32_t sampling_stream = 0x53;  // "S"

}  // namespace

LogUniformSampler::LogUniformSampler(Size outputs, Size draws, std::uint64_t seed)
    : outputs_(outputs),
      draws_(draws),
      log_range_(std::log1p(static_cast<double>(outputs))),
      random_(seed, sampling_stream) {
  if (outputs < 1) throw std::invalid_argument(fmt::format("log-uniform: D = {}, but it must be at least 1", outputs));
  if (draws < 1 || draws > std::numeric_limits<Index>::max()) {
    throw std::invalid_argument(
        fmt::format("samples = {}, but it must be 1 … {}", draws, std::numeric_limits<Index>::max()));
  }
}

/// P(x < i + 1) = ln(i + 2)/ln(D + 1) for x = (D + 1)ᵘ − 1 with u uniform in (0, 1).
void LogUniformSampler::draw(std::int64_t t, std::vector<Index>& sample) const {
  sample.clear();
  const auto add = [&](double u) {
    const auto i = static_cast<Size>(std::expm1(u * log_range_));
    sample.push_back(static_cast<Index>(std::clamp<Size>(i, 0, outputs_ - 1)));
  };
  for (Size k = 0; k < draws_; k += 2) {
    const auto [u, v] = random_.uniform(static_cast<std::uint64_t>(t), static_cast<std::uint32_t>(k));
    add(u);
    if (k + 1 < draws_) add(v);
  }
  std::sort(sample.begin(), sample.end());
  sample.erase(std::unique(sample.begin(), sample.end()), sample.end());
}

double LogUniformSampler::expected_count(Index output) const {
  const double p = std::log1p(1 / (static_cast<double>(output) + 1)) / log_range_;
  return -std::expm1(static_cast<double>(draws_) * std::log1p(-std::min(p, 1.0)));
}

}  // namespace widehead
