#include "cross_entropy_oracle.h"

#include <algorithm>
#include <cmath>

namespace widehead::test {

Minibatch make_positive_minibatch(Dice& dice, const MinibatchShape& shape) {
  auto batch = make_minibatch(dice, shape);
  for (auto& value : batch.values) value = std::abs(value);
  return batch;
}

std::vector<double> log_softmax(const std::vector<double>& logits) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  double Z = 0;
  for (const double o : logits) Z += std::exp(o - peak);
  auto result = logits;
  for (auto& o : result) o -= peak + std::log(Z);
  return result;
}

CrossEntropyOracle::Result CrossEntropyOracle::evaluate(const Minibatch& batch) const {
  Result result;
  result.grad_H = Matrix<double>(W.rows(), batch.examples());
  result.grad_W = Matrix<double>(W.rows(), W.cols());
  result.grad_A = Matrix<double>(W.rows(), A.cols());
  const auto Y = batch.Y();
  for (Size j = 0; j < batch.examples(); ++j) {
    result.mass += batch.weight(j) * batch.magnitude(j);
    if (starts_.empty()) {
      add_level(batch, Y, j, candidates(Y, j), W, result.grad_W, result);
      continue;
    }
    Matrix<double> Y_classes(A.cols(), batch.examples());
    for (Size c = 0; c < A.cols(); ++c) {
      std::vector<Size> members;
      bool has_targets = false;
      for (Size i = start(c); i < start(c + 1); ++i) {
        members.push_back(i);
        Y_classes(c, j) += Y(i, j);
        has_targets = has_targets || Y(i, j) > 0;
      }
      if (has_targets) add_level(batch, Y, j, members, W, result.grad_W, result);
    }
    std::vector<Size> classes;
    for (Size c = 0; c < A.cols(); ++c) classes.push_back(c);
    add_level(batch, Y_classes, j, classes, A, result.grad_A, result);
  }
  return result;
}

CrossEntropyOracle::Result CrossEntropyOracle::step(const Minibatch& batch, double eta) {
  auto result = evaluate(batch);
  const double c = 1 - eta * weight_decay_;
  for (Size i = 0; i < W.size(); ++i) W.data()[i] = c * W.data()[i] - eta * result.grad_W.data()[i];
  for (Size i = 0; i < A.size(); ++i) A.data()[i] -= eta * result.grad_A.data()[i];
  return result;
}

std::vector<double> CrossEntropyOracle::log_p(const Matrix<double>& H, Size j) const {
  std::vector<double> logits;
  for (Size i = 0; i < W.cols(); ++i) logits.push_back(dot(W, i, H, j));
  if (starts_.empty()) return log_softmax(logits);
  std::vector<double> of_classes, result;
  for (Size c = 0; c < A.cols(); ++c) of_classes.push_back(dot(A, c, H, j));
  of_classes = log_softmax(of_classes);
  for (Size c = 0; c < A.cols(); ++c) {
    for (const double within : log_softmax({logits.begin() + start(c), logits.begin() + start(c + 1)})) {
      result.push_back(of_classes[static_cast<std::size_t>(c)] + within);
    }
  }
  return result;
}

double CrossEntropyOracle::dot(const Matrix<double>& rows, Size i, const Matrix<double>& H, Size j) {
  double sum = 0;
  for (Size k = 0; k < rows.rows(); ++k) sum += rows(k, i) * H(k, j);
  return sum;
}

std::vector<Size> CrossEntropyOracle::candidates(const Matrix<double>& Y, Size j) const {
  std::vector<Size> list;
  for (Size i = 0; i < W.cols(); ++i) {
    const bool drawn = std::find(sample_.begin(), sample_.end(), static_cast<Index>(i)) != sample_.end();
    if (!is_sampled_ || drawn || Y(i, j) > 0) list.push_back(i);
  }
  return list;
}

void CrossEntropyOracle::add_level(const Minibatch& batch, const Matrix<double>& Y, Size j,
                                   const std::vector<Size>& members, const Matrix<double>& rows,
                                   Matrix<double>& grad_rows, Result& result) const {
  if (members.empty()) return;
  std::vector<double> logits;
  double mass = 0;
  for (const Size i : members) {
    const double correction = is_sampled_ ? std::log(expected_counts_[static_cast<std::size_t>(i)]) : 0;
    logits.push_back(dot(rows, i, batch.H, j) - correction);
    mass += Y(i, j);
  }
  const auto log_p = log_softmax(logits);
  for (std::size_t n = 0; n < members.size(); ++n) {
    const Size i = members[n];
    result.loss -= batch.weight(j) * Y(i, j) * log_p[n];
    const double r = batch.weight(j) * (mass * std::exp(log_p[n]) - Y(i, j));
    for (Size k = 0; k < rows.rows(); ++k) {
      result.grad_H(k, j) += rows(k, i) * r;
      grad_rows(k, i) += r * batch.H(k, j);
    }
  }
}

}  // namespace widehead::test
