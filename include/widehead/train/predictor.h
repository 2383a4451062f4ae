#pragma once
/// What a trained network answers: the best outputs of an example, and the rank of the right one. All D outputs are
/// scored, O(Dd) per example, in blocks.

#include <functional>
#include <span>
#include <vector>

#include "widehead/train/network.h"

namespace widehead {

struct Scored {
  Index output;
  double score;
};

template <class T>
class Predictor {
 public:
  /// @param target_scale  what targets were multiplied by in training: scores are divided by it; empty for 1
  /// @param threads       that rank the scores of a network on a device, 0 for one per core; on the CPU it has its own
  Predictor(Network<T>& network, std::vector<T> target_scale, int threads = 0);

  /// The k best outputs of each example, best first; equal scores are ordered by output.
  /// @param excluded  outputs of example j that are not wanted, ascending
  std::vector<std::vector<Scored>> top_k(const SparseBatch<T>& X, Size k,
                                         const std::function<std::span<const Index>(Size)>& excluded = {});

  /// For each example 1 plus the number of outputs that score higher than its target, equal ones counting half: the
  /// expected rank if ties are broken at random. `targets` has one entry an example.
  std::vector<double> ranks(const SparseBatch<T>& X, const SparseBatch<T>& targets);

 private:
  /// visit(first, scores) for blocks of outputs, scores (outputs of the block x m).
  void for_each_block_of_scores(ConstView<T> H, const std::function<void(Size, ConstView<T>)>& visit);

  Network<T>& network_;
  std::vector<T> target_scale_;
  int threads_;
  Matrix<T> scores_;  // on the host
};

}  // namespace widehead
