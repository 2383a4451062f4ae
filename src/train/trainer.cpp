#include "widehead/train/trainer.h"

#include <algorithm>
#include <utility>

#include "widehead/train/prefetcher.h"

namespace widehead {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

template <class T>
Trainer<T>::Trainer(const TrainerOptions& options, Network<T>& network, const BatchSource<T>& source,
                    TrainerHooks& hooks)
    : options_(options), network_(network), source_(source), hooks_(hooks) {}

template <class T>
double Trainer<T>::share_of_run() const {
  return std::min(1.0, (static_cast<double>(cursor_.epoch) + source_.share_of_epoch(cursor_)) /
                           static_cast<double>(options_.epochs));
}

template <class T>
Progress Trainer<T>::progress(double waited) const {
  Progress p;
  p.share = share_of_run();
  p.epoch = std::min(cursor_.epoch + 1, options_.epochs);
  p.epochs = options_.epochs;
  p.steps = network_.steps();
  p.examples = examples_;
  p.loss = recent_examples_ > 0 ? recent_loss_ / recent_examples_ : known_loss_;
  p.lr = lr_;
  p.eta = network_.last_eta();
  p.seconds = seconds_since(start_) - paused_seconds_;
  const double done = p.share - first_share_;
  if (p.seconds > 0) {
    p.examples_per_second = static_cast<double>(examples_ - first_example_) / p.seconds;
    p.waiting_share = waited / p.seconds;
    p.head_share = network_.head_seconds() / p.seconds;
  }
  if (enqueued_ > 0) {
    p.head_share = network_.timed_seconds() > 0 ? network_.head_seconds() / network_.timed_seconds() : 0;
  }
  if (done > 0) p.seconds_left = p.seconds * (1 - p.share) / done;
  return p;
}

/// Does what is not training, and does not count its time as such.
template <class T>
template <class Work>
void Trainer<T>::pause(const Work& work) {
  const auto start = Clock::now();
  work();
  paused_seconds_ += seconds_since(start);
}

template <class T>
void Trainer<T>::step(const Batch<T>& batch, double factor) {
  const auto X = batch.inputs.view(source_.features()), Y = batch.targets.view(source_.outputs());
  const auto examples = static_cast<double>(batch.examples());
  if (network_.enqueues()) {
    const bool timed = enqueued_ % steps_per_timed == first_timed;
    network_.enqueue_step(X, Y, lr_, factor, timed);
    ++enqueued_;
    ++unsettled_;
    unsettled_examples_ += examples;
    if (unsettled_ >= most_enqueued) settle();
  } else {
    recent_loss_ += network_.step(X, Y, lr_, factor);
    recent_examples_ += examples;
  }
  examples_ += batch.examples();
}

/// Waits for enqueued steps, and counts their loss.
template <class T>
void Trainer<T>::settle() {
  if (unsettled_ == 0) return;
  const double loss = network_.settle(), examples = std::exchange(unsettled_examples_, 0.0);
  unsettled_ = 0;
  known_loss_ = loss / examples;
  recent_loss_ += loss;
  recent_examples_ += examples;
}

/// A checkpoint of what is known to be sound.
template <class T>
void Trainer<T>::save() {
  settle();
  if (enqueued_ > 0) network_.require_finite();
  pause([&] { hooks_.save(); });
}

template <class T>
bool Trainer<T>::run() {
  start_ = Clock::now();
  auto last_save = start_;
  first_example_ = examples_;
  first_share_ = share_of_run();
  Prefetcher<T> batches(source_, cursor_, options_.epochs, options_.batch);
  bool stopped = false;
  while (const auto* batch = stopped ? nullptr : batches.next()) {
    const double factor = rate_factor(options_.schedule, options_.warm_up, share_of_run());
    lr_ = options_.lr * factor;
    step(*batch, factor);
    const bool epoch_is_over = batch->next.epoch > cursor_.epoch;
    cursor_ = batch->next;

    const bool log_is_due = share_of_run() * logs_per_run >= static_cast<double>(logs_ + 1);
    if (log_is_due || epoch_is_over) settle();
    const auto now = progress(batches.seconds_waited());
    hooks_.progress(now);
    if (log_is_due) {
      hooks_.log(now);
      logs_ = static_cast<std::int64_t>(now.share * logs_per_run);
      recent_loss_ = recent_examples_ = 0;
    }
    if (epoch_is_over) pause([&] { hooks_.after_epoch(now); });
    stopped = hooks_.should_stop() && cursor_.epoch < options_.epochs;
    if (options_.save_every_seconds > 0 && seconds_since(last_save) >= options_.save_every_seconds) {
      save();
      last_save = Clock::now();
    }
  }
  if (!stopped) cursor_ = {options_.epochs, 0};  // also where the last epochs had no example
  save();
  return !stopped;
}

template <class T>
void Trainer<T>::visit_state(StateVisitor& state) {
  state.count("epoch", cursor_.epoch);
  state.count("position", cursor_.position);
  state.count("examples", examples_);
  state.scalar("recent_loss", recent_loss_);
  state.scalar("recent_examples", recent_examples_);
  state.count("logs", logs_);
  if (network_.enqueues()) {
    const auto scope = state.scope("enqueued");
    network_.visit_enqueued_state(state);
  }
}

template class Trainer<float>;
template class Trainer<double>;

}  // namespace widehead
