/// Models in use: opened from the folder of a run, or refused.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <set>

#include "errors.h"
#include "jobs_under_test.h"
#include "widehead/data/corpus.h"
#include "widehead/data/labels_file.h"
#include "widehead/data/token_file.h"
#include "widehead/errors.h"
#include "widehead/train/assemble.h"
#include "widehead/train/ngram_source.h"
#include "widehead/train/rows_source.h"

namespace widehead::test {
namespace {

namespace fs = std::filesystem;

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

// ── models that lie ─────────────────────────────────────────────────────────────────────────────

/// A copy of a model with all checksums right, whose config and info were tampered with.
std::string tampered(const ScratchFolder& folder, const std::function<void(std::string&)>& edit_config,
                     const std::function<void(ModelInfo&)>& edit_info = {}) {
  const auto model = ModelFolder::open(folder.path("model"));
  const auto path = folder.path("tampered");
  fs::remove_all(path);
  auto copy = ModelFolder::create(path);
  auto change = copy.begin();
  auto config = content_of(model.path_of(model_files::config));
  if (edit_config) edit_config(config);
  std::ofstream(change.fixed_file(model_files::config)) << config;
  for (const auto* role : {model_files::state, model_files::rows}) {
    if (model.has(role)) fs::copy_file(model.path_of(role), change.file(role));
  }
  for (const auto* role : {model_files::vocabulary, model_files::items}) {
    if (model.has(role)) fs::copy_file(model.path_of(role), change.fixed_file(role));
  }
  auto info = ModelInfo::from_json(model.info(), path);
  if (edit_info) edit_info(info);
  change.commit(info.to_json());
  return path;
}

/// Replaces the line of an option.
auto with(const std::string& name, const std::string& value) {
  return [=](std::string& config) {
    const auto begin = ("\n" + config).find("\n" + name + " = ");
    ASSERT_NE(begin, std::string::npos) << name << " in " << config;
    config.replace(begin, config.find('\n', begin) - begin, name + " = " + value);
  };
}

TEST(Model, OfACopyIsOpened) {
  const ScratchFolder folder;
  train(Job::labels, small_job(folder, Job::labels));
  EXPECT_EQ(std::get<Model<float>>(open_model(tampered(folder, {}))).info.outputs, 12);
}

/// Nothing of the size named is made: none of these would fit into memory.
TEST(Model, SizesThatTheStateDoesNotHaveAreRefused) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::lm);
  for (const auto* head : {"windowed", "factored", "dense", "softmax", "hierarchical", "sampled"}) {
    SCOPED_TRACE(head);
    options.head = head;
    options.overwrite = true;
    train(Job::lm, options);
    const auto refused = [&](const std::string& name, const std::string& value, const std::string& word) {
      expect_throw<FileError>([&] { open_model(tampered(folder, with(name, value))); }, {"tampered", word});
    };
    refused("dim", "65536",
            "tensor 'network.hidden2.weights.value' is {10, 8}, but by the options it would be {10, 65536}");
    refused("hidden", "[65536]", "tensor 'network.hidden1.weights.value' is {12, 10}");
    refused("hidden", "[10, 65536, 65536, 65536]", "tensor 'network.hidden2.weights.value' is {10, 8}");
    refused("embedding", "65536", "tensor 'network.input.embeddings.value' is");
    refused("context", "64", "tensor 'network.hidden1.weights.value' is {12, 10}");
    refused("head", head == std::string("dense") ? R"("softmax")" : R"("dense")",
            "is missing, which the options ask for");
    const auto with_info = [&](const std::function<void(ModelInfo&)>& edit, const std::string& word) {
      expect_throw<FileError>([&] { open_model(tampered(folder, {}, edit)); }, {"tampered", word});
    };
    with_info([](ModelInfo& info) { info.outputs = 0x7FFFFFFF; }, "but the model has 2147483647");
    with_info([](ModelInfo& info) { info.features = 0x7FFFFFFF; }, "tensor 'network.input.embeddings.value' is");
  }
}

/// Of labels there are no names that would contradict: the counts do.
TEST(Model, MoreOutputsThanTheStateHasAreRefused) {
  const ScratchFolder folder;
  train(Job::labels, small_job(folder, Job::labels));
  const auto path = tampered(folder, {}, [](ModelInfo& info) { info.outputs = 0x7FFFFFFF; });
  expect_throw<FileError>([&] { open_model(path); }, {path, "12 counts for 2147483647 outputs"});
}

TEST(Model, ADimWithoutHiddenLayersIsCheckedAgainstTheHead) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::labels);
  options.hidden = {};
  options.embedding = 0;
  train(Job::labels, options);
  expect_throw<FileError>([&] { open_model(tampered(folder, with("dim", "65536"))); },
                          {"tensor 'network.input.embeddings.value' is {30, 8}"});
  expect_throw<FileError>([&] { open_model(tampered(folder, with("embedding", "8"))); },  // that is one layer more
                          {"tensor 'network.hidden1.weights.value' is missing, which the options ask for"});
}

// ── rows in a file of their own ─────────────────────────────────────────────────────────────────

TEST(Model, WithItsRowsInAFileHasThemInAFileOfTheFolder) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::labels);
  options.rows_file = folder.path("V");
  train(Job::labels, options);
  const auto model = ModelFolder::open(options.out);
  const auto names = [&](const char* role) {
    std::set<std::string> list;
    const SafetensorsFile file(model.path_of(role));
    for (const auto& tensor : file.tensors()) list.insert(tensor.name);
    return list;
  };
  EXPECT_EQ(names(model_files::rows), (std::set<std::string>{"network.head.rows.V", "network.head.timeline.stamps"}));
  EXPECT_FALSE(names(model_files::state).contains("network.head.rows.V"));
  EXPECT_TRUE(names(model_files::state).contains("network.head.high"));
  fs::remove(folder.path("V"));  // of the run; the model does not need it
  open_model(options.out);
  EXPECT_EQ(fs::exists(folder.path("V")), false);

  const auto path = model.path_of(model_files::rows);
  const auto whole = content_of(path);
  auto bytes = whole;
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
  expect_throw<FileError>([&] { open_model(options.out); }, {path.string(), "is damaged: its checksum is"});
  std::ofstream(path, std::ios::binary) << whole.substr(0, whole.size() - 1);
  expect_throw<FileError>([&] { open_model(options.out); }, {path.string(), "bytes, but the manifest says"});
  fs::remove(path);
  expect_throw<FileError>([&] { open_model(options.out); }, {path.string(), "is missing"});
  options.resume = true;
  expect_throw<FileError>([&] { train(Job::labels, options); }, {path.string(), "is missing"});
  std::ofstream(path, std::ios::binary) << whole;
  EXPECT_NO_THROW(open_model(options.out));
}

}  // namespace
}  // namespace widehead::test
