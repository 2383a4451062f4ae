/// Models in use: opened from the folder of a run, or refused.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <set>

#include "edited_model.h"
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

/// A copy of the folder's model whose config and info were tampered with.
std::string tampered(const ScratchFolder& folder, const std::function<void(std::string&)>& edit_config,
                     const std::function<void(ModelInfo&)>& edit_info = {}) {
  return copy_model(folder.path("model"), folder.path("tampered"), {edit_config, edit_info, {}});
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

// ── devices ─────────────────────────────────────────────────────────────────────────────────────

TEST(Model, OpensOnADeviceByName) {
  const ScratchFolder folder;
  const auto options = small_job(folder, Job::labels);
  train(Job::labels, options);
  const auto any = open_model(options.out, 1, "cpu");
  EXPECT_EQ(std::get<Model<float>>(any).network->head().backend().device(), "cpu");
  expect_throw<std::invalid_argument>([&] { open_model(options.out, 1, "abacus"); }, {"device 'abacus' is unknown"});
  if (cuda_devices() > 0) {
    const auto there = open_model(options.out, 1, "cuda");
    EXPECT_EQ(std::get<Model<float>>(there).network->head().backend().device(), "cuda");
  } else {
    expect_throw<BackendError>([&] { open_model(options.out, 1, "cuda"); }, {"CUDA"});
  }
}

/// A run on a GPU leaves a config that says so, and a timeline with products (timeline.h), which a layer on the CPU can
/// be told to keep as well. What it leaves opens on the CPU, and answers as the network that was saved.
TEST(Model, OfAGpuOpensOnTheCpu) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::labels);
  options.dtype = "f64";
  options.window = 20;  // less than a minibatch: every step ends one
  train(Job::labels, options);
  auto trained = open_model(options.out, 1);
  auto& model = std::get<Model<double>>(trained);
  auto network = network_options(Job::labels, options, model.info.features, model.info.outputs, model.counts);
  network.head.windowed.timeline.keeps_products = true;
  Network<double> of_gpu(network, make_cpu_backend<double>(1));
  const auto data = read_labels(options.train.front());
  const RowsSource<double> source(data.features, data.inputs, data.targets, data.outputs, {}, {.shuffle = false});
  Batch<double> batch;
  for (Cursor at; at.epoch == 0; at = batch.next) {
    source.fill(at, 32, batch);
    of_gpu.step(batch.inputs.view(source.features()), batch.targets.view(source.outputs()), 0.01, 1);
  }

  ModelEdits edits;
  edits.config = with("device", R"("cuda:3")");
  edits.write_state = [&](const fs::path& path) {
    save_state(path, [&](StateVisitor& state) {
      state.list("counts", model.counts);
      const auto scope = state.scope("network");
      of_gpu.visit_state(state);
    });
    const SafetensorsFile saved(path);
    EXPECT_TRUE(std::ranges::any_of(saved.tensors(), [](const auto& tensor) {
      return tensor.name == "network.head.timeline.to_now" && tensor.bytes > 0;
    })) << "nothing to convert";
  };
  const auto path = copy_model(options.out, folder.path("of_gpu"), edits);
  const auto opened = open_model(path, 1);
  const auto& on_cpu = std::get<Model<double>>(opened);
  EXPECT_EQ(on_cpu.options.device, "cuda:3") << "it stays known where it was trained";
  EXPECT_EQ(on_cpu.network->head().backend().device(), "cpu");

  const auto evaluate = [&](Network<double>& of) {
    Predictor<double> predictor(of, {});
    return evaluate_labels<double>(of, predictor, source, data.targets, model.counts, model.info.examples, 0);
  };
  const auto figures = evaluate(*on_cpu.network), expected = evaluate(of_gpu);
  ASSERT_EQ(figures.size(), expected.size());
  for (std::size_t i = 0; i < figures.size(); ++i) {
    EXPECT_NEAR(figures[i].second, expected[i].second, 1e-10) << figures[i].first;
  }
  EXPECT_NE(evaluate(*model.network), expected) << "the steps after the run changed nothing";
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
