/// What an output layer is asked without taking a step: probabilities, scores, the best outputs.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "widehead/output_layer.h"

namespace widehead {

// ── probabilities ───────────────────────────────────────────────────────────────────────────────

template <class T>
void OutputLayer<T>::log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out) {
  H = take_batch(H, targets, {}, "log_prob");
  if (!has_probabilities()) {
    throw std::invalid_argument(fmt::format("log_prob: loss {} has no probabilities", loss_name()));
  }
  if (static_cast<Size>(out.size()) != targets.nonzeros()) {
    throw std::invalid_argument(
        fmt::format("log_prob: out has room for {} values, but there are {} targets", out.size(), targets.nonzeros()));
  }
  compute_log_prob(H, targets, out);
}

template <class T>
void OutputLayer<T>::compute_log_prob(ConstView<T>, const SparseBatch<T>&, std::span<double>) {
  throw std::invalid_argument(fmt::format("log_prob: head {} has no probabilities", head()));
}

template <class T>
double OutputLayer<T>::perplexity(ConstView<T> H, const SparseBatch<T>& targets) {
  std::vector<double> log_p(static_cast<std::size_t>(targets.nonzeros()));
  log_prob(H, targets, log_p);
  double sum = 0, total = 0;
  for (Size e = 0; e < targets.nonzeros(); ++e) {
    const auto y = static_cast<double>(targets.value(e));
    sum += y * log_p[static_cast<std::size_t>(e)];
    total += y;
  }
  if (!(total > 0)) {
    throw std::invalid_argument(fmt::format("perplexity: the values of the targets add up to {}", total));
  }
  return std::exp(-sum / total);
}

template <class T>
void OutputLayer<T>::probabilities(ConstView<T> H, std::span<const Index> rows, MatrixView<double> out) {
  H = take_hidden(H, "probabilities");
  check_rows(rows, H.cols, out.rows, out.cols, out.stride, out.empty(), "probabilities");
  // Blocks of rows, each named by every example.
  const auto block = static_cast<std::size_t>(backend_->rows_per_block(dim()));
  const auto m = static_cast<std::size_t>(H.cols);
  for (std::size_t first = 0; first < rows.size(); first += block) {
    const auto part = rows.subspan(first, std::min(block, rows.size() - first));
    std::vector<std::int64_t> offsets(m + 1);
    std::vector<Index> indices;
    for (std::size_t j = 0; j < m; ++j) {
      indices.insert(indices.end(), part.begin(), part.end());
      offsets[j + 1] = static_cast<std::int64_t>(indices.size());
    }
    std::vector<double> log_p(indices.size());
    const std::vector<T> ones(indices.size(), T(1));
    log_prob(H, SparseBatch<T>(outputs(), offsets, indices, ones), log_p);
    for (std::size_t j = 0; j < m; ++j) {
      for (std::size_t r = 0; r < part.size(); ++r) {
        out(static_cast<Size>(first + r), static_cast<Size>(j)) = std::exp(log_p[j * part.size() + r]);
      }
    }
  }
}

// ── outputs ────────────────────────────────────────────────────────────────────────────────────

/// What is asked of `rows` for each example goes to an `out` of that shape.
template <class T>
void OutputLayer<T>::check_rows(std::span<const Index> rows, Size examples, Size out_rows, Size out_cols,
                                Size out_stride, bool out_empty, const char* what) const {
  const Size count = static_cast<Size>(rows.size());
  if (out_rows != count || out_cols != examples || out_stride < out_rows || (out_empty && count > 0)) {
    throw std::invalid_argument(fmt::format("{}: out is {} x {} (stride {}), but {} rows and {} examples were given",
                                            what, out_rows, out_cols, out_stride, count, examples));
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r] < 0 || rows[r] >= outputs()) {
      throw std::invalid_argument(fmt::format("{}: rows[{}] = {}, but D = {}", what, r, rows[r], outputs()));
    }
  }
}

template <class T>
void OutputLayer<T>::scores(ConstView<T> H, std::span<const Index> rows, MatrixView<T> out) {
  H = take_hidden(H, "scores");
  check_rows(rows, H.cols, out.rows, out.cols, out.stride, out.empty(), "scores");
  if (rows.empty()) return;
  begin_scores(H);
  const auto out_here = room_for(out);
  write_scores(rows, out_here);
  deliver(out_here, out);
}

template <class T>
TopK<T> OutputLayer<T>::top_k(ConstView<T> H, Size k) {
  H = take_hidden(H, "top_k");
  if (k < 1 || k > outputs()) {
    throw std::invalid_argument(fmt::format("top_k: k = {}, but it must be 1 … D = {}", k, outputs()));
  }
  const Size m = H.cols;
  begin_scores(H);
  const Size block = std::min(outputs(), backend_->rows_per_block(dim()));
  Matrix<T> block_scores(block, m, backend_->memory()), host_scores;
  std::vector<Index> rows(static_cast<std::size_t>(block));
  struct Candidate {
    T score;
    Index output;
  };
  const auto is_better = [](const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && a.output < b.output);
  };
  // Per example a heap of the k best so far, the worst of them on top.
  std::vector<std::vector<Candidate>> best(static_cast<std::size_t>(m));
  for (auto& heap : best) heap.reserve(static_cast<std::size_t>(k) + 1);
  for (Size first = 0; first < outputs(); first += block) {
    const Size count = std::min(block, outputs() - first);
    const auto scores = block_scores.view().block(0, 0, count, m);
    std::iota(rows.begin(), rows.begin() + count, static_cast<Index>(first));
    write_scores(std::span<const Index>(rows).first(static_cast<std::size_t>(count)), scores);
    const auto out = on_host<T>(scores, host_scores);
    for (Size j = 0; j < m; ++j) {
      auto& heap = best[static_cast<std::size_t>(j)];
      for (Size i = 0; i < count; ++i) {
        const Candidate candidate{out(i, j), static_cast<Index>(first + i)};
        if (static_cast<Size>(heap.size()) == k && !is_better(candidate, heap.front())) continue;
        heap.push_back(candidate);
        std::push_heap(heap.begin(), heap.end(), is_better);
        if (static_cast<Size>(heap.size()) > k) {
          std::pop_heap(heap.begin(), heap.end(), is_better);
          heap.pop_back();
        }
      }
    }
  }
  TopK<T> result{Matrix<Index>(k, m), Matrix<T>(k, m)};
  for (Size j = 0; j < m; ++j) {
    auto& heap = best[static_cast<std::size_t>(j)];
    std::sort_heap(heap.begin(), heap.end(), is_better);
    for (Size i = 0; i < k; ++i) {
      result.outputs(i, j) = heap[static_cast<std::size_t>(i)].output;
      result.scores(i, j) = heap[static_cast<std::size_t>(i)].score;
    }
  }
  return result;
}

#define WIDEHEAD_INSTANTIATE(T)                                                                           \
  template void OutputLayer<T>::log_prob(ConstView<T>, const SparseBatch<T>&, std::span<double>);         \
  template void OutputLayer<T>::compute_log_prob(ConstView<T>, const SparseBatch<T>&, std::span<double>); \
  template double OutputLayer<T>::perplexity(ConstView<T>, const SparseBatch<T>&);                        \
  template void OutputLayer<T>::probabilities(ConstView<T>, std::span<const Index>, MatrixView<double>);  \
  template void OutputLayer<T>::scores(ConstView<T>, std::span<const Index>, MatrixView<T>);              \
  template TopK<T> OutputLayer<T>::top_k(ConstView<T>, Size)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
