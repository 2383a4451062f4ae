/// Training runs from files to folders.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "errors.h"
#include "jobs_under_test.h"
#include "widehead/data/corpus.h"
#include "widehead/data/labels_file.h"
#include "widehead/data/token_file.h"
#include "widehead/errors.h"
#include "widehead/loss.h"
#include "widehead/train/assemble.h"
#include "widehead/train/ngram_source.h"
#include "widehead/train/rows_source.h"

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

/// Trains a job with the dense head and with others, and compares loss curves and figures.
void expect_heads_agree(Job job, const std::string& loss, const std::string& dtype, double tolerance) {
  const ScratchFolder folder;
  auto options = small_job(folder, job);
  options.loss = loss;
  options.dtype = dtype;
  options.lambda = 0.1;
  if (loss == "weighted") options.unobserved = 0.5;
  options.weight_decay = 0.001;
  options.target_scale = "log";
  options.window = 100;
  options.head = "dense";
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

TEST(Run, IsEvaluatedEverySoManyEpochsAndAtTheEnd) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::labels);
  options.epochs = 5;
  options.valid_every = 2;
  Watcher watcher;
  run_training(Job::labels, options, watcher);
  EXPECT_EQ(watcher.evaluations, 3);  // after 2, 4 and 5
}

TEST(Run, IsTheSameWithEveryHead) {
  for (const Job job : every_job) {
    for (const auto* loss : {"squared", "weighted"}) expect_heads_agree(job, loss, "f32", 1e-4);
  }
}

/// In double: a run magnifies roundings, and the softmaxes' curvature does so more than a square's.
TEST(Run, IsTheSameWithEveryHeadForEveryLoss) {
  for (const Job job : every_job) {
    for (const auto& loss : loss_names()) expect_heads_agree(job, std::string(loss), "f64", 1e-8);
  }
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
    train(job, options, 3);
    EXPECT_EQ(fs::exists(folder.path("model/tokens.bin")), job == Job::lm);
    options.resume = true;
    EXPECT_TRUE(train(job, options).complete);
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(options.out)) {
      auto name = entry.path().filename().string();
      names.insert(name.rfind("state-", 0) == 0 ? "state" : name);
    }
    std::set<std::string> truth = {"config.toml", "lock", "manifest.json", "metrics.jsonl", "state"};
    if (job == Job::lm) truth.insert("vocabulary.txt");
    if (job == Job::items) truth.insert("items.txt");
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

// ── models in use ───────────────────────────────────────────────────────────────────────────────

/// The figures of the run's last evaluation, from the model opened again.
template <class T>
Figures figures_of(const Model<T>& model, const TrainOptions& options, const ScratchFolder& folder) {
  auto predictor = model.predictor();
  const auto scale = target_scale<T>(options, model.counts);
  if (model.info.job == Job::labels) {
    const auto data = read_labels(options.valid);
    const RowsSource<T> source(data.features, data.inputs, data.targets, data.outputs, scale, {.shuffle = false});
    return evaluate_labels<T>(*model.network, predictor, source, data.targets, model.counts, model.info.examples, 0);
  }
  const auto path = folder.path("again.bin");
  encode_corpus({options.valid}, tokenization_from_name("words"), true, *model.vocabulary, path);
  const TokenFile tokens(path);
  NGramOptions ngram;
  ngram.context = options.context;
  ngram.seed = static_cast<std::uint64_t>(options.seed);
  const NGramSource<T> source(tokens.tokens(), model.counts, scale, ngram);
  return evaluate_words<T>(*model.network, predictor, source, options.valid_examples);
}

TEST(Model, PredictsAsTheNetworkThatWasSaved) {
  for (const Job job : {Job::lm, Job::labels}) {
    for (const auto* head : {"windowed", "factored", "dense"}) {
      for (const auto* dtype : {"f32", "f64"}) {
        for (const bool in_file : {false, true}) {
          if (in_file && std::string(head) != "windowed") continue;
          SCOPED_TRACE(fmt::format("{}, {}, {}, {}", name_of(job), head, dtype, in_file ? "rows in a file" : ""));
          const ScratchFolder folder;
          auto options = small_job(folder, job);
          if (job == Job::lm) {
            Dice dice(3);
            options.valid = folder.file("valid.txt", make_text(dice, 20));
            options.subsample = 0.001;  // of training alone
          }
          options.head = head;
          options.dtype = dtype;
          options.target_scale = "log";
          options.rows_file = in_file ? folder.path("rows") : "";
          const auto result = train(job, options);
          const auto any = open_model(options.out, 1);
          std::visit([&](const auto& model) { EXPECT_EQ(figures_of(model, options, folder), result.figures); }, any);
          EXPECT_EQ(std::holds_alternative<Model<double>>(any), std::string(dtype) == "f64");
        }
      }
    }
  }
}

TEST(Model, KnowsWhatItsOutputsAreCalled) {
  for (const Job job : every_job) {
    const ScratchFolder folder;
    train(job, small_job(folder, job));
    const auto any = open_model(folder.path("model"));
    const auto& model = std::get<Model<float>>(any);
    EXPECT_EQ(model.info.job, job);
    EXPECT_TRUE(model.info.complete);
    EXPECT_EQ(model.info.share, 1);
    EXPECT_EQ(static_cast<Size>(model.counts.size()), model.info.outputs);
    for (Index i = 0; i < model.info.outputs; ++i) EXPECT_EQ(model.find(model.name_of(i)), i);
    EXPECT_FALSE(model.find("no such thing"));
    EXPECT_FALSE(model.find("-1"));
    if (job == Job::labels) {
      EXPECT_EQ(model.info.outputs, 12);
      EXPECT_EQ(model.info.features, 30);
      EXPECT_EQ(model.info.examples, 230);
      EXPECT_FALSE(model.find("12"));
      EXPECT_FALSE(model.find("3x"));
      EXPECT_EQ(model.find("11"), 11);
    } else {
      EXPECT_EQ(model.counts[0] == 0, job == Job::lm);  // the unknown word is no target
      EXPECT_TRUE(model.find(job == Job::lm ? "w3" : "i3"));
    }
  }
}

TEST(ModelInfo, IsCheckedWhenRead) {
  ModelInfo info;
  info.job = Job::items;
  info.features = 3;
  info.outputs = 4;
  info.examples = 5;
  info.share = 0.25;
  info.steps = 6;
  info.complete = true;
  const auto read = ModelInfo::from_json(info.to_json(), "p");
  EXPECT_EQ(read.to_json(), info.to_json());
  EXPECT_EQ(std::tuple(read.job, read.features, read.outputs, read.examples, read.share, read.steps, read.complete),
            std::tuple(Job::items, 3, 4, 5, 0.25, 6, true));
  const auto refused = [](const std::string& json, const std::string& word) {
    expect_throw<FileError>([&] { ModelInfo::from_json(json, "folder"); }, {"folder: ", word});
  };
  refused("{", "parse error");
  refused("{}", "job");
  refused(R"({"job": "poems"})", "poems");
  info.outputs = 0;
  refused(info.to_json(), "3 features and 0 outputs");
  info.outputs = Size{1} << 31;
  refused(info.to_json(), "2147483648 outputs");
}

}  // namespace
}  // namespace widehead::test
