#pragma once
/// The training loop: minibatches through a network, rates by schedule, checkpoints, figures. What is kept where, how a
/// model is judged and who looks on is the business of its hooks.
///
/// Where the network enqueues its steps, the device is not waited for but now and then: when a loss is logged, before a
/// checkpoint, at the end of an epoch, and after 256 steps at the latest, so that a run that diverges is found out
/// soon. Nothing is saved before that. Shares of the time are those of one step in 64, by the device's own clock.

#include <chrono>

#include "widehead/train/batch.h"
#include "widehead/train/network.h"
#include "widehead/train/schedule.h"

namespace widehead {

struct TrainerOptions {
  std::int64_t epochs = 1;
  Size batch = 128;  ///< m
  double lr = 1e-3;  ///< of the lower layers
  Schedule schedule = Schedule::linear;
  double warm_up = 0;
  double save_every_seconds = 600;  ///< 0 for the end only
};

/// Where a run stands.
struct Progress {
  double share = 0;        ///< of the run, 0 … 1
  std::int64_t epoch = 0;  ///< epochs begun
  std::int64_t epochs = 0;
  std::int64_t steps = 0;
  std::int64_t examples = 0;
  double loss = 0;  ///< mean per example, of late; of enqueued steps, those that have been waited for
  double lr = 0;
  double eta = 0;      ///< of the head
  double seconds = 0;  ///< of training, in this process
  double examples_per_second = 0;
  double seconds_left = 0;   ///< estimated
  double waiting_share = 0;  ///< of the time, for data
  double head_share = 0;     ///< of the time, in the head; of enqueued steps, in a sample of them that were waited for
};

class TrainerHooks {
 public:
  virtual ~TrainerHooks() = default;
  virtual void save() = 0;                         ///< a checkpoint, of the trainer's state too
  virtual void log(const Progress& progress) = 0;  ///< figures worth keeping, two hundred times a run
  virtual void after_epoch(const Progress& progress) = 0;
  virtual void progress(const Progress& progress) = 0;  ///< after every step: must be quick
  virtual bool should_stop() = 0;
};

template <class T>
class Trainer {
 public:
  static constexpr std::int64_t most_enqueued = 256;  ///< steps that nobody has waited for

  Trainer(const TrainerOptions& options, Network<T>& network, const BatchSource<T>& source, TrainerHooks& hooks);

  /// Trains until the last epoch is over or a hook says stop; saves in both cases. True when the run is complete.
  bool run();

  const Cursor& cursor() const { return cursor_; }  ///< the next minibatch
  void visit_state(StateVisitor& state);

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double logs_per_run = 200;
  static constexpr std::int64_t steps_per_timed = 64;  // of enqueued steps, one is timed …
  static constexpr std::int64_t first_timed = 40;      // … after the device and its memory have warmed up

  double share_of_run() const;
  Progress progress(double waited) const;
  void step(const Batch<T>& batch, double factor);
  void settle();
  void save();
  template <class Work>
  void pause(const Work& work);

  TrainerOptions options_;
  Network<T>& network_;
  const BatchSource<T>& source_;
  TrainerHooks& hooks_;
  // the state of a run
  Cursor cursor_;
  std::int64_t examples_ = 0;
  double recent_loss_ = 0, recent_examples_ = 0;  // since the last log
  std::int64_t logs_ = 0;
  // of this process
  std::int64_t enqueued_ = 0;                       // steps
  std::int64_t unsettled_ = 0;                      // of them, those that nobody has waited for
  double unsettled_examples_ = 0, known_loss_ = 0;  // of those; mean of those before
  Clock::time_point start_;
  double paused_seconds_ = 0;  // for evaluations and checkpoints
  std::int64_t first_example_ = 0;
  double first_share_ = 0;
  double lr_ = 0;
};

}  // namespace widehead
