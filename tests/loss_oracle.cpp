#include "loss_oracle.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <variant>

namespace widehead::test {

std::vector<Target> targets_of(const Minibatch& batch, Size j) {
  std::vector<Target> targets;
  for (auto e = batch.offsets[static_cast<std::size_t>(j)]; e < batch.offsets[static_cast<std::size_t>(j) + 1]; ++e) {
    const Index output = batch.indices[static_cast<std::size_t>(e)];
    const double y = batch.values[static_cast<std::size_t>(e)];
    const auto known = std::find_if(targets.begin(), targets.end(), [&](const auto& t) { return t.output == output; });
    if (known != targets.end()) {
      known->y += y;
    } else {
      targets.push_back({output, y});
    }
  }
  return targets;
}

LossOracle::Result LossOracle::evaluate(const Minibatch& batch) const {
  const Size D = W.cols(), d = W.rows(), m = batch.examples();
  Result result;
  result.R = Matrix<double>(D, m);
  result.grad_H = Matrix<double>(d, m);
  const auto O = outputs(batch.H);
  double grad_squares = 0;
  for (Size j = 0; j < m; ++j) {
    const std::span<const double> o(O.view().column(j), static_cast<std::size_t>(D));
    const auto targets = targets_of(batch, j);
    const auto defined = loss_.define(o, targets);
    const double w = batch.weight(j);
    result.loss += w * defined.loss;
    for (Size i = 0; i < D; ++i) {
      result.R(i, j) = w * defined.r[static_cast<std::size_t>(i)];
      for (Size k = 0; k < d; ++k) result.grad_H(k, j) += W(k, i) * result.R(i, j);
    }
    const double size = norm<double>(batch.H.view().columns(j, 1)), o_size = W_scale * size, root = std::sqrt(D);
    const auto [a, b, g] = parts_of(o, targets);
    result.loss_scale += w * (std::abs(defined.loss) + a * o_size * o_size + b * root * o_size + g * o_size);
    const double r = 2 * a * o_size + b * root + g;
    grad_squares += w * w * r * r;
    result.step_scale += w * r * size;
    result.largest_a = std::max(result.largest_a, w * a);
  }
  result.grad_scale = W_scale * std::sqrt(grad_squares);
  return result;
}

double LossOracle::eta_for(const Minibatch& batch, const Result& result, double lambda) const {
  double largest_move = 0;  // of |R HᵀH|
  for (Size j = 0; j < batch.examples(); ++j) {
    for (Size i = 0; i < W.cols(); ++i) {
      double move = 0;
      for (Size l = 0; l < batch.examples(); ++l) {
        for (Size k = 0; k < W.rows(); ++k) move += result.R(i, l) * batch.H(k, l) * batch.H(k, j);
      }
      largest_move = std::max(largest_move, std::abs(move));
    }
  }
  const double size = norm(batch.H);
  const double eta = std::min({1.0, lambda / (2 * result.largest_a * size * size), 0.5 / largest_move});
  return static_cast<double>(static_cast<float>(eta));
}

void LossOracle::step(const Minibatch& batch, const Result& result, double eta) {
  const double c = 1 - eta * weight_decay_;
  for (Size i = 0; i < W.cols(); ++i) {
    for (Size k = 0; k < W.rows(); ++k) {
      double sum = 0;
      for (Size j = 0; j < batch.examples(); ++j) sum += result.R(i, j) * batch.H(k, j);
      W(k, i) = c * W(k, i) - eta * sum;
    }
  }
  W_scale = std::max({W_scale, norm(W), eta * result.step_scale});
}

Matrix<double> LossOracle::outputs(const Matrix<double>& H) const {
  Matrix<double> O(W.cols(), H.cols());
  for (Size j = 0; j < H.cols(); ++j) {
    for (Size i = 0; i < W.cols(); ++i) {
      for (Size k = 0; k < W.rows(); ++k) O(i, j) += W(k, i) * H(k, j);
    }
  }
  return O;
}

Matrix<double> LossOracle::sum_of_rows() const {
  Matrix<double> sum(W.rows(), 1);
  for (Size i = 0; i < W.cols(); ++i) {
    for (Size k = 0; k < W.rows(); ++k) sum(k, 0) += W(k, i);
  }
  return sum;
}

std::array<double, 3> LossOracle::parts_of(std::span<const double> o, const std::vector<Target>& targets) const {
  double q = 0, s = 0, sum = 0;
  for (const double value : o) q += value * value, s += value;
  std::vector<double> o_t, y, g(targets.size());
  for (const auto& target : targets) {
    o_t.push_back(o[static_cast<std::size_t>(target.output)]);
    y.push_back(target.y);
  }
  const LossInput input{q, s, static_cast<double>(o.size()), o_t, y};
  const auto value = std::visit([&](const auto& function) { return function(input, g); }, loss_.loss);
  for (const double part : g) sum += std::abs(part);
  return {std::abs(value.a), std::abs(value.b), sum};
}

}  // namespace widehead::test
