#pragma once
/// Outputs drawn by the log-uniform law, which is about Zipf's where outputs are sorted by frequency:
///   P(i) = ln((i + 2)/(i + 1)) / ln(D + 1)
/// A sample is what `draws` independent draws have found, each output once: output i is in it with probability
///   E(i) = 1 − (1 − P(i))^draws        its expected count
/// and which sample number t is depends on (seed, t) only.

#include <cstdint>
#include <vector>

#include "widehead/matrix.h"
#include "widehead/random.h"

namespace widehead {

class LogUniformSampler {
 public:
  /// @throws std::invalid_argument for an extent below 1
  LogUniformSampler(Size outputs, Size draws, std::uint64_t seed);

  /// Sample number t, ascending.
  void draw(std::int64_t t, std::vector<Index>& sample) const;
  double expected_count(Index output) const;

  Size outputs() const { return outputs_; }
  Size draws() const { return draws_; }

 private:
  Size outputs_, draws_;
  double log_range_;  // ln(D + 1)
  Random random_;
};

}  // namespace widehead
