/// Training runs from files to folders.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "errors.h"
#include "jobs_under_test.h"
#include "widehead/errors.h"
#include "widehead/loss.h"
#include "widehead/train/evaluate.h"

namespace widehead::test {
namespace {

namespace fs = std::filesystem;

/// The losses of the log, in order.
std::vector<double> losses_of(const std::string& model) {
  std::vector<double> losses;
  for (const auto& line : metrics_of(model)) {
    if (line.contains("loss")) losses.push_back(line["loss"]);
  }
  return losses;
}

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

TEST(Run, LearnsInEveryJob) {
  for (const Job job : every_job) {
    SCOPED_TRACE(name_of(job));
    const ScratchFolder folder;
    auto options = small_job(folder, job);
    options.epochs *= 3;
    Watcher watcher;
    const auto result = run_training(job, options, watcher);
    EXPECT_TRUE(result.complete);
    EXPECT_EQ(result.progress.share, 1);
    EXPECT_EQ(watcher.last.epoch, options.epochs);
    EXPECT_EQ(watcher.evaluations, options.epochs);
    EXPECT_EQ(watcher.notes.size(), 1U);
    const auto losses = losses_of(options.out);
    ASSERT_GT(losses.size(), 20U);
    EXPECT_LT(mean(std::span(losses).last(5)), 0.8 * mean(std::span(losses).first(5)));
    for (const auto& [name, value] : result.figures) {
      EXPECT_TRUE(std::isfinite(value)) << name;
      EXPECT_GE(value, 0) << name;
    }
    // Chance would be about 1/20, 1/12 and 10/30.
    if (job == Job::lm) {
      EXPECT_GT(figure(result.figures, "top1"), 0.3);
      EXPECT_GE(figure(result.figures, "top10"), figure(result.figures, "top1"));
      EXPECT_GE(figure(result.figures, "mrr"), figure(result.figures, "top1"));
      EXPECT_GT(figure(result.figures, "examples"), 50);
    } else if (job == Job::labels) {
      EXPECT_GT(figure(result.figures, "P@1"), 0.8);
      EXPECT_LE(figure(result.figures, "P@5"), 2.0 / 5 + 1e-9);  // two labels an example
      EXPECT_EQ(figure(result.figures, "examples"), 300);        // more than are evaluated at once
      EXPECT_LE(figure(result.figures, "PSP@1"), 1);
    } else {
      EXPECT_GT(figure(result.figures, "Recall@10"), 0.6);
      EXPECT_GE(figure(result.figures, "Recall@20"), figure(result.figures, "Recall@10"));
      EXPECT_GT(figure(result.figures, "users"), 100);
      EXPECT_LE(figure(result.figures, "users"), 150);
    }
    const auto lines = metrics_of(options.out);
    EXPECT_EQ(lines.back()["epochs_done"], options.epochs);
    for (const auto& [name, value] : result.figures) EXPECT_EQ(lines.back()["held_out"][name].get<double>(), value);
  }
}

/// A job in which everything about the head is in use.
TrainOptions job_for_heads(const ScratchFolder& folder, Job job, const std::string& loss) {
  auto options = small_job(folder, job);
  options.loss = loss;
  options.lambda = 0.1;
  if (loss == "weighted") options.unobserved = 0.5;
  options.weight_decay = 0.001;
  options.target_scale = "log";
  options.window = 100;
  options.head = "dense";
  return options;
}

/// Trains a job with the dense head and with others, and compares loss curves and figures.
void expect_heads_agree(Job job, const std::string& loss, const std::string& dtype, double tolerance) {
  const ScratchFolder folder;
  auto options = job_for_heads(folder, job, loss);
  options.dtype = dtype;
  const auto dense = train(job, options);
  const auto truth = losses_of(options.out);
  ASSERT_GT(truth.size(), 20U);
  for (const std::string head : {"windowed", "factored"}) {
    SCOPED_TRACE(fmt::format("{}, {}, {}, {}", name_of(job), loss, head, dtype));
    if (head == "factored" && loss != "squared") continue;
    options.head = head;
    options.out = folder.path("model-" + head);
    const auto result = train(job, options);
    const auto losses = losses_of(options.out);
    ASSERT_EQ(losses.size(), truth.size());
    for (std::size_t k = 0; k < truth.size(); ++k) {
      EXPECT_NEAR(losses[k], truth[k], tolerance * std::abs(truth[k])) << "log " << k;
    }
    ASSERT_EQ(result.figures.size(), dense.figures.size());
    for (std::size_t k = 0; k < result.figures.size(); ++k) {
      const auto& [name, value] = dense.figures[k];
      EXPECT_EQ(result.figures[k].first, name);
      EXPECT_NEAR(result.figures[k].second, value, tolerance * std::max(1.0, std::abs(value))) << name;
    }
  }
}

/// With W = 0 at first, the squared error of a word is 1; rates fall in a line to zero.
TEST(Run, LogsTheMeanLossAndTheRatesOfTheSchedule) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::lm);
  options.loss = "squared";
  options.target_scale = "none";
  options.schedule = "linear";
  options.warm_up = 0;
  options.lr = 0.02;
  options.head_lr = 0.001;
  Watcher watcher;
  run_training(Job::lm, options, watcher);
  EXPECT_EQ(watcher.last.seconds_left, 0);
  double before = 0;  // share of the run at the line before
  int lines = 0;
  for (const auto& line : metrics_of(options.out)) {
    if (!line.contains("loss")) continue;
    if (lines++ == 0) {
      EXPECT_NEAR(line["loss"].get<double>(), 1, 0.05);
    }
    EXPECT_LT(line["loss"].get<double>(), 1.05);
    for (const auto& [name, full] : {std::pair{"lr", options.lr}, std::pair{"eta", options.head_lr}}) {
      const double factor = line[name].get<double>() / full;
      EXPECT_GE(factor, 1 - line["share"].get<double>() - 1e-9) << name;  // the rate of the step that led there
      EXPECT_LE(factor, 1 - before + 1e-9) << name;
    }
    before = line["share"];
  }
  EXPECT_GT(lines, 20);
}

