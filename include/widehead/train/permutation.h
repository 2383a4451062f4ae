#pragma once
/// A pseudo-random permutation of 0 … n − 1 that needs no memory: any place of an epoch's order can be asked for, so
/// that a run resumes anywhere. A Feistel network on the smallest even number of bits that holds n, walked on until
/// the result is below n (at most 4 times as many values as needed, so a few rounds on average).

#include <cstdint>

namespace widehead {

class Permutation {
 public:
  /// Another key, another order.
  Permutation(std::uint64_t n, std::uint64_t key);
  std::uint64_t size() const { return n_; }
  /// The value at place i < n.
  std::uint64_t operator()(std::uint64_t i) const;

 private:
  std::uint64_t n_, key_;
  unsigned half_bits_;
  std::uint64_t half_mask_;
};

}  // namespace widehead
