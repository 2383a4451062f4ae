#pragma once
/// Minibatches of a data set that is in memory: sparse inputs and sparse targets, an example each. An epoch visits
/// every example once, in random order.

#include <vector>

#include "widehead/data/sparse_dataset.h"
#include "widehead/train/batch.h"

namespace widehead {

struct RowsOptions {
  bool unit_length = false;  ///< inputs are scaled to ‖x‖ = 1
  double dropout = 0;        ///< share of the inputs left out, the others scaled by 1/(1 − dropout)
  bool shuffle = true;
  std::uint64_t seed = 0;
};

template <class T>
class RowsSource final : public BatchSource<T> {
 public:
  /// The rows must outlive the source.
  /// @param target_scale  factor of each output's target; empty for 1
  RowsSource(const SparseRows& inputs, Size features, const SparseRows& targets, Size outputs,
             std::vector<T> target_scale, const RowsOptions& options);

  Size features() const override { return features_; }
  Size outputs() const override { return outputs_; }
  void fill(const Cursor& at, Size m, Batch<T>& batch) const override;
  double share_of_epoch(const Cursor& at) const override;

 private:
  void add_example(std::int64_t epoch, Size row, Batch<T>& batch) const;

  const SparseRows& inputs_;
  const SparseRows& targets_;
  Size features_, outputs_;
  std::vector<T> target_scale_;
  RowsOptions options_;
};

}  // namespace widehead
