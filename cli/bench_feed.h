#pragma once
/// What the layers of a benchmark are fed with.

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "widehead/output_layer.h"
#include "widehead/synthetic.h"
#include "widehead/train/trainer.h"

namespace widehead::cli {

/// Minibatches for a benchmark: hidden vectors made ahead of time and used in turn, each with the η
/// that gives λ₁, and fresh targets for every step, so that rows are met as in training.
template <class T>
class Feed {
 public:
  /// @param a  the curvature of the loss
  Feed(const SyntheticOptions& data, double a, double lambda, Backend<T>& backend)
      : stream_(data), waits_(backend.memory().is_host()) {
    const std::uint64_t distinct = waits_ ? 16 : 64;
    for (std::uint64_t t = 0; t < distinct; ++t) {
      batches_.push_back(stream_.batch(t));
      etas_.push_back(lambda / (2 * a * spectral_norm_squared<T>(batches_.back().H)));
      const auto& H = batches_.back().H;
      H_.emplace_back(H.rows(), H.cols(), backend.memory());
      backend.template transfer<T>(H.view(), H_.back());
    }
    if (waits_) return;
    targets_.resize(static_cast<std::size_t>(Trainer<T>::most_enqueued));
    for (auto& targets : targets_) targets.outputs = data.outputs;
  }
  /// Takes steps of a layer; returns the seconds of the steps alone, and how many they were.
  std::pair<double, std::int64_t> steps(OutputLayer<T>& layer, MatrixView<T> grad_H) {
    return waits_ ? std::pair{step(layer, grad_H), std::int64_t{1}} : enqueue_steps(layer, grad_H);
  }
  /// Takes the next step of a layer; returns the seconds of the step alone.
  double step(OutputLayer<T>& layer, MatrixView<T> grad_H) {
    auto& batch = batches_[t_ % batches_.size()];
    stream_.redraw_targets(t_, batch);
    const auto targets = batch.targets();
    const auto start = std::chrono::steady_clock::now();
    layer.step(H_[t_ % batches_.size()], targets, etas_[t_ % batches_.size()], grad_H);
    ++t_;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  /// As many as a training loop gives a device: nobody waits before the last.
  std::pair<double, std::int64_t> enqueue_steps(OutputLayer<T>& layer, MatrixView<T> grad_H) {
    for (auto& batch : targets_) stream_.redraw_targets(t_++, batch);
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t k = 0; k < targets_.size(); ++k) {
      const std::size_t number = k % H_.size();
      layer.enqueue_step(H_[number], targets_[k].targets(), etas_[number], grad_H);
    }
    layer.settle();
    return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
            static_cast<std::int64_t>(targets_.size())};
  }

  SyntheticStream<T> stream_;
  bool waits_;
  std::vector<Matrix<T>> H_;  // of the batches, where the layer is
  std::vector<SyntheticBatch<T>> batches_;
  std::vector<SyntheticBatch<T>> targets_;  // of steps that are enqueued, without H
  std::vector<double> etas_;
  std::uint64_t t_ = 0;
};

}  // namespace widehead::cli