TEST(Run, IsEvaluatedEverySoManyEpochsAndAtTheEnd) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::labels);
  options.epochs = 5;
  options.valid_every = 2;
  Watcher watcher;
  run_training(Job::labels, options, watcher);
  EXPECT_EQ(watcher.evaluations, 3);  // after 2, 4 and 5
}

TEST(Run, IsTheSameWithEveryHeadForEveryLoss) {
  for (const Job job : every_job) {
    for (const auto& loss : loss_names()) {
      expect_heads_agree(job, std::string(loss), "f64", 1e-8);
      if (job == Job::lm && loss == "z") continue;  // the next test
      expect_heads_agree(job, std::string(loss), "f32", 1e-4);
    }
  }
}

/// A run magnifies roundings, and one with the steep z-loss on words so much that two runs of the dense head itself
/// part by 10⁻³ when embeddings start an ulp apart. The windowed head in float32 may not part from it further.
TEST(Run, PartsFromTheDenseHeadNoFurtherThanRoundingsDo) {
  const ScratchFolder folder;
  auto options = job_for_heads(folder, Job::lm, "z");
  options.overwrite = true;
  const auto losses = [&](const std::string& head, double factor) {
    auto other = options;
    other.head = head;
    other.input_scale *= factor;
    train(Job::lm, other);
    return losses_of(options.out);
  };
  const auto truth = losses("dense", 1);
  const auto distance = [&](const std::vector<double>& curve) {
    double largest = 0;
    for (std::size_t k = 0; k < truth.size(); ++k) {
      largest = std::max(largest, std::abs(curve[k] - truth[k]) / std::abs(truth[k]));
    }
    return largest;
  };
  double by_roundings = 0;
  for (const double ulp : {6e-8, -6e-8, 1.2e-7, -1.2e-7}) {
    by_roundings = std::max(by_roundings, distance(losses("dense", 1 + ulp)));
  }
  EXPECT_GT(by_roundings, 1e-4);  // else 10⁻⁴ should be asked for here, too
  EXPECT_LT(distance(losses("windowed", 1)), 5 * by_roundings);
}

