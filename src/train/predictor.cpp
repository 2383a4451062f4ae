#include "widehead/train/predictor.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "../eval/best_list.h"

namespace widehead {
namespace {

constexpr Size outputs_per_block = 8192;

/// A device computes scores, and the host ranks them: with as many threads as there are, not with the device's one.
template <class T>
int ranking_threads(Backend<T>& backend, int threads) {
  if (backend.memory().is_host()) return backend.threads();
  return threads > 0 ? threads : omp_get_num_procs();
}

}  // namespace

template <class T>
Predictor<T>::Predictor(Network<T>& network, std::vector<T> target_scale, int threads)
    : network_(network),
      target_scale_(std::move(target_scale)),
      threads_(ranking_threads(network.head().backend(), threads)) {}

template <class T>
void Predictor<T>::for_each_block_of_scores(ConstView<T> H, const std::function<void(Size, ConstView<T>)>& visit) {
  auto& head = network_.head();
  std::vector<Index> rows;
  for (Size first = 0; first < head.outputs(); first += outputs_per_block) {
    rows.resize(static_cast<std::size_t>(std::min(outputs_per_block, head.outputs() - first)));
    std::iota(rows.begin(), rows.end(), static_cast<Index>(first));
    const auto scores = scores_.scratch(static_cast<Size>(rows.size()), H.cols);
    head.scores(H, rows, scores);
    if (!target_scale_.empty()) {
      for (Size j = 0; j < H.cols; ++j) {
        for (Size i = 0; i < scores.rows; ++i) scores(i, j) /= target_scale_[static_cast<std::size_t>(first + i)];
      }
    }
    visit(first, scores);
  }
}

template <class T>
std::vector<std::vector<Scored>> Predictor<T>::top_k(const SparseBatch<T>& X, Size k,
                                                     const std::function<std::span<const Index>(Size)>& excluded) {
  const auto H = network_.hidden(X);
  std::vector<BestList<T>> best(static_cast<std::size_t>(H.cols), BestList<T>(k));
  for_each_block_of_scores(H, [&](Size first, ConstView<T> scores) {
#pragma omp parallel for num_threads(threads_)
    for (Size j = 0; j < H.cols; ++j) {
      const auto unwanted = excluded ? excluded(j) : std::span<const Index>();
      auto next = std::ranges::lower_bound(unwanted, static_cast<Index>(first));
      for (Size i = 0; i < scores.rows; ++i) {
        const auto output = static_cast<Index>(first + i);
        if (next != unwanted.end() && *next == output) {
          ++next;
        } else {
          best[static_cast<std::size_t>(j)].offer(output, scores(i, j));
        }
      }
    }
  });
  std::vector<std::vector<Scored>> result;
  for (auto& list : best) {
    auto& scored = result.emplace_back();
    for (const auto& [output, score] : list.take()) scored.push_back({output, static_cast<double>(score)});
  }
  return result;
}

template <class T>
std::vector<double> Predictor<T>::ranks(const SparseBatch<T>& X, const SparseBatch<T>& targets) {
  if (targets.nonzeros() != targets.examples()) {
    throw std::invalid_argument(
        fmt::format("ranks: {} targets for {} examples, but each has one", targets.nonzeros(), targets.examples()));
  }
  const auto H = network_.hidden(X);
  const auto m = static_cast<std::size_t>(H.cols);
  std::vector<Index> rows(m);
  for (std::size_t j = 0; j < m; ++j) rows[j] = targets.index(static_cast<Size>(j));
  Matrix<T> own(H.cols, H.cols);  // the targets of all examples; the diagonal is wanted
  network_.head().scores(H, rows, own);
  std::vector<double> ranks(m, 1.0);
  for_each_block_of_scores(H, [&](Size first, ConstView<T> scores) {
#pragma omp parallel for num_threads(threads_)
    for (std::size_t j = 0; j < m; ++j) {
      const Size target = rows[j] - first;
      const T* score = scores.column(static_cast<Size>(j));
      const T scale = target_scale_.empty() ? T(1) : target_scale_[static_cast<std::size_t>(rows[j])];
      const T limit = own(static_cast<Size>(j), static_cast<Size>(j)) / scale;
      Size higher = 0, equal = 0;
#pragma omp simd reduction(+ : higher, equal)
      for (Size i = 0; i < scores.rows; ++i) {
        higher += i != target && score[i] > limit ? 1 : 0;
        equal += i != target && score[i] == limit ? 1 : 0;
      }
      ranks[j] += static_cast<double>(higher) + 0.5 * static_cast<double>(equal);
    }
  });
  return ranks;
}

template class Predictor<float>;
template class Predictor<double>;

}  // namespace widehead
