#pragma once
/// Minibatches of a language model: the n preceding words of a line predict the next one.
///   concat  n inputs an example, one for each slot, nearest word last; before the start of a line stands `padding`
///   mean    the words there are, each with value 1/count; `padding` alone where there are none
/// An epoch visits every token once, as a target. The order is random within chunks of the corpus, so that reading
/// stays sequential on the scale of a disk.

#include <span>
#include <vector>

#include "widehead/train/batch.h"

namespace widehead {

enum class Combine { concat, mean };

struct NGramOptions {
  Size context = 4;  ///< n
  Combine combine = Combine::concat;
  bool predict_unknown = false;  ///< whether word 0 is a target
  double subsample = 0;          ///< t: a target of frequency p is kept with probability √(t/p) + t/p; 0 keeps all
  bool shuffle = true;
  std::uint64_t seed = 0;
};

/// Appends the inputs of an example: its words are the last n of `preceding`, a line or the beginning of one.
template <class T>
void add_context(std::span<const Index> preceding, const NGramOptions& options, Index padding, BatchRows<T>& inputs);

template <class T>
class NGramSource final : public BatchSource<T> {
 public:
  /// @param tokens        words, and −1 between lines
  /// @param counts        of every word in the corpus, for subsampling
  /// @param target_scale  value of each word as a target; empty for 1
  NGramSource(std::span<const Index> tokens, std::span<const std::int64_t> counts, std::vector<T> target_scale,
              const NGramOptions& options);

  Size features() const override { return outputs_ + 1; }
  Size outputs() const override { return outputs_; }
  Index padding() const { return static_cast<Index>(outputs_); }
  void fill(const Cursor& at, Size m, Batch<T>& batch) const override;
  double share_of_epoch(const Cursor& at) const override;

 private:
  std::uint64_t token_at(std::int64_t epoch, std::uint64_t k) const;
  bool is_kept(std::int64_t epoch, std::uint64_t position) const;
  void add_example(std::uint64_t position, Batch<T>& batch) const;

  std::span<const Index> tokens_;
  Size outputs_;
  std::vector<float> keep_;  // probability, by word; empty for 1
  std::vector<T> target_scale_;
  NGramOptions options_;
};

}  // namespace widehead
