#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "compare.h"

namespace widehead::test {

double Minibatch::magnitude(Size j) const {
  double sum = 0;
  for (auto e = offsets[static_cast<std::size_t>(j)]; e < offsets[static_cast<std::size_t>(j) + 1]; ++e) {
    sum += std::abs(values[static_cast<std::size_t>(e)]);
  }
  return sum;
}

Matrix<double> Minibatch::Y() const {
  Matrix<double> Y(outputs, examples());
  for (Size j = 0; j < examples(); ++j) {
    for (auto e = offsets[static_cast<std::size_t>(j)]; e < offsets[static_cast<std::size_t>(j) + 1]; ++e) {
      Y(indices[static_cast<std::size_t>(e)], j) += values[static_cast<std::size_t>(e)];
    }
  }
  return Y;
}

Minibatch make_minibatch(Dice& dice, const MinibatchShape& shape) {
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

double eta_for(const Minibatch& batch, double lambda) {
  double sum = 0;
  for (Size j = 0; j < batch.examples(); ++j) {
    for (Size i = 0; i < batch.H.rows(); ++i) sum += batch.weight(j) * batch.H(i, j) * batch.H(i, j);
  }
  return static_cast<double>(static_cast<float>(std::min(1.0, lambda / (2 * sum))));
}

Oracle::Oracle(Matrix<double> W_transposed, double weight_decay)
    : W(std::move(W_transposed)), W_scale(norm(W)), weight_decay_(weight_decay) {}

Oracle::Result Oracle::evaluate(const Minibatch& batch) const {
  Result result;
  residual(batch, result);
  return result;
}

Oracle::Result Oracle::step(const Minibatch& batch, double eta) {
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

Matrix<double> Oracle::outputs(const Matrix<double>& H) const {
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

Matrix<double> Oracle::Q() const {
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

Matrix<double> Oracle::residual(const Minibatch& batch, Result& result) const {
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

}  // namespace widehead::test
