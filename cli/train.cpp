/// widehead train lm | labels | items: from files to a trained model.

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <semaphore>
#include <thread>

#include "command.h"
#include "progress.h"
#include "table_options.h"
#include "widehead/train/run.h"

namespace widehead::cli {
namespace {

constexpr int interrupted_status = 130;  // as shells report a program that Ctrl-C ended

std::atomic<int> interrupts = 0;

/// The first Ctrl-C asks the run to save and end; a second one ends the program at once.
extern "C" void on_interrupt(int) {
  if (interrupts.fetch_add(1) > 0) std::_Exit(interrupted_status);
}

/// Signals are for a thread that does nothing else; this one, and all that it starts from now on, leave them to it.
/// A kernel of oneDNN's (2.6) keeps its workspace where the stack pointer says, on the heap: a handler that is called
/// there writes over what lies beside it.
class InterruptHandler {
 public:
  InterruptHandler() : taker_([this] { over_.acquire(); }) {
    std::signal(SIGINT, on_interrupt);
    std::signal(SIGTERM, on_interrupt);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, &mask_before_);
  }
  InterruptHandler(const InterruptHandler&) = delete;
  InterruptHandler& operator=(const InterruptHandler&) = delete;
  ~InterruptHandler() {
    over_.release();
    taker_.join();
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
    pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  }

 private:
  std::binary_semaphore over_{0};
  std::thread taker_;
  sigset_t mask_before_{};
};

std::string to_text(const Figures& figures) {
  std::string text;
  for (const auto& [name, value] : figures) text += fmt::format("{}{} {:.5g}", text.empty() ? "" : "  ", name, value);
  return text;
}

class Watcher final : public RunObserver {
 public:
  explicit Watcher(double every) : line_(every) {}

  void note(const std::string& text) override { line_.note(text); }
  void reading(double share) override { line_.reading(share); }
  void training(const Progress& progress) override { line_.training(progress); }
  void evaluated(const Progress& progress, const Figures& figures) override {
    line_.note(
        fmt::format("after epoch {}: {}", progress.share < 1 ? progress.epoch - 1 : progress.epochs, to_text(figures)));
  }
  bool should_stop() override {
    if (interrupts > 0 && !told_) {
      line_.note("interrupted: saving (once more to end at once)");
      told_ = true;
    }
    return interrupts > 0;
  }
  void finish() { line_.finish(); }

 private:
  ProgressLine line_;
  bool told_ = false;
};

int train(Job job, const TableOptions& table) {
  const auto options = table.read();
  const InterruptHandler handler;
  Watcher watcher(options.log_every);
  const auto result = run_training(job, options, watcher);
  watcher.finish();
  const auto& p = result.progress;
  if (p.seconds > 0) {
    fmt::print("{} examples in {}: {:.0f} examples/s, {:.0f}% of the time in the head, {:.1f}% waiting for data\n",
               p.examples, clock_of(p.seconds), p.examples_per_second, 100 * p.head_share, 100 * p.waiting_share);
  }
  if (!result.figures.empty()) fmt::print("held out: {}\n", to_text(result.figures));
  if (result.complete) {
    fmt::print("the model is in {}\n", options.out);
    return 0;
  }
  fmt::print("{:.1f}% done; the same command with --resume goes on\n", 100 * p.share);
  return interrupted_status;
}

void add_job(CLI::App& train_command, Action& action, Job job, const char* description, const char* footer) {
  auto* command = train_command.add_subcommand(std::string(name_of(job)), description);
  command->footer(footer);
  auto table = std::make_shared<TableOptions>(*command, job);
  command->callback([&action, table, job] { action = [table, job] { return train(job, *table); }; });
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("train", "train a model: language model, labels or items");
  command->require_subcommand(1);
  add_job(*command, action, Job::lm, "language model: the next word from the words before it",
          "Example:\n  widehead train lm --corpus text.xz --out model --dim 300 --epochs 3\n"
          "The same command with --resume goes on after Ctrl-C, a crash or a power cut.");
  add_job(*command, action, Job::labels, "extreme multi-label: labels from sparse features",
          "Example:\n  widehead train labels --train train.txt --valid test.txt --out model\n"
          "Files are those of the Extreme Classification Repository: a header `N F L` (examples,\n"
          "features, labels), then `l1,l2 f:v f:v` per line.");
  add_job(*command, action, Job::items, "recommender: all items from a user's items",
          "Example:\n  widehead train items --train train.txt --valid valid.txt --out model\n"
          "Lines are `user item item …` or `user,item[,rating]`.");
}

}  // namespace widehead::cli