TEST(Run, RepeatsBitForBitAndDiffersBySeed) {
  for (const Job job : every_job) {
    const ScratchFolder folder;
    auto options = small_job(folder, job);
    train(job, options);
    const auto first = state_of(options.out);
    options.overwrite = true;
    train(job, options);
    EXPECT_TRUE(state_of(options.out) == first);
    options.seed = 6;
    train(job, options);
    EXPECT_FALSE(state_of(options.out) == first);
  }
}

TEST(Run, LeavesAFolderWithTheFilesOfAModelAndNothingElse) {
  for (const Job job : every_job) {
    SCOPED_TRACE(name_of(job));
    const ScratchFolder folder;
    auto options = small_job(folder, job);
    if (job == Job::lm) options.valid = folder.file("valid.txt", "w1 w2 w3\n");
    if (job == Job::items) options.rows_file = folder.path("V");
    train(job, options, 3);
    EXPECT_EQ(fs::exists(folder.path("model/tokens.bin")), job == Job::lm);
    options.resume = true;
    EXPECT_TRUE(train(job, options).complete);
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(options.out)) {
      auto name = entry.path().filename().string();
      names.insert(name.rfind("state-", 0) == 0 ? "state" : name.rfind("rows-", 0) == 0 ? "rows" : name);
    }
    std::set<std::string> truth = {"config.toml", "lock", "manifest.json", "metrics.jsonl", "state"};
    if (job == Job::lm) truth.insert("vocabulary.txt");
    if (job == Job::items) truth.merge(std::set<std::string>{"items.txt", "rows"});
    EXPECT_EQ(names, truth);
  }
}

TEST(Run, IsNotStartedOverAModelUnlessAskedTo) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::labels);
  train(Job::labels, options);
  const auto before = state_of(options.out);
  expect_throw<std::invalid_argument>([&] { train(Job::labels, options); },
                                      {"--out", options.out, "--resume", "--overwrite"});
  EXPECT_TRUE(state_of(options.out) == before);
  options.overwrite = true;
  options.dim = 5;
  for (const auto* slash : {"", "/"}) {  // as a shell completes the name of a folder
    options.out = folder.path("model") + slash;
    EXPECT_TRUE(train(Job::labels, options).complete);
    EXPECT_FALSE(state_of(options.out) == before);
    EXPECT_FALSE(fs::exists(folder.path("model.old")));
  }
}

TEST(Run, ThatFailsLeavesNothingAndKeepsWhatWasThere) {
  for (const Job job : every_job) {
    SCOPED_TRACE(name_of(job));
    const ScratchFolder folder;
    const auto good = small_job(folder, job);
    auto bad = good;
    bad.train = {folder.file("bad.txt", job == Job::lm ? "" : job == Job::labels ? "3 3 3\n9 1:1\n" : "\n\n")};
    EXPECT_THROW(train(job, bad), FileError);
    EXPECT_FALSE(fs::exists(bad.out));
    bad.train = {folder.path("missing.txt")};
    EXPECT_THROW(train(job, bad), std::system_error);
    EXPECT_FALSE(fs::exists(bad.out));

    train(job, good);
    const auto before = state_of(good.out);
    bad.overwrite = true;
    EXPECT_THROW(train(job, bad), std::system_error);
    EXPECT_TRUE(state_of(good.out) == before);
    EXPECT_FALSE(fs::exists(good.out + ".old"));
  }
}

TEST(Run, LeavesEveryUserAnItem) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::items);
  std::string text;
  for (int user = 0; user < 60; ++user) text += fmt::format("u{} i{}\n", user, user % 7);
  options.train = {folder.file("single.txt", text)};
  options.hold_out = 0.5;
  Watcher watcher;
  EXPECT_TRUE(run_training(Job::items, options, watcher).figures.empty());
  EXPECT_EQ(watcher.notes.at(0), "60 users, 7 items, 60 pairs; 0 held out");
}

