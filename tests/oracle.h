#pragma once
/// The definition: W itself, updated explicitly in double, O(Dd), in plain loops that share nothing
/// with the library's layers. What every test of a layer compares with. The loops go along columns by
/// pointer: tests are hardly optimised, and spend much of their time here.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
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
  double magnitude(Size j) const {
    double sum = 0;
    for (auto e = offsets[static_cast<std::size_t>(j)]; e < offsets[static_cast<std::size_t>(j) + 1]; ++e) {
      sum += std::abs(values[static_cast<std::size_t>(e)]);
    }
    return sum;
  }
  /// Y (D x m) with its zeros; an output named twice counts with the sum of its values.
  Matrix<double> Y() const {
    Matrix<double> Y(outputs, examples());
    for (Size j = 0; j < examples(); ++j) {
      for (auto e = offsets[static_cast<std::size_t>(j)]; e < offsets[static_cast<std::size_t>(j) + 1]; ++e) {
        Y(indices[static_cast<std::size_t>(e)], j) += values[static_cast<std::size_t>(e)];
      }
    }
    return Y;
  }
};

struct MinibatchShape {
  Size outputs, dim, batch, nonzeros;
  bool weighted = false;
};

/// K entries per example, now and then the one before once more; weights include a 0.
inline Minibatch make_minibatch(Dice& dice, const MinibatchShape& shape) {
  Minibatch batch;
  batch.outputs = shape.outputs;
  batch.H = dice.matrix<double>(shape.dim, shape.batch);
  for (Size j = 0; j < shape.batch; ++j) {
    for (Size k = 0; k < shape.nonzeros; ++k) {
      const bool repeat = k > 0 && dice.between(0, 2) == 0;
      batch.indices.push_back(repeat ? batch.indices.back() : static_cast<Index>(dice.between(0, shape.outputs - 1)));
      batch.values.push_back(dice.normal());
    }
    batch.offsets.push_back(static_cast<std::int64_t>(batch.indices.size()));
    if (shape.weighted) batch.weights.push_back(j == 1 ? 0 : dice.uniform(0.1, 3));
  }
  return batch;
}

/// The η (a float, at most 1) at which λ₁ = 2η‖H diag(√w)‖₂² is at most `lambda`, by the Frobenius norm.
inline double eta_for(const Minibatch& batch, double lambda) {
  double sum = 0;
  for (Size j = 0; j < batch.examples(); ++j) {
    for (Size i = 0; i < batch.H.rows(); ++i) sum += batch.weight(j) * batch.H(i, j) * batch.H(i, j);
  }
  return static_cast<double>(static_cast<float>(std::min(1.0, lambda / (2 * sum))));
}

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
  explicit Oracle(Matrix<double> W_transposed, double weight_decay = 0)
      : W(std::move(W_transposed)), W_scale(norm(W)), weight_decay_(weight_decay) {}

  struct Result {
    double loss = 0;        ///< Σⱼ wⱼ‖Whⱼ − yⱼ‖²
    Matrix<double> grad_H;  // d x m
    // What may cancel, hence what roundings are relative to, with the weights in H and Y:
    double loss_scale = 0;  ///< (‖W‖‖H‖ + ‖Y‖)², by the largest ‖W‖ so far
    double grad_scale = 0;  ///< 2‖W‖(‖W‖‖H‖ + ‖Y‖)
    double step_scale = 0;  ///< (‖W‖‖H‖ + ‖Y‖)‖H‖
  };

  Result evaluate(const Minibatch& batch) const {
    Result result;
    residual(batch, result);
    return result;
  }

  /// W ← (1 − ηλ) W − 2η (W H − Y) diag(w) Hᵀ. What it returns is from before the step.
  Result step(const Minibatch& batch, double eta) {
    Result result;
    const auto R = residual(batch, result);
    const double c = 1 - eta * weight_decay_;
    const Size d = W.rows();
    std::vector<double> sums(static_cast<std::size_t>(d));
    for (Size i = 0; i < W.cols(); ++i) {
      double *w = W.view().column(i), *sum = sums.data();
      std::fill(sums.begin(), sums.end(), 0);
      for (Size j = 0; j < R.cols(); ++j) {
        const double r = R(i, j) * batch.weight(j);
        const double* h = batch.H.view().column(j);
        for (Size k = 0; k < d; ++k) sum[k] += r * h[k];
      }
      for (Size k = 0; k < d; ++k) w[k] = c * w[k] - 2 * eta * sum[k];
    }
    W_scale = std::max({W_scale, norm(W), 2 * eta * result.step_scale});
    return result;
  }

  /// W H (D x m).
  Matrix<double> outputs(const Matrix<double>& H) const {
    Matrix<double> O(W.cols(), H.cols());
    const Size d = W.rows();
    for (Size j = 0; j < H.cols(); ++j) {
      const double* h = H.view().column(j);
      for (Size i = 0; i < W.cols(); ++i) {
        const double* w = W.view().column(i);
        double sum = 0;
        for (Size k = 0; k < d; ++k) sum += w[k] * h[k];
        O(i, j) = sum;
      }
    }
    return O;
  }

  /// WᵀW (d x d).
  Matrix<double> Q() const {
    Matrix<double> Q(W.rows(), W.rows());
    const Size d = W.rows();
    for (Size i = 0; i < W.cols(); ++i) {
      const double* w = W.view().column(i);
      for (Size l = 0; l < d; ++l) {
        double* q = Q.view().column(l);
        for (Size k = 0; k < d; ++k) q[k] += w[k] * w[l];
      }
    }
    return Q;
  }

  Matrix<double> W;  // d x D
  double W_scale;    ///< the largest ‖W‖_F so far, or step of it: their roundings are still there

 private:
  /// R = W H − Y (D x m), with the loss and ∇H = 2 Wᵀ R diag(w) on the way.
  Matrix<double> residual(const Minibatch& batch, Result& result) const {
    auto R = outputs(batch.H);
    const auto Y = batch.Y();
    result.grad_H = Matrix<double>(W.rows(), batch.examples());
    double squares_H = 0, squares_Y = 0, largest_weight = 0;
    const Size d = W.rows();
    for (Size j = 0; j < batch.examples(); ++j) {
      const double w = batch.weight(j);
      double* grad = result.grad_H.view().column(j);
      largest_weight = std::max(largest_weight, w);
      for (Size k = 0; k < W.rows(); ++k) squares_H += w * batch.H(k, j) * batch.H(k, j);
      squares_Y += w * batch.magnitude(j) * batch.magnitude(j);
      for (Size i = 0; i < W.cols(); ++i) {
        const double r = R(i, j) - Y(i, j);
        R(i, j) = r;
        result.loss += w * r * r;
        const double* w_i = W.view().column(i);
        for (Size k = 0; k < d; ++k) grad[k] += 2 * w_i[k] * r * w;
      }
    }
    const double size = W_scale * std::sqrt(squares_H) + std::sqrt(squares_Y);
    result.loss_scale = size * size;
    result.step_scale = size * std::sqrt(squares_H);
    result.grad_scale = 2 * W_scale * size * std::sqrt(largest_weight);
    return R;
  }

  double weight_decay_;
};

}  // namespace widehead::test
