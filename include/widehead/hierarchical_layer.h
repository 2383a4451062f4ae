#pragma once
/// The two-level hierarchical softmax, for comparison. Consecutive outputs form about √D classes, and
///   p(i | h) = p(class of i | h) · p(i | its class, h)
///   L = Σⱼ wⱼ Σ_t y_t (log Z_classes − (A h)_c(t) + log Z_c(t) − o_t)
/// both softmaxes: of A h, A (classes x d), and of W h in the class.
/// A step is O(√D d) per target: the classes, and the outputs of the classes that have targets. Examples with targets
/// in the same class share its products. It is another model than the full softmax, and exact for what it is.
///
/// Scores are log p here (OutputLayer::scores), since outputs compare within a class only; weights and gram are those
/// of W. There is no weight decay, which would have to shrink all D rows in every step.

#include "widehead/cross_entropy_layer.h"
#include "widehead/output_classes.h"
#include "widehead/softmax_parts.h"

namespace widehead {

struct HierarchicalOptions {
  Size classes = 0;  ///< 0 means √D
  /// How often each output occurs (D values, in any unit): classes are made equally frequent. Empty: of equal size,
  /// which is less work at worst, while equal frequency is less on average where frequencies differ much.
  std::vector<double> frequencies;
};

template <class T>
class HierarchicalLayer final : public CrossEntropyLayer<T> {
 public:
  /// @throws std::invalid_argument for a weight decay, and for classes that cannot be made
  HierarchicalLayer(const LayerOptions& options, const HierarchicalOptions& hierarchical,
                    std::shared_ptr<Backend<T>> backend);

  const OutputClasses& classes() const { return classes_; }
  Matrix<T> class_weights() { return this->host_copy(A()); }  ///< A as d x classes
  /// With one target per example, in classes of mean size.
  std::vector<GemmShape> step_products(Size m) const override;
  bool enqueues() const override { return this->backend().takes_parts_at_once(); }

 protected:
  double take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) override;
  bool take_step_later(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) override;
  double settle_steps() override;
  double compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) override;
  void compute_log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out) override;
  void begin_scores(ConstView<T> H) override;
  void write_scores(std::span<const Index> rows, MatrixView<T> out) override;

 private:
  HierarchicalLayer(const LayerOptions& options, OutputClasses classes, std::shared_ptr<Backend<T>> backend);

  enum class Update { no, yes };

  MatrixView<T> A() { return this->further_rows(); }
  MatrixView<T> rows_of(Size cls) { return this->W().columns(classes_.first(cls), classes_.size(cls)); }
  void group_by_class(const SparseBatch<T>& targets);
  template <class Work>
  void for_each_part(const Work& work);
  void pass_over_parts(ConstView<T> H, Update update, T eta, MatrixView<T> grad_H);
  void take_log_p(const SparseBatch<T>& targets);
  void add_up_gradient(MatrixView<T> grad_H);
  double pass(ConstView<T> H, const SparseBatch<T>& targets, Update update, T eta, MatrixView<T> grad_H);

  OutputClasses classes_;

  // of the minibatch
  SoftmaxParts<T> parts_;              // the classes with targets, then A
  PartStatistics<T> known_;            // of them
  std::vector<double> log_p_, log_Z_;  // of the entries of Y; of the classes, m
  Size scored_class_ = -1;             // whose log p is in scores_

  // scratch of the backend
  Matrix<T> E_;                       // the parts' logits, then exponentials, then R
  Matrix<T> H_pairs_, grad_pairs_;    // d x pairs
  Matrix<T> maxima_;                  // pairs
  Matrix<double> statistics_;         // logits of the entries; log Z of the pairs; their sums
  Matrix<double> ledger_;             // 1 x 1: the loss of steps taken later
  Matrix<T> one_;                     // 1 x 1
  Matrix<T> log_p_classes_, scores_;  // classes x m; size x m of the class scored

  // scratch of the host
  std::vector<Index> slot_;                          // m: pair of an example in the part being made, or −1
  std::vector<std::int64_t> pair_offsets_;           // m + 1: where the pairs of an example begin …
  std::vector<Index> pairs_by_example_, all_first_;  // … among these; as many zeros
  Matrix<double> host_statistics_;
};

}  // namespace widehead
