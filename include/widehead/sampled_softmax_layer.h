#pragma once
/// The sampled softmax, for comparison: the model of the full softmax, trained by a step that does not see all outputs.
/// Step t draws one sample S of outputs for the whole minibatch (log_uniform.h), and minimises for an example with
/// targets Tⱼ
///   L̂ = Σⱼ wⱼ Σ_t y_t (log Ẑ − õ_t),   Ẑ = Σ exp(õᵢ) over Tⱼ ∪ S,   õᵢ = oᵢ − ln E(i)
/// where ln E(i), the logarithm of i's expected count in S, makes up for frequent outputs being drawn more often. A
/// target that was drawn as well counts once. Only the rows of T and S are read and changed: O((|S| + K) d) per
/// example, whatever D is.
///
/// L̂ is not the cross-entropy: its gradient is biased, the less so the larger the sample, and once E = 1 everywhere it
/// is the full softmax. `step` returns L̂ and its ∇H; `evaluate`, `log_prob` and the like are those of the full softmax,
/// O(Dd), so that heads compare. There is no weight decay, which would have to shrink all D rows in every step.

#include "widehead/log_uniform.h"
#include "widehead/softmax_layer.h"

namespace widehead {

struct SampledSoftmaxOptions {
  Size samples = 1024;  ///< draws a step; those that meet an output again are lost, so that |S| is somewhat smaller
};

template <class T>
class SampledSoftmaxLayer final : public SoftmaxLayer<T> {
 public:
  /// @throws std::invalid_argument for a weight decay, or for no samples
  SampledSoftmaxLayer(const LayerOptions& options, const SoftmaxOptions& softmax, const SampledSoftmaxOptions& sampled,
                      std::shared_ptr<Backend<T>> backend);

  /// A step takes sample number steps(), as it is before the step.
  const LogUniformSampler& sampler() const { return sampler_; }
  /// With the size of the first sample.
  std::vector<GemmShape> step_products(Size m) const override;

 protected:
  double take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) override;

 private:
  void observe_sample(ConstView<T> H);
  void update(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H);
  template <class Visit>
  void for_each_hit(const Visit& visit);

  LogUniformSampler sampler_;

  // of the minibatch
  std::vector<Index> sample_;      // S, ascending
  std::vector<double> o_, log_p_;  // õ and log p̂ of the entries of Y
  std::vector<double> log_Z_;      // m: log Ẑ

  // scratch
  Matrix<T> Z_S_, Z_T_;              // d x |S|, d x distinct targets: their rows of W
  Matrix<T> E_;                      // m x |S|: Õ, exp(Õ − max), R
  Matrix<T> H_T_, grad_T_;           // m x d
  Matrix<T> Gamma_;                  // by entry of Y: the derivatives at the targets
  std::vector<T> maxima_, factors_;  // m
  std::vector<double> sums_;         // m
};

}  // namespace widehead
