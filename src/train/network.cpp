#include "widehead/train/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "widehead/errors.h"

namespace widehead {
namespace {

constexpr std::uint32_t input_stream = 0x45;    // "E"
constexpr std::uint32_t hidden_stream = 0x100;  // and following

InputLayerOptions input_options(const NetworkOptions& options) {
  InputLayerOptions input;
  input.features = options.features;
  input.width = options.embedding;
  input.slots = options.slots;
  input.activation = options.activation;
  input.initial_scale = options.input_scale;
  input.optimizer = options.optimizer;
  return input;
}

void check(const NetworkOptions& options) {
  const auto positive = [](Size value, const char* name) {
    if (value < 1) throw std::invalid_argument(fmt::format("network: {} = {}, but it must be 1 or more", name, value));
  };
  positive(options.features, "features");
  positive(options.slots, "slots");
  positive(options.embedding, "embedding");
  for (const Size width : options.hidden) positive(width, "a hidden width");
  const Size last = options.hidden.empty() ? options.slots * options.embedding : options.hidden.back();
  if (last != options.head.layer.dim) {
    throw std::invalid_argument(
        fmt::format("network: the last layer has {} units, but the head takes d = {}", last, options.head.layer.dim));
  }
  if (!(options.clip >= 0)) {
    throw std::invalid_argument(fmt::format("network: clip = {}, but it must be 0 or more", options.clip));
  }
}

}  // namespace

template <class T>
Network<T>::Network(const NetworkOptions& options, std::shared_ptr<Backend<T>> backend)
    : options_((check(options), options)),
      backend_(std::move(backend)),
      input_(*backend_, input_options(options), Random(options.seed, input_stream)),
      head_(make_head<T>(options.head, backend_)),
      head_rate_(options.head_rate) {
  Size in = input_.width();
  for (std::size_t k = 0; k < options.hidden.size(); ++k) {
    hidden_.emplace_back(*backend_, HiddenLayerOptions{in, options.hidden[k], options.activation, options.optimizer},
                         Random(options.seed, hidden_stream + static_cast<std::uint32_t>(k)));
    in = options.hidden[k];
  }
  activations_.resize(hidden_.size() + 1);
  if (options.clip > 0) gradient_norm_ = Matrix<double>(1, 1, backend_->memory());
  for (std::size_t k = 0; k <= hidden_.size(); ++k) gradients_.emplace_back(backend_->memory());
}

/// Where embeddings are concatenated, every slot is an example of its own.
template <class T>
SparseBatch<T> Network<T>::by_slot(const SparseBatch<T>& X) {
  if (options_.slots == 1) return X;
  for (Size j = 0; j < X.examples(); ++j) {
    const Size count = X.end(j) - X.begin(j);
    if (count == options_.slots) continue;
    throw std::invalid_argument(
        fmt::format("network: example {} has {} inputs, but there are {} slots", j, count, options_.slots));
  }
  while (static_cast<Size>(slot_offsets_.size()) <= X.nonzeros()) {
    slot_offsets_.push_back(static_cast<std::int64_t>(slot_offsets_.size()));
  }
  return X.with_offsets(std::span(slot_offsets_).first(static_cast<std::size_t>(X.nonzeros()) + 1));
}

template <class T>
ConstView<T> Network<T>::forward(const SparseBatch<T>& X) {
  activations_.front() = input_.forward(*backend_, by_slot(X));
  for (std::size_t k = 0; k < hidden_.size(); ++k) {
    activations_[k + 1] = hidden_[k].forward(*backend_, activations_[k]);
  }
  return activations_.back();
}

template <class T>
ConstView<T> Network<T>::hidden(const SparseBatch<T>& X) {
  const auto H = forward(X);
  if (!is_finite<T>(*backend_, H)) {
    throw NumericalError(
        fmt::format("after step {}: the outputs of the hidden layers are not finite: the run has diverged", steps_));
  }
  return H;
}

template <class T>
bool Network<T>::gradient_is_finite() const {
  return input_.gradient_is_finite(*backend_) &&
         std::ranges::all_of(hidden_, [&](const auto& layer) { return layer.gradient_is_finite(*backend_); });
}

template <class T>
double Network<T>::squared_gradient_norm() const {
  double sum = input_.squared_gradient_norm(*backend_);
  for (const auto& layer : hidden_) sum += layer.squared_gradient_norm(*backend_);
  return sum;
}

/// From ∇H to the gradients of all parameters below.
template <class T>
void Network<T>::backward(const SparseBatch<T>& X) {
  for (std::size_t k = hidden_.size(); k > 0; --k) {
    hidden_[k - 1].backward(*backend_, activations_[k - 1], gradient(k), gradient(k - 1));
  }
  input_.backward(*backend_, by_slot(X), gradient(0));
}

/// The gradient on H comes out of the head's step, so the head has moved before the gradient of the lower layers is
/// known. Where that is not finite, the head alone has taken the step: H and ∇H were finite, so the head is still
/// sound, but the run has diverged, and its last checkpoint is what is left of it.
template <class T>
double Network<T>::step(const SparseBatch<T>& X, const SparseBatch<T>& targets, double lr, double head_factor) {
  const auto H = hidden(X);
  const auto start = Clock::now();
  eta_ = head_rate_.eta_for(*head_, H, targets, head_factor);
  const double loss = head_->step(H, targets, eta_, gradient(hidden_.size()));
  head_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  backward(X);

  Update update{options_.optimizer, lr, options_.adam, steps_ + 1, 1 / static_cast<double>(H.cols)};
  if (!gradient_is_finite()) {
    throw NumericalError(
        fmt::format("step {}: the gradient of the lower layers is not finite: the run has diverged "
                    "(lr = {}, eta of the head = {})",
                    steps_ + 1, lr, eta_));
  }
  if (options_.clip > 0) {
    const double norm = std::sqrt(squared_gradient_norm()) * update.scale;
    if (norm > options_.clip) update.scale *= options_.clip / norm;
  }
  for (auto& layer : hidden_) layer.update(*backend_, update);
  input_.update(*backend_, update);
  ++steps_;
  return loss;
}

/// What `step` looks at in between is found out afterwards: where H or a gradient is not finite, so are later losses,
/// which the head keeps an eye on, or parameters, which require_finite does.
template <class T>
void Network<T>::enqueue_step(const SparseBatch<T>& X, const SparseBatch<T>& targets, double lr, double head_factor,
                              bool timed) {
  const auto mark = [&] {
    if (timed) stopwatch_->mark();
  };
  if (timed && !stopwatch_) stopwatch_ = backend_->make_stopwatch();
  mark();
  const auto H = forward(X);
  mark();
  eta_ = head_rate_.eta_later(*head_, H, targets, head_factor);
  head_->enqueue_step(H, targets, eta_, gradient(hidden_.size()));
  mark();
  backward(X);
  const Update update{options_.optimizer, lr, options_.adam, steps_ + 1, 1 / static_cast<double>(H.cols)};
  if (options_.clip > 0) {
    backend_->clear_in_double(gradient_norm_);
    input_.add_squared_gradient_norm(*backend_, gradient_norm_);
    for (const auto& layer : hidden_) layer.add_squared_gradient_norm(*backend_, gradient_norm_);
    const double limit = options_.clip / update.scale;
    for (auto& layer : hidden_) layer.limit_gradient(*backend_, gradient_norm_, limit);
    input_.limit_gradient(*backend_, gradient_norm_, limit);
  }
  for (auto& layer : hidden_) layer.update(*backend_, update);
  input_.update(*backend_, update);
  mark();
  head_rate_.send_norm(*backend_);
  backend_->submit();  // the device begins while the host prepares the next step
  ++steps_;
}

/// Of every timed step: forward, head, backward, and what was between it and the next.
template <class T>
void Network<T>::note_times() {
  if (!stopwatch_) return;
  const auto laps = stopwatch_->take_laps();
  for (std::size_t k = 0; k < laps.size(); ++k) {
    if (k % 4 == 1) head_seconds_ += laps[k];
    if (k % 4 != 3) timed_seconds_ += laps[k];
  }
}

template <class T>
double Network<T>::settle() {
  note_times();
  const auto first = std::exchange(settled_steps_, steps_) + 1;
  try {
    return head_->settle();
  } catch (const NumericalError& error) {
    throw NumericalError(fmt::format("steps {} … {}, which were enqueued together: {}", first, steps_, error.what()));
  }
}

template <class T>
void Network<T>::require_finite() {
  if (input_.is_finite(*backend_) &&
      std::ranges::all_of(hidden_, [&](const auto& layer) { return layer.is_finite(*backend_); })) {
    return;
  }
  throw NumericalError(
      fmt::format("after step {}: weights of the layers below the head are not finite: the run has diverged", steps_));
}

template <class T>
void Network<T>::visit_state(StateVisitor& state) {
  state.count("steps", steps_);
  settled_steps_ = steps_;
  {
    const auto scope = state.scope("input");
    input_.visit_state(state, *backend_);
  }
  for (std::size_t k = 0; k < hidden_.size(); ++k) {
    const auto scope = state.scope(fmt::format("hidden{}", k + 1));
    hidden_[k].visit_state(state, *backend_);
  }
  {
    const auto scope = state.scope("head_rate");
    head_rate_.visit_state(state);
  }
  const auto scope = state.scope("head");
  head_->visit_state(state);
}

template class Network<float>;
template class Network<double>;

}  // namespace widehead
