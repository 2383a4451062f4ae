/// Runs that stop and go on.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "errors.h"
#include "jobs_under_test.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

namespace fs = std::filesystem;

struct ResumeCase {
  Job job;
  std::string head;
  std::string dtype = "f32";
  bool rows_in_file = false;
};
void PrintTo(const ResumeCase& param, std::ostream* out) {
  *out << name_of(param.job) << ", " << param.head << ", " << param.dtype
       << (param.rows_in_file ? ", rows in a file" : "");
}

std::vector<ResumeCase> cases() {
  std::vector<ResumeCase> list;
  for (const Job job : every_job) {
    for (const auto* head : {"windowed", "factored", "dense"}) list.push_back({job, head});
  }
  list.push_back({Job::labels, "windowed", "f64"});
  list.push_back({Job::lm, "windowed", "f32", true});
  return list;
}

class ResumedRun : public testing::TestWithParam<ResumeCase> {
 protected:
  ResumedRun() : options(small_job(folder, GetParam().job)) {
    options.head = GetParam().head;
    options.dtype = GetParam().dtype;
    options.window = 100;
    options.batch = 3;  // more steps than lines in the log, so that it holds means
    options.clip = 0.5;
    options.warm_up = 0.2;
    if (options.head == "factored") options.loss = "squared";
    if (GetParam().job == Job::lm) options.subsample = 0.01;
    if (GetParam().rows_in_file) options.rows_file = folder.path("rows");
  }
  /// Trains to the end in pieces of so many steps, the last without end, and checks that nobody could tell.
  void expect_same(const std::vector<std::int64_t>& pieces) {
    SCOPED_TRACE(fmt::format("stopped after {} steps, {} pieces", pieces.front(), pieces.size()));
    fs::remove_all(options.out);
    if (!options.rows_file.empty()) fs::remove(options.rows_file);
    options.resume = true;  // starts where there is nothing
    for (const auto steps : pieces) ASSERT_FALSE(train(GetParam().job, options, steps).complete);
    ASSERT_TRUE(train(GetParam().job, options).complete);
    EXPECT_TRUE(state_of(options.out) == state);
    EXPECT_EQ(metrics_of(options.out), metrics);
  }

  ScratchFolder folder;
  TrainOptions options;
  std::map<std::string, std::string> state;
  std::vector<nlohmann::json> metrics;
};
INSTANTIATE_TEST_SUITE_P(All, ResumedRun, testing::ValuesIn(cases()));

TEST_P(ResumedRun, IsTheUninterruptedOneBitForBit) {
  const auto whole = train(GetParam().job, options);
  state = state_of(options.out);
  metrics = metrics_of(options.out);
  std::vector<std::int64_t> epoch_ends;
  for (const auto& line : metrics) {
    if (line.contains("epochs_done")) epoch_ends.push_back(line["step"]);
  }
  ASSERT_EQ(static_cast<std::int64_t>(epoch_ends.size()), options.epochs);
  const auto steps = whole.progress.steps;
  ASSERT_GT(steps, static_cast<std::int64_t>(metrics.size()));
  Dice dice(11);
  expect_same({1});
  expect_same({epoch_ends[0]});
  expect_same({epoch_ends[1] - 1, 1, 1});  // before the end of an epoch, at it, after it
  expect_same({steps - 1});
  expect_same({dice.between(2, steps / 2), dice.between(2, steps / 2 - 2)});
}

TEST(Resume, MakesTheCorpusAgainWhereItsIdsAreLost) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::lm);
  train(Job::lm, options);
  const auto state = state_of(options.out);
  options.overwrite = true;
  train(Job::lm, options, 5);
  fs::remove(folder.path("model/tokens.bin"));
  options.overwrite = false;
  options.resume = true;
  EXPECT_TRUE(train(Job::lm, options).complete);
  EXPECT_TRUE(state_of(options.out) == state);
}

TEST(Resume, IsRefusedWithOtherOptionsByName) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::labels);
  train(Job::labels, options, 3);
  const auto before = state_of(options.out);
  options.resume = true;
  auto other = options;
  other.dim = 9;
  other.lr = 0.02;
  other.threads = 2;
  expect_throw<std::invalid_argument>([&] { train(Job::labels, other); },
                                      {"--resume: the run in", "has other values of --dim, --lr, --threads"});
  EXPECT_THROW(train(Job::items, small_job(folder, Job::items)), std::invalid_argument);  // a model is there
  auto items = small_job(folder, Job::items);
  items.resume = true;
  EXPECT_THROW(train(Job::items, items), FileError);
  EXPECT_TRUE(state_of(options.out) == before);
  options.save_every = 3;  // of the run, not of the model
  options.log_every = 1;
  EXPECT_TRUE(train(Job::labels, options).complete);
}

TEST(Resume, IsRefusedWithOtherData) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::labels);
  options.valid.clear();
  train(Job::labels, options, 3);
  folder.file("labels.txt", "1 31 12\n3 4:1\n");
  options.resume = true;
  expect_throw<FileError>([&] { train(Job::labels, options); },
                          {options.out, "30 features and 12 outputs, but the data have 31 and 12"});
}

TEST(Resume, IsRefusedWithTokensThatAreNoWords) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::lm);
  train(Job::lm, options, 3);
  auto tokens = folder.content("model/tokens.bin");
  tokens.replace(tokens.size() - 8, 4, "\x7f\x7f\x7f\x7f");  // an id far beyond the vocabulary
  folder.file("model/tokens.bin", tokens);
  options.resume = true;
  expect_throw<FileError>([&] { train(Job::lm, options); }, {"tokens.bin"});
}

TEST(Resume, OfACompleteRunDoesNothing) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::items);
  train(Job::items, options);
  const auto before = state_of(options.out);
  options.resume = true;
  Watcher watcher;
  const auto result = run_training(Job::items, options, watcher);
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.progress.share, 1);
  EXPECT_EQ(watcher.notes, std::vector<std::string>{fmt::format("the run in {} is complete", options.out)});
  EXPECT_TRUE(state_of(options.out) == before);
}

/// The last step of a run cannot be stopped at: there is nothing left.
TEST(Resume, IsNotNeededAfterTheLastStep) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::labels);
  const auto steps = train(Job::labels, options).progress.steps;
  options.overwrite = true;
  EXPECT_TRUE(train(Job::labels, options, steps).complete);
}

/// Saves after every step, and is killed as it were: what is not saved is lost, and made again.
TEST(Resume, GoesOnFromTheLastCheckpointAfterACrash) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::labels);
  train(Job::labels, options);
  const auto state = state_of(options.out);
  const auto metrics = metrics_of(options.out);

  class Crash final : public RunObserver {
   public:
    void training(const Progress& progress) override {
      if (progress.steps == 11) throw std::runtime_error("the power is gone");
    }
  };
  for (const double save_every : {1e-9, 0.0}) {  // from step 10, from step 0
    options.overwrite = true;
    options.resume = false;
    options.save_every = save_every;
    Crash crash;
    EXPECT_THROW(run_training(Job::labels, options, crash), std::runtime_error);
    options.overwrite = false;
    options.resume = true;
    Watcher watcher;
    EXPECT_TRUE(run_training(Job::labels, options, watcher).complete);
    EXPECT_NE(watcher.notes.back().find(save_every > 0 ? "resumed at step 10," : "resumed at step 0,"),
              std::string::npos)
        << watcher.notes.back();
    EXPECT_TRUE(state_of(options.out) == state);
    EXPECT_EQ(metrics_of(options.out), metrics);
  }
}

}  // namespace
}  // namespace widehead::test
