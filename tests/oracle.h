#pragma once
/// The definition: W itself, updated explicitly in double, O(Dd), in plain loops that share nothing
/// with the library's layers. What every test of a layer compares with. The loops are in oracle.cpp, which
/// is optimised: tests are not, and spend much of their time here.

#include <cstdint>
#include <vector>

#include "compare.h"
#include "dice.h"
#include "widehead/matrix.h"
#include "widehead/sparse_batch.h"

namespace widehead::test {

/// A minibatch in double whose every value is a float.
struct Minibatch {
  Size outputs = 0;
  Matrix<double> H;  // d x m
  std::vector<std::int64_t> offsets{0};
  std::vector<Index> indices;
  std::vector<double> values;
  std::vector<double> weights;  // empty: 1 each

  Size examples() const { return H.cols(); }
  double weight(Size j) const { return weights.empty() ? 1 : weights[static_cast<std::size_t>(j)]; }

  /// Σ|y| over the entries of example j, which bounds ‖yⱼ‖ and what repeated entries cancel to.
  double magnitude(Size j) const;
  /// Y (D x m) with its zeros; an output named twice counts with the sum of its values.
  Matrix<double> Y() const;
};

struct MinibatchShape {
  Size outputs, dim, batch, nonzeros;
  bool weighted = false;
};

/// K entries per example, now and then the one before once more; weights include a 0.
Minibatch make_minibatch(Dice& dice, const MinibatchShape& shape);

/// The η (a float, at most 1) at which λ₁ = 2η‖H diag(√w)‖₂² is at most `lambda`, by the Frobenius norm.
double eta_for(const Minibatch& batch, double lambda);

/// A Minibatch in the precision of a layer.
template <class T>
class TypedMinibatch {
 public:
  explicit TypedMinibatch(const Minibatch& batch)
      : H(batch.H.rows(), batch.H.cols()),
        outputs_(batch.outputs),
        offsets_(batch.offsets),
        indices_(batch.indices),
        values_(to_T(batch.values)),
        weights_(to_T(batch.weights)) {
    for (Size i = 0; i < H.size(); ++i) H.data()[i] = static_cast<T>(batch.H.data()[i]);
  }
  SparseBatch<T> targets() const { return {outputs_, offsets_, indices_, values_, weights_}; }

  Matrix<T> H;  // d x m

 private:
  static std::vector<T> to_T(const std::vector<double>& values) {
    std::vector<T> result;
    for (const double value : values) result.push_back(static_cast<T>(value));
    return result;
  }
  Size outputs_;
  std::vector<std::int64_t> offsets_;
  std::vector<Index> indices_;
  std::vector<T> values_, weights_;
};

class Oracle {
 public:
  /// @param W_transposed  W as layers hold it, d x D
  explicit Oracle(Matrix<double> W_transposed, double weight_decay = 0);

  struct Result {
    double loss = 0;        ///< Σⱼ wⱼ‖Whⱼ − yⱼ‖²
    Matrix<double> grad_H;  // d x m
    // What may cancel, hence what roundings are relative to, with the weights in H and Y:
    double loss_scale = 0;  ///< (‖W‖‖H‖ + ‖Y‖)², by the largest ‖W‖ so far
    double grad_scale = 0;  ///< 2‖W‖(‖W‖‖H‖ + ‖Y‖)
    double step_scale = 0;  ///< (‖W‖‖H‖ + ‖Y‖)‖H‖
  };

  Result evaluate(const Minibatch& batch) const;

  /// W ← (1 − ηλ) W − 2η (W H − Y) diag(w) Hᵀ. What it returns is from before the step.
  Result step(const Minibatch& batch, double eta);

  /// W H (D x m).
  Matrix<double> outputs(const Matrix<double>& H) const;

  /// WᵀW (d x d).
  Matrix<double> Q() const;

  Matrix<double> W;  // d x D
  double W_scale;    ///< the largest ‖W‖_F so far, or step of it: their roundings are still there

 private:
  /// R = W H − Y (D x m), with the loss and ∇H = 2 Wᵀ R diag(w) on the way.
  Matrix<double> residual(const Minibatch& batch, Result& result) const;

  double weight_decay_;
};

}  // namespace widehead::test
