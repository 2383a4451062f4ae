#pragma once
/// Made-up minibatches with the properties that matter to an output layer: targets by frequency
/// (Zipf), hidden vectors behind an activation, and a relation between the two, so that the loss falls.

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "widehead/activation.h"
#include "widehead/matrix.h"
#include "widehead/random.h"
#include "widehead/sparse_batch.h"

namespace widehead {

enum class TargetLaw {
  zipf,  ///< P(i) = ln((i+2)/(i+1)) / ln(D+1), about 1/(i+1): word frequencies
  uniform,
};
std::span<const std::pair<std::string_view, TargetLaw>> target_law_names();

struct SyntheticOptions {
  Size outputs = 2000;  ///< D
  Size dim = 100;       ///< d
  Size batch = 32;      ///< m
  Size nonzeros = 1;    ///< K targets per example; named twice now and then, as Zipf has it
  Activation activation = Activation::relu;
  TargetLaw targets = TargetLaw::zipf;
  Size distinct = 0;  ///< outputs that ever are targets, spread evenly over all D; 0 means D
  std::uint64_t seed = 1;
};

/// A minibatch in the precision of a layer.
template <class T>
struct SyntheticBatch {
  Size outputs = 0;
  Matrix<T> H;  // d x m
  std::vector<std::int64_t> offsets;
  std::vector<Index> indices;
  std::vector<T> values;

  SparseBatch<T> targets() const { return {outputs, offsets, indices, values}; }

  /// The same in another precision.
  template <class S>
  SyntheticBatch<S> as() const {
    SyntheticBatch<S> batch{outputs, Matrix<S>(H.rows(), H.cols()), offsets, indices,
                            std::vector<S>(values.begin(), values.end())};
    for (Size i = 0; i < H.size(); ++i) batch.H.data()[i] = static_cast<S>(H.data()[i]);
    return batch;
  }
};

/// Minibatch number t of the stream depends on (options, t) only. Every value is a float, so that
/// layers in float and in double see exactly the same numbers.
template <class T>
class SyntheticStream {
 public:
  /// @throws std::invalid_argument for an extent below 1
  explicit SyntheticStream(const SyntheticOptions& options);
  SyntheticBatch<T> batch(std::uint64_t t) const;
  /// Gives a batch the targets of minibatch t and leaves its H: new work for a layer at little cost.
  void redraw_targets(std::uint64_t t, SyntheticBatch<T>& batch) const;

 private:
  Index draw_target(std::uint64_t example, Size k) const;

  SyntheticOptions options_;
  Random random_targets_, random_values_, random_hidden_, random_meaning_;
};

/// ‖H‖₂², the square of the largest singular value, by power iteration. With λ₁ = 2η‖H‖₂² it is what
/// makes learning rates comparable between models.
template <class T>
double spectral_norm_squared(ConstView<T> H, double tolerance = 1e-12);

}  // namespace widehead
