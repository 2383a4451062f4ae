#include "widehead/output_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

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
  for (auto* room : {&H_room_, &out_room_, &weighted_H_, &root_weights_room_, &selected_}) {
    *room = Matrix<T>(backend_->memory());
  }
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
void OutputLayer<T>::check_shape(ConstView<T> H, const char* what) const {
  if (H.empty() || H.rows != dim() || H.cols < 1 || H.stride < H.rows) {
    throw std::invalid_argument(fmt::format("{}: H is {} x {} (stride {}), but d = {} and m must be at least 1", what,
                                            H.rows, H.cols, H.stride, dim()));
  }
}

template <class T>
ConstView<T> OutputLayer<T>::take_hidden(ConstView<T> H, const char* what, bool known) {
  check_shape(H, what);
  H = backend_->template reach<T>(H, H_room_);
  rough_squared_norm_.reset();
  if (known) return H;
  rough_squared_norm_ = backend_->rough_squared_norm(H);
  if (std::isfinite(*rough_squared_norm_)) return H;
  if (const Size bad = backend_->find_non_finite(H); bad >= 0) {
    const Size i = bad % H.rows, j = bad / H.rows;
    throw std::invalid_argument(fmt::format("{}: H({}, {}) = {} is not finite (unit {} of example {})", what, i, j,
                                            host_copy(H.block(i, j, 1, 1))(0, 0), i, j));
  }
  return H;
}

