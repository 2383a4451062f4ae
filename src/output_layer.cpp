#include "widehead/output_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "widehead/errors.h"
#include "widehead/random.h"
#include "widehead/synthetic.h"

namespace widehead {
namespace {

constexpr std::uint32_t initial_stream = 0x57;  // "W"

}  // namespace

template <class T>
OutputLayer<T>::OutputLayer(const LayerOptions& options, std::shared_ptr<Backend<T>> backend)
    : options_(options), backend_(std::move(backend)) {
  if (!backend_) throw std::invalid_argument("layer: backend is null");
  if (options.outputs < 1 || options.outputs > std::numeric_limits<Index>::max()) {
    throw std::invalid_argument(fmt::format("layer: outputs (D) = {}, but it must be 1 … {}", options.outputs,
                                            std::numeric_limits<Index>::max()));
  }
  if (options.dim < 1 || options.dim > (1 << 16)) {
    throw std::invalid_argument(fmt::format("layer: dim (d) = {}, but it must be 1 … {}", options.dim, 1 << 16));
  }
  if (!(options.weight_decay >= 0) || !std::isfinite(options.weight_decay)) {
    throw std::invalid_argument(
        fmt::format("layer: weight_decay = {}, but it must be finite and not negative", options.weight_decay));
  }
  check(options.loss);
  if (!(options.initial_scale >= 0) || !std::isfinite(options.initial_scale)) {
    throw std::invalid_argument(
        fmt::format("layer: initial_scale = {}, but it must be finite and not negative", options.initial_scale));
  }
}

// ── what every call checks ──────────────────────────────────────────────────────────────────────

template <class T>
void OutputLayer<T>::check_hidden(ConstView<T> H, const char* what) const {
  if (H.empty() || H.rows != dim() || H.cols < 1 || H.stride < H.rows) {
    throw std::invalid_argument(fmt::format("{}: H is {} x {} (stride {}), but d = {} and m must be at least 1", what,
                                            H.rows, H.cols, H.stride, dim()));
  }
  if (std::isfinite(backend_->rough_squared_norm(H))) return;
  if (const Size bad = backend_->find_non_finite(H); bad >= 0) {
    const Size i = bad % H.rows, j = bad / H.rows;
    throw std::invalid_argument(
        fmt::format("{}: H({}, {}) = {} is not finite (unit {} of example {})", what, i, j, H(i, j), i, j));
  }
}

template <class T>
void OutputLayer<T>::check_batch(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H,
                                 const char* what) const {
  check_hidden(H, what);
  if (targets.outputs() != outputs()) {
    throw std::invalid_argument(
        fmt::format("{}: targets are for D = {}, but the layer has D = {}", what, targets.outputs(), outputs()));
  }
  if (targets.examples() != H.cols) {
    throw std::invalid_argument(
        fmt::format("{}: {} targets for {} examples (columns of H)", what, targets.examples(), H.cols));
  }
  if (!grad_H.empty() && (grad_H.rows != H.rows || grad_H.cols != H.cols || grad_H.stride < grad_H.rows)) {
    throw std::invalid_argument(fmt::format("{}: grad_H is {} x {} (stride {}), but H is {} x {}", what, grad_H.rows,
                                            grad_H.cols, grad_H.stride, H.rows, H.cols));
  }
}

template <class T>
void OutputLayer<T>::check_rate(double eta) const {
  if (!(eta >= 0) || !std::isfinite(static_cast<T>(eta))) {
    throw std::invalid_argument(fmt::format("step: eta = {}, but it must be finite and not negative", eta));
  }
  if (!(eta * options_.weight_decay < 1) || !(shrinkage(static_cast<T>(eta)) > T(0))) {
    throw std::invalid_argument(fmt::format("step: eta · weight_decay = {} · {} = {}, but it must be less than 1", eta,
                                            options_.weight_decay, eta * options_.weight_decay));
  }
}

template <class T>
double OutputLayer<T>::step(ConstView<T> H, const SparseBatch<T>& targets, double eta, MatrixView<T> grad_H) {
  check_batch(H, targets, grad_H, "step");
  check_rate(eta);
  const double loss = take_step(H, targets, static_cast<T>(eta), grad_H);
  count_step();
  return loss;
}

template <class T>
double OutputLayer<T>::evaluate(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) {
  check_batch(H, targets, grad_H, "evaluate");
  return compute_loss(H, targets, grad_H);
}

template <class T>
double OutputLayer<T>::eta_for(ConstView<T> H, const SparseBatch<T>& targets, double lambda, double tolerance) {
  check_batch(H, targets, {}, "eta_for");
  if (!(lambda >= 0) || !std::isfinite(lambda)) {
    throw std::invalid_argument(fmt::format("eta_for: lambda = {}, but it must be finite and not negative", lambda));
  }
  auto weighted_H = H;
  if (targets.weighted()) {
    const auto copy = weighted_H_.scratch(H.rows, H.cols);
    backend_->copy(H, copy);
    for (Size j = 0; j < H.cols; ++j) backend_->scale(std::sqrt(targets.weight(j)), copy.columns(j, 1));
    weighted_H = copy;
  }
  const double norm = curvature() * spectral_norm_squared<T>(weighted_H, tolerance);
  return norm > 0 ? lambda / (2 * norm) : 0;
}

// ── probabilities ───────────────────────────────────────────────────────────────────────────────

template <class T>
void OutputLayer<T>::log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out) {
  check_batch(H, targets, {}, "log_prob");
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
  check_hidden(H, "probabilities");
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

// ── outputs and weights ─────────────────────────────────────────────────────────────────────────

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
  check_hidden(H, "scores");
  check_rows(rows, H.cols, out.rows, out.cols, out.stride, out.empty(), "scores");
  if (rows.empty()) return;
  begin_scores(H);
  write_scores(rows, out);
}

