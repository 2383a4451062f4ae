#pragma once
/// The full softmax over explicit outputs:
///   p(i | h) = exp(o_i) / Z,   Z = Σₖ exp(o_k),   o = W h
///   L = Σⱼ wⱼ Σ_t y_t (log Z − o_t),   R = (p s − Y) diag(w),   s = Σ_t y_t,   ∇H = WᵀR,   W ← c W − η R Hᵀ
/// O(Dd): two passes over W in blocks of rows, since Z must be known before R is. The first computes O = W H, and keeps
/// exp(O − max) for the second as far as the budget goes; what is beyond is computed once more. 6 D d m flops, or up
/// to 8.

#include "widehead/cross_entropy_layer.h"

namespace widehead {

struct SoftmaxOptions {
  /// Memory for exp(O), which is D m values: with less than that, blocks of it are computed twice. Never less than a
  /// block (Backend::rows_per_block) is used, so that a device which takes all of W at once computes nothing twice.
  /// The result does not depend on it.
  Size logits_bytes = Size{256} << 20;
};

template <class T>
class SoftmaxLayer : public CrossEntropyLayer<T> {
 public:
  SoftmaxLayer(const LayerOptions& options, const SoftmaxOptions& softmax, std::shared_ptr<Backend<T>> backend)
      : SoftmaxLayer("softmax", options, softmax, std::move(backend)) {}

  std::vector<GemmShape> step_products(Size m) const override;

 protected:
  /// For heads that share the model, and hence all but the step.
  SoftmaxLayer(std::string_view head, const LayerOptions& options, const SoftmaxOptions& softmax,
               std::shared_ptr<Backend<T>> backend);

  double take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) override;
  double compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) override;
  void compute_log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out) override;

 private:
  Size rows_per_block() const;
  Size blocks_kept(Size m) const;
  void compute_block(Size first, MatrixView<T> O);
  void observe(ConstView<T> H, Size keep);
  enum class Update { no, yes };
  void prepare_residual(const SparseBatch<T>& targets);
  void pass_back(ConstView<T> H, const SparseBatch<T>& targets, Update update, T eta, MatrixView<T> grad_H);

  SoftmaxOptions softmax_;

  // of the minibatch
  Size kept_ = 0;              // leading blocks whose exponentials are in E_
  std::vector<double> log_p_;  // of the entries of Y
  std::vector<double> log_Z_;  // m

  // scratch of the backend
  Matrix<T> H_T_;                          // m x d
  Matrix<T> E_;                            // m x (kept rows, and a block if some are not kept): exp(O − max)
  Matrix<T> maxima_;                       // m x blocks
  Matrix<double> sums_;                    // m x blocks, likewise
  Matrix<double> o_;                       // entries of Y
  Matrix<T> grad_T_;                       // m x d
  Matrix<T> factors_room_, minus_Y_room_;  // where the host's cannot be reached

  // scratch of the host
  Matrix<T> host_maxima_;
  Matrix<double> host_sums_, host_o_;
  Matrix<T> factors_;          // m x blocks
  std::vector<T> minus_Y_;     // entries of Y: −w y
  std::vector<double> peaks_;  // m
};

}  // namespace widehead