template <class T>
void OutputLayer<T>::check_targets(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H,
                                   const char* what) const {
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
ConstView<T> OutputLayer<T>::take_batch(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H,
                                        const char* what, bool known) {
  const auto H_here = take_hidden(H, what, known);
  check_targets(H, targets, grad_H, what);
  return H_here;
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
MatrixView<T> OutputLayer<T>::room_for(MatrixView<T> out) {
  return out.empty() || backend_->can_reach(out.data) ? out : out_room_.scratch(out.rows, out.cols);
}

template <class T>
void OutputLayer<T>::deliver(ConstView<T> result, MatrixView<T> out) {
  if (!out.empty() && result.data != out.data) {
    backend_->template transfer<T>(result, out);
  } else {
    backend_->submit();  // a caller who waits for the device finds the result there, and may have his memory back
  }
}

template <class T>
double OutputLayer<T>::step(ConstView<T> H, const SparseBatch<T>& targets, double eta, MatrixView<T> grad_H) {
  H = take_batch(H, targets, grad_H, "step");
  check_rate(eta);
  const auto grad_here = room_for(grad_H);
  const double loss = take_step(H, targets, static_cast<T>(eta), grad_here);
  ++steps_;
  deliver(grad_here, grad_H);
  return loss;
}

template <class T>
void OutputLayer<T>::enqueue_step(ConstView<T> H, const SparseBatch<T>& targets, double eta, MatrixView<T> grad_H) {
  check_shape(H, "enqueue_step");
  check_targets(H, targets, grad_H, "enqueue_step");
  check_rate(eta);
  if (!backend_->can_reach(H.data) || (!grad_H.empty() && !backend_->can_reach(grad_H.data))) {
    throw std::invalid_argument("enqueue_step: H and grad_H must be in the memory of device " + backend_->device());
  }
  if (take_step_later(H, targets, static_cast<T>(eta), grad_H)) {
    ++steps_;
  } else {
    enqueued_loss_ += step(H, targets, eta, grad_H);
  }
}

template <class T>
double OutputLayer<T>::settle() {
  return std::exchange(enqueued_loss_, 0.0) + settle_steps();
}

template <class T>
double OutputLayer<T>::evaluate(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) {
  H = take_batch(H, targets, grad_H, "evaluate");
  const auto grad_here = room_for(grad_H);
  const double loss = compute_loss(H, targets, grad_here);
  deliver(grad_here, grad_H);
  return loss;
}

template <class T>
double OutputLayer<T>::eta_for(ConstView<T> H, const SparseBatch<T>& targets, double lambda, double tolerance) {
  H = take_batch(H, targets, {}, "eta_for");
  if (!(lambda >= 0) || !std::isfinite(lambda)) {
    throw std::invalid_argument(fmt::format("eta_for: lambda = {}, but it must be finite and not negative", lambda));
  }
  const double norm = curvature() * spectral_norm_squared<T>(on_host<T>(weighted(H, targets), host_H_), tolerance);
  return norm > 0 ? lambda / (2 * norm) : 0;
}

template <class T>
ConstView<T> OutputLayer<T>::weighted(ConstView<T> H, const SparseBatch<T>& targets) {
  if (!targets.weighted()) return H;
  const auto weighted_H = weighted_H_.scratch(H.rows, H.cols);
  backend_->copy(H, weighted_H);
  scale_by_root_weights(targets, weighted_H);
  return weighted_H;
}

template <class T>
void OutputLayer<T>::scale_by_root_weights(const SparseBatch<T>& targets, MatrixView<T> A) {
  root_weights_.resize(static_cast<std::size_t>(A.cols));
  for (Size j = 0; j < A.cols; ++j) root_weights_[static_cast<std::size_t>(j)] = std::sqrt(targets.weight(j));
  backend_->scale_columns(backend_->template reach<T>(std::span<const T>(root_weights_), root_weights_room_), A);
}

// ── weights ────────────────────────────────────────────────────────────────────────────────────────

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
  if (out.cols == 0) return;
  const auto out_here = room_for(out);
  write_weights(first, out_here);
  deliver(out_here, out);
}

template <class T>
Matrix<T> OutputLayer<T>::weights() {
  Matrix<T> W(dim(), outputs());
  if (backend_->memory().is_host()) {
    weights(0, W);
  } else {
    for_each_block_of_rows(
        [&](Size first, ConstView<T> block) { std::copy_n(block.data, block.size(), W.view().column(first)); });
  }
  return W;
}

template <class T>
template <class Visit>
void OutputLayer<T>::visit_blocks(const Visit& visit) {
  const Size block = std::min(outputs(), backend_->rows_per_block(dim()));
  Matrix<T> W(dim(), block, backend_->memory());
  for (Size first = 0; first < outputs(); first += block) {
    const auto W_block = W.view().columns(0, std::min(block, outputs() - first));
    write_weights(first, W_block);
    visit(first, ConstView<T>(W_block));
  }
}

template <class T>
void OutputLayer<T>::for_each_block_of_rows(const std::function<void(Size, ConstView<T>)>& visit) {
  Matrix<T> host;
  visit_blocks([&](Size first, ConstView<T> W) { visit(first, on_host<T>(W, host)); });
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
void OutputLayer<T>::fill_initial(MatrixView<T> W) {
  if (options_.initial == Initial::zero || (options_.initial == Initial::given && !options_.initial_weights)) return;
  const double scale =
      options_.initial_scale > 0 ? options_.initial_scale : 1 / std::sqrt(static_cast<double>(outputs()));
  const Random random(options_.seed, initial_stream);
  std::vector<double> given(static_cast<std::size_t>(dim()));
  const auto fill_given = [&](Size first, MatrixView<T> block) {
    for (Size i = 0; i < block.cols; ++i) {
      if (first + i < outputs()) options_.initial_weights(first + i, given);
      for (Size k = 0; k < block.rows; ++k) {
        const double value = first + i < outputs() ? given[static_cast<std::size_t>(k)] : 0;
        if (!std::isfinite(static_cast<T>(value))) {
          throw std::invalid_argument(fmt::format("layer: initial W({}, {}) = {} is not finite", first + i, k, value));
        }
        block(k, i) = static_cast<T>(value);
      }
    }
  };
  const auto fill = [&](Size first, MatrixView<T> block) {
    if (options_.initial == Initial::given) {
      fill_given(first, block);
      return;
    }
#pragma omp parallel for num_threads(backend_->threads())
    for (Size i = 0; i < block.cols; ++i) {
      T* row = block.column(i);
      for (Size k = 0; k < block.rows; k += 2) {
        const auto [a, b] = random.normal(static_cast<std::uint64_t>(first + i), static_cast<std::uint32_t>(k));
        row[k] = static_cast<float>(scale * a);  // a float in either precision: both start from the same W
        if (k + 1 < block.rows) row[k + 1] = static_cast<float>(scale * b);
      }
    }
  };
  if (backend_->memory().is_host()) {
    fill(0, W);
    return;
  }
  const Size block = std::min<Size>(W.cols, 1 << 16);
  Matrix<T> host(W.rows, block);
  for (Size first = 0; first < W.cols; first += block) {
    const auto part = host.view().columns(0, std::min(block, W.cols - first));
    fill(first, part);
    backend_->template transfer<T>(part, W.columns(first, part.cols));
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
    backend_->move_columns(R, rows, {}, copies);
    selected = copies;
  }
  backend_->gemm(Op::transpose, Op::none, T(1), selected, G, T(0), out);
}

template <class T>
void OutputLayer<T>::gram_of_rows(ConstView<T> rows, MatrixView<T> G) {
  Matrix<T> room(backend_->memory());
  const Size block = backend_->rows_per_block(dim());
  for (Size first = 0; first < rows.cols; first += block) {
    const auto part = backend_->template reach<T>(rows.columns(first, std::min(block, rows.cols - first)), room);
    backend_->gemm(Op::none, Op::transpose, T(1), part, part, first == 0 ? T(0) : T(1), G);
  }
  backend_->symmetrize(G);
}

template <class T>
Matrix<double> OutputLayer<T>::sum_rows(ConstView<T> rows) {
  Matrix<double> sum(rows.rows, 1);
  Matrix<T> room;
  const Size block = backend_->rows_per_block(dim());
  for (Size first = 0; first < rows.cols; first += block) {
    const auto part = on_host<T>(rows.columns(first, std::min(block, rows.cols - first)), room);
    for (Size i = 0; i < part.cols; ++i) {
      for (Size k = 0; k < part.rows; ++k) sum(k, 0) += static_cast<double>(part(k, i));
    }
  }
  return sum;
}

template <class T>
Matrix<T> OutputLayer<T>::sum_of_rows() {
  Matrix<double> sum(dim(), 1);
  visit_blocks([&](Size, ConstView<T> W) {
    const auto part = sum_rows(W);
    for (Size k = 0; k < dim(); ++k) sum(k, 0) += part(k, 0);
  });
  Matrix<T> w_bar(dim(), 1);
  std::copy_n(sum.data(), sum.size(), w_bar.data());
  return w_bar;
}

template <class T>
double OutputLayer<T>::drift_of(ConstView<T> Q) {
  Matrix<T> G(dim(), dim(), backend_->memory());
  visit_blocks([&](Size, ConstView<T> W) { backend_->gemm(Op::none, Op::transpose, T(1), W, W, T(1), G); });
  const double norm = std::sqrt(backend_->dot(G, G));
  backend_->add(T(1), G, T(-1), Q, G);
  const double difference = std::sqrt(backend_->dot(G, G));
  return norm > 0 ? difference / norm : difference;
}

template class OutputLayer<float>;
template class OutputLayer<double>;

}  // namespace widehead
