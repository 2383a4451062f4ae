#include "widehead/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "widehead/dense_layer.h"
#include "widehead/device.h"
#include "widehead/errors.h"

namespace widehead {

template <class T>
double relative_difference(ConstView<T> A, MatrixView<const double> B) {
  double difference = 0, norm = 0;
  for (Size j = 0; j < A.cols; ++j) {
    for (Size i = 0; i < A.rows; ++i) {
      const double a = static_cast<double>(A(i, j)), b = B(i, j);
      difference += (a - b) * (a - b);
      norm += b * b;
    }
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

namespace {

double norm_of(MatrixView<const double> A) {
  double sum = 0;
  for (Size j = 0; j < A.cols; ++j) {
    for (Size i = 0; i < A.rows; ++i) sum += A(i, j) * A(i, j);
  }
  return std::sqrt(sum);
}

/// ‖w̄ − w̄*‖ / max(‖w̄*‖, ‖W*‖_F): rows whose signs are random add up to about ‖W‖_F, and rows that cancel
/// (a loss that ignores a common shift keeps w̄* at its first value) leave the rounding of those.
template <class T>
double difference_of_sums(ConstView<T> w_bar, MatrixView<const double> truth, MatrixView<const double> W) {
  const double norm = norm_of(truth), scale = std::max(norm, norm_of(W));
  const double difference = relative_difference<T>(w_bar, truth) * (norm > 0 ? norm : 1);
  return scale > 0 ? difference / scale : difference;
}

}  // namespace

template <class T>
VerifyReport verify(const VerifyOptions& options, const std::function<void(std::int64_t)>& progress) {
  auto data = options.data;
  data.outputs = options.head.layer.outputs;
  data.dim = options.head.layer.dim;
  const SyntheticStream<double> stream(data);
  const auto layer = make_head<T>(options.head, make_backend<T>(options.device, options.threads, options.tf32));
  const auto verifiable = spherical_head_names();
  if (std::find(verifiable.begin(), verifiable.end(), layer->head()) == verifiable.end()) {
    throw std::invalid_argument(fmt::format("verify: head '{}' minimises the {}, which the dense layer does not",
                                            layer->head(), layer->loss_name()));
  }
  DenseLayer<double> truth(options.head.layer, make_cpu_backend<double>(options.threads));
  Matrix<T> grad_H(data.dim, data.batch);
  Matrix<double> true_grad_H(data.dim, data.batch);

  VerifyReport report;
  for (std::int64_t t = 0; t < options.steps; ++t) {
    const auto true_batch = stream.batch(static_cast<std::uint64_t>(t));
    const auto batch = true_batch.template as<T>();  // its values are floats: nothing is lost
    // Both layers take the same η, one that the head's precision can hold.
    const auto eta =
        static_cast<double>(static_cast<T>(truth.eta_for(true_batch.H, true_batch.targets(), options.lambda)));
    try {
      report.losses.push_back(layer->step(batch.H, batch.targets(), eta, grad_H));
    } catch (const NumericalError& error) {
      report.error = error.what();
      break;
    }
    report.dense_losses.push_back(truth.step(true_batch.H, true_batch.targets(), eta, true_grad_H));
    report.steps = t + 1;
    if (progress) progress(report.steps);
  }
  report.rel_W = relative_difference<T>(layer->weights(), truth.weights());
  report.rel_Q = relative_difference<T>(layer->gram(), truth.gram());
  report.rel_w_bar = difference_of_sums<T>(layer->sum_of_rows(), truth.sum_of_rows(), truth.weights());
  if (report.steps > 0) {
    report.rel_grad = relative_difference<T>(grad_H, true_grad_H);
    const double L = report.dense_losses.back();
    report.rel_loss = std::abs(report.losses.back() - L) / (L > 0 ? L : 1);
  }
  report.diagnostics = layer->diagnostics();
  return report;
}

template VerifyReport verify<float>(const VerifyOptions&, const std::function<void(std::int64_t)>&);
template VerifyReport verify<double>(const VerifyOptions&, const std::function<void(std::int64_t)>&);
template double relative_difference<float>(ConstView<float>, MatrixView<const double>);
template double relative_difference<double>(ConstView<double>, MatrixView<const double>);

}  // namespace widehead