TEST(Run, DropsInputsWhereAskedTo) {
  for (const Job job : {Job::labels, Job::items}) {
    const ScratchFolder folder;
    auto options = small_job(folder, job);
    options.dropout = 0;
    train(job, options);
    const auto without = state_of(options.out);
    options.overwrite = true;
    options.dropout = 0.5;
    train(job, options);
    EXPECT_FALSE(state_of(options.out) == without);
  }
}

TEST(Run, ThatDivergesSaysSo) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::labels);
  options.optimizer = "sgd";
  options.activation = "relu";
  options.lr = 1e30;
  EXPECT_THROW(train(Job::labels, options), NumericalError);
}

TEST(Run, KnowsAsManyWordsAsItIsTold) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::lm);
  options.train = {folder.file("few.txt", "a a a a b b b c c c d d e\na b c d\n")};
  options.hold_out = 0;
  options.overwrite = true;
  const auto outputs = [&](std::int64_t min_count, std::int64_t max_words) {
    options.min_count = min_count;
    options.max_words = max_words;
    train(Job::lm, options);
    return ModelInfo::from_json(ModelFolder::open(options.out).info(), "").outputs - 1;  // but for the unknown word
  };
  EXPECT_EQ(outputs(1, 0), 5);
  EXPECT_EQ(outputs(3, 0), 4);
  EXPECT_EQ(outputs(4, 0), 3);
  EXPECT_EQ(outputs(1, 2), 2);
}

TEST(Run, HoldsOutWholeLines) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::lm);
  options.train = {folder.file("lines.txt", "a b a b\nb a b a b a\n")};
  options.min_count = 1;
  options.hold_out = 0.2;  // the cut is in the second line
  const auto result = train(Job::lm, options);
  EXPECT_EQ(figure(result.figures, "examples"), 6);
  options.overwrite = true;
  options.train = {folder.file("lines.txt", "a b a b b a b a b a\n")};
  expect_throw<std::invalid_argument>([&] { train(Job::lm, options); }, {"--hold-out", "nothing is left to train on"});
}

/// At first all words are equally probable: the perplexity is D.
TEST(Run, EvaluatesPerplexityOnAsManyExamplesAsAsked) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::lm);
  Dice dice(8);
  options.valid = folder.file("valid.txt", make_text(dice, 400));
  options.loss = "taylor";
  options.lr = options.head_lr = 1e-30;
  options.epochs = 1;
  options.valid_examples = evaluation_batch + 3;
  const auto result = train(Job::lm, options);
  EXPECT_EQ(figure(result.figures, "examples"), evaluation_batch + 3);
  const auto outputs = ModelInfo::from_json(ModelFolder::open(options.out).info(), "").outputs;
  EXPECT_NEAR(figure(result.figures, "perplexity"), static_cast<double>(outputs), 1e-3);
}

TEST(Run, WithoutAnyExampleIsComplete) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::lm);
  options.subsample = 1e-12;
  const auto result = train(Job::lm, options);
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.progress.steps, 0);
  options.resume = true;
  Watcher watcher;
  EXPECT_TRUE(run_training(Job::lm, options, watcher).complete);
  EXPECT_EQ(watcher.notes, std::vector<std::string>{fmt::format("the run in {} is complete", options.out)});
}

TEST(Run, WithNothingButUnknownWordsHeldOutHasNoFigures) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::lm);
  options.valid = folder.file("valid.txt", "nobody knows these\n");
  EXPECT_TRUE(train(Job::lm, options).figures.empty());
  options.overwrite = true;
  options.valid.clear();
  options.hold_out = 0;
  EXPECT_TRUE(train(Job::lm, options).figures.empty());
}

}  // namespace
}  // namespace widehead::test
