#pragma once
/// The two-level hierarchical softmax, for comparison. Consecutive outputs form about √D classes, and
///   p(i | h) = p(class of i | h) · p(i | its class, h)        both softmaxes: of A h, A (classes x d), and of W h in
///   the class L = Σⱼ wⱼ Σ_t y_t (log Z_classes − (A h)_c(t) + log Z_c(t) − o_t)
/// A step is O(√D d) per target: the classes, and the outputs of the classes that have targets. Examples with targets
/// in the same class share its products. It is another model than the full softmax, and exact for what it is.
///
/// Scores are log p here (OutputLayer::scores), since outputs compare within a class only; weights and gram are those
/// of W. There is no weight decay, which would have to shrink all D rows in every step.

#include "widehead/cross_entropy_layer.h"
#include "widehead/output_classes.h"

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
  ConstView<T> class_weights() { return this->further_rows(); }  ///< A as d x classes
  /// With one target per example, in classes of mean size.
  std::vector<GemmShape> step_products(Size m) const override;

 protected:
  double take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) override;
  double compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) override;
  void compute_log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out) override;
  void begin_scores(ConstView<T> H) override;
  void write_scores(std::span<const Index> rows, MatrixView<T> out) override;

 private:
  HierarchicalLayer(const LayerOptions& options, OutputClasses classes, std::shared_ptr<Backend<T>> backend);

  /// A class with targets. Its pairs are the examples that have some in it, its entries those of Y.
  struct Part {
    Size cls, first_pair, pairs, first_entry, entries;
    Size offset;  ///< of its logits in E_
  };
  struct Pair {
    Index example;
    double mass;   ///< Σ y of the example's targets in the class
    double sum;    ///< of the class's exponentials, as they are in E_
    double log_Z;  ///< of the class
  };
  enum class Update { no, yes };

  MatrixView<T> A() { return this->further_rows(); }
  MatrixView<T> rows_of(Size cls) { return this->W().columns(classes_.first(cls), classes_.size(cls)); }
  MatrixView<T> logits_of(const Part& part) { return {E_.data() + part.offset, classes_.size(part.cls), part.pairs}; }
  MatrixView<T> columns_of(const Part& part, Matrix<T>& by_pair) {
    return {by_pair.data() + part.first_pair * this->dim(), this->dim(), part.pairs};
  }
  void group_by_class(Size examples);
  template <class Then>
  void observe(ConstView<T> H, const Then& then);
  void observe_part(const Part& part);
  void pass_back_part(const Part& part, const SparseBatch<T>& targets, Update update, T eta, bool wants_gradient);
  void pass_back_classes(ConstView<T> H, const SparseBatch<T>& targets, Update update, T eta, MatrixView<T> grad_H);
  double pass_over_classes(ConstView<T> H, const SparseBatch<T>& targets, Update update, T eta, MatrixView<T> grad_H);
  void take_log_softmax(MatrixView<T> O);
  template <class Work>
  void for_each_part(const Work& work);

  OutputClasses classes_;

  // of the minibatch
  std::vector<Part> parts_;            // by class
  std::vector<Pair> pairs_;            // by part
  std::vector<Index> pair_examples_;   // the same as a list
  std::vector<Index> pair_of_entry_;   // within its part
  std::vector<double> log_p_, log_Z_;  // of the entries of Y; of the classes, m
  Size scored_class_ = -1;             // whose log p is in scores_

  // scratch
  Matrix<T> E_;                                      // the parts' logits, then exponentials: size x pairs each
  Matrix<T> E_A_;                                    // classes x m
  Matrix<T> H_pairs_, grad_pairs_;                   // d x pairs
  Matrix<T> log_p_classes_, scores_, exponentials_;  // classes x m; size x m of the class scored
  std::vector<Index> slot_;                          // m: pair of an example in the part at work, or −1
  std::vector<T> maxima_, factors_;                  // pairs, or m; m
  std::vector<double> sums_;                         // as maxima_
};

}  // namespace widehead