template <class T>
TopK<T> OutputLayer<T>::top_k(ConstView<T> H, Size k) {
  check_hidden(H, "top_k");
  if (k < 1 || k > outputs()) {
    throw std::invalid_argument(fmt::format("top_k: k = {}, but it must be 1 … D = {}", k, outputs()));
  }
  const Size m = H.cols;
  begin_scores(H);
  const Size block = std::min(outputs(), backend_->rows_per_block(dim()));
  Matrix<T> block_scores(block, m);
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
    const auto out = block_scores.view().block(0, 0, count, m);
    std::iota(rows.begin(), rows.begin() + count, static_cast<Index>(first));
    write_scores(std::span<const Index>(rows).first(static_cast<std::size_t>(count)), out);
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

template <class T>
void OutputLayer<T>::weights(Size first, MatrixView<T> out) {
  if (first < 0 || out.cols < 0 || first > outputs() - out.cols) {
    throw std::invalid_argument(
        fmt::format("weights: rows {} … {}, but D = {}", first, first + out.cols - 1, outputs()));
  }
  if (out.rows != dim() || out.stride < out.rows || (out.empty() && out.cols > 0)) {
    throw std::invalid_argument(
        fmt::format("weights: out is {} x {} (stride {}), but d = {}", out.rows, out.cols, out.stride, dim()));
  }
  if (out.cols > 0) write_weights(first, out);
}

template <class T>
Matrix<T> OutputLayer<T>::weights() {
  Matrix<T> W(dim(), outputs());
  weights(0, W);
  return W;
}

template <class T>
void OutputLayer<T>::for_each_block_of_rows(const std::function<void(Size, ConstView<T>)>& visit) {
  const Size block = std::min(outputs(), backend_->rows_per_block(dim()));
  Matrix<T> W(dim(), block);
  for (Size first = 0; first < outputs(); first += block) {
    const auto W_block = W.view().columns(0, std::min(block, outputs() - first));
    write_weights(first, W_block);
    visit(first, W_block);
  }
}

// ── state ───────────────────────────────────────────────────────────────────────────────────────

template <class T>
void OutputLayer<T>::visit_state(StateVisitor& visitor) {
  visitor.count("steps", steps_);
  visit_own_state(visitor);
}

template <class T>
void OutputLayer<T>::visit_own_state(StateVisitor&) {
  throw std::logic_error(fmt::format("state: head {} cannot be saved", head()));
}

// ── helpers for implementations ─────────────────────────────────────────────────────────────────

template <class T>
void OutputLayer<T>::fill_initial(MatrixView<T> W) const {
  if (options_.initial == Initial::zero) return;
  if (options_.initial == Initial::given) {
    if (!options_.initial_weights) return;
    std::vector<double> row(static_cast<std::size_t>(dim()));
    for (Size i = 0; i < outputs(); ++i) {
      options_.initial_weights(i, row);
      for (Size k = 0; k < dim(); ++k) {
        const double value = row[static_cast<std::size_t>(k)];
        if (!std::isfinite(static_cast<T>(value))) {
          throw std::invalid_argument(fmt::format("layer: initial W({}, {}) = {} is not finite", i, k, value));
        }
        W(k, i) = static_cast<T>(value);
      }
    }
    return;
  }
  const double scale =
      options_.initial_scale > 0 ? options_.initial_scale : 1 / std::sqrt(static_cast<double>(outputs()));
  const Random random(options_.seed, initial_stream);
#pragma omp parallel for num_threads(backend_->threads())
  for (Size i = 0; i < W.cols; ++i) {
    T* row = W.column(i);
    for (Size k = 0; k < W.rows; k += 2) {
      const auto [a, b] = random.normal(static_cast<std::uint64_t>(i), static_cast<std::uint32_t>(k));
      row[k] = static_cast<float>(scale * a);  // a float in either precision: both start from the same W
      if (k + 1 < W.rows) row[k + 1] = static_cast<float>(scale * b);
    }
  }
}

template <class T>
void OutputLayer<T>::multiply_rows(ConstView<T> R, std::span<const Index> rows, ConstView<T> G, MatrixView<T> out) {
  const Size count = static_cast<Size>(rows.size());
  bool consecutive = true;
  for (std::size_t r = 1; r < rows.size(); ++r) consecutive = consecutive && rows[r] == rows[r - 1] + 1;
  auto selected = R.columns(rows.front(), count);
  if (!consecutive) {
    const auto copies = selected_.scratch(R.rows, count);
    backend_->select(R, rows, copies);
    selected = copies;
  }
  backend_->gemm(Op::transpose, Op::none, T(1), selected, G, T(0), out);
}

template <class T>
void OutputLayer<T>::gram_of_rows(ConstView<T> rows, MatrixView<T> G) {
  const Size block = backend_->rows_per_block(dim());
  for (Size first = 0; first < rows.cols; first += block) {
    const auto part = rows.columns(first, std::min(block, rows.cols - first));
    backend_->gemm(Op::none, Op::transpose, T(1), part, part, first == 0 ? T(0) : T(1), G);
  }
  backend_->symmetrize(G);
}

template <class T>
void OutputLayer<T>::sum_rows(ConstView<T> rows, MatrixView<double> sum) const {
  for (Size i = 0; i < rows.cols; ++i) {
    for (Size k = 0; k < rows.rows; ++k) sum(k, 0) += static_cast<double>(rows(k, i));
  }
}

template <class T>
Matrix<T> OutputLayer<T>::sum_of_rows() {
  Matrix<double> sum(dim(), 1);
  for_each_block_of_rows([&](Size, ConstView<T> W) { sum_rows(W, sum); });
  Matrix<T> w_bar(dim(), 1);
  std::copy_n(sum.data(), sum.size(), w_bar.data());
  return w_bar;
}

template <class T>
double OutputLayer<T>::drift_of(ConstView<T> Q) {
  Matrix<T> G(dim(), dim());
  for_each_block_of_rows([&](Size, ConstView<T> W) { backend_->gemm(Op::none, Op::transpose, T(1), W, W, T(1), G); });
  const double norm = std::sqrt(backend_->dot(G, G));
  backend_->add(T(1), G, T(-1), Q, G);
  const double difference = std::sqrt(backend_->dot(G, G));
  return norm > 0 ? difference / norm : difference;
}

template class OutputLayer<float>;
template class OutputLayer<double>;

}  // namespace widehead
