#pragma once
/// The softmax heads by definition: every output, explicit weights in double, plain loops that share nothing with the
/// library.

#include <utility>
#include <vector>

#include "oracle.h"

namespace widehead::test {

/// As make_minibatch, with values that are not negative.
Minibatch make_positive_minibatch(Dice& dice, const MinibatchShape& shape);

/// log p of a softmax over all candidates.
std::vector<double> log_softmax(const std::vector<double>& logits);

class CrossEntropyOracle {
 public:
  explicit CrossEntropyOracle(Matrix<double> W_in, double weight_decay = 0)
      : W(std::move(W_in)), weight_decay_(weight_decay) {}

  struct Result {
    double loss = 0;
    Matrix<double> grad_H, grad_W, grad_A;
    double mass = 0;  ///< Σⱼ wⱼ Σ_t |y_t|: the scale of all gradients
  };

  /// Two levels: the first output of each class and then D, and the weights of the classes.
  void set_classes(std::vector<Size> starts, Matrix<double> A_in) {
    starts_ = std::move(starts);
    A = std::move(A_in);
  }
  /// One level over an example's targets and this sample, whose expected counts are given for all D outputs.
  void set_sample(std::vector<Index> sample, std::vector<double> expected_counts) {
    sample_ = std::move(sample);
    expected_counts_ = std::move(expected_counts);
    is_sampled_ = true;
  }

  Result evaluate(const Minibatch& batch) const;

  /// W ← (1 − ηλ) W − η ∂L/∂W, and A likewise. What it returns is from before the step.
  Result step(const Minibatch& batch, double eta);

  /// log p of all D outputs for the hidden vector in column j.
  std::vector<double> log_p(const Matrix<double>& H, Size j) const;

  Matrix<double> W;  // d x D
  Matrix<double> A;  // d x classes, where there are classes

 private:
  static double dot(const Matrix<double>& rows, Size i, const Matrix<double>& H, Size j);
  Size start(Size c) const { return starts_[static_cast<std::size_t>(c)]; }

  /// Outputs that example j chooses among: all, or its targets and the sample.
  std::vector<Size> candidates(const Matrix<double>& Y, Size j) const;

  /// One softmax of rows·h over `members`, with targets Y.
  void add_level(const Minibatch& batch, const Matrix<double>& Y, Size j, const std::vector<Size>& members,
                 const Matrix<double>& rows, Matrix<double>& grad_rows, Result& result) const;

  double weight_decay_;
  std::vector<Size> starts_;
  std::vector<Index> sample_;
  std::vector<double> expected_counts_;
  bool is_sampled_ = false;
};

}  // namespace widehead::test
