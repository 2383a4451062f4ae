/// The `widehead` program with --device: where a model computes does not depend on where it was trained.

#include <algorithm>
#include <filesystem>
#include <utility>

#include "edited_model.h"
#include "trained_models.h"
#include "widehead/backend.h"

namespace widehead::test {
namespace {

/// Every command that computes with a model, asked about one of each kind; {} is the model.
std::vector<std::pair<std::string, std::string>> questions() {
  const auto lines = models().write("lines", "the birda1 of birdb1\n\nmetala1 the\n");
  const auto users = models().write("some_users", "x a0 a1 a2 a3\ny b0 b5\n");
  const auto asked = models().write("asked", ": all\nbirda1 birdb1 metala1 metalb1\nthe of and in\n");
  const auto words =
      fmt::format(" --similarity {} --corpus {} --analogy {} --examples 300", in("pairs"), in("text"), asked);
  const auto baskets = fmt::format(" --train {} --test {}", in("train.txt"), in("test.txt"));
  return {{"lm", "eval {}" + words},
          {"lm64", "eval {}" + words},
          {"labels", "eval {} --test " + in("labels.txt")},
          {"items", "eval {}" + baskets},
          {"lm", "predict {} " + lines},
          {"lm64", "predict {} " + lines + " --json"},
          {"labels", "predict {} " + in("labels.txt")},
          {"items", "predict {} " + users},
          {"lm", "neighbours {} birda1 'the - of + and'"},
          {"labels", "neighbours {} 3 --json"},
          {"items", "neighbours {} a3 --vectors input"},
          {"lm", "export {} --out /dev/null"},
          {"lm", "export {} --vectors input --out /dev/null"},
          {"labels", "export {} --format npy --out /dev/null"},
          {"items", "export {} --format safetensors --out /dev/null"}};
}

/// Stdout of a command, or the file it exports.
std::string answer(const std::string& question, const std::string& model, const std::string& options) {
  auto command = fmt::format(fmt::runtime(question), in(model)) + options;
  const auto place = command.find("/dev/null");
  if (place == std::string::npos) return text_of(command);
  const auto path = in("exported");
  std::filesystem::remove(path);
  EXPECT_EQ(text_of(command.replace(place, 9, path)), "");
  return read_bytes(path);
}

/// Each question with all it needs, its model's answers known to be something.
void expect_same_answers(const std::string& suffix, const std::string& options) {
  for (const auto& [model, question] : questions()) {
    SCOPED_TRACE(question + options);
    const auto expected = answer(question, model, "");
    EXPECT_FALSE(expected.empty());
    EXPECT_TRUE(answer(question, model + suffix, options) == expected);
  }
}

TEST(DeviceOption, IsTheCpuUnlessTold) { expect_same_answers("", " --device cpu"); }

TEST(DeviceOption, IsNotTheOneThatAModelWasTrainedOn) {
  for (const std::string model : {"lm", "lm64", "labels", "items"}) {
    ModelEdits edits;
    edits.config = [&](std::string& config) {
      with("device", R"("cuda:1")")(config);
      if (model != "lm64") with("tf32", "true")(config);
    };
    copy_model(in(model), in(model + "-of-gpu"), edits);
    EXPECT_EQ(json_of("info " + in(model + "-of-gpu"))["options"]["device"], "cuda:1");
  }
  expect_same_answers("-of-gpu", "");
  expect_same_answers("-of-gpu", " --device cpu");
}

/// The commands that are given a device, complete but for that.
std::vector<std::string> commands() {
  std::vector<std::string> list = {
      "verify --steps 1 --outputs 50 --dim 6",
      "bench step --heads dense --outputs 60 --dim 6 --rounds 1",
      fmt::format("train lm --corpus {} --out {}", in("text"), in("new")),
      fmt::format("train labels --train {} --out {}", in("labels.txt"), in("new")),
      fmt::format("train items --train {} --out {}", in("train.txt"), in("new")),
  };
  for (const auto& [model, question] : questions()) {
    auto command = fmt::format(fmt::runtime(question), in(model));
    if (const auto place = command.find("/dev/null"); place != std::string::npos) command.replace(place, 9, in("new"));
    list.push_back(command);
  }
  return list;
}

TEST(DeviceOption, IsRefusedWhereThereIsNoSuchDevice) {
  for (const auto& command : commands()) {
    expect_refused(command + " --device abacus", 2, "device 'abacus' is unknown; there are: cpu, cuda, cuda:NUMBER");
    if (cuda_devices() == 0) {
      expect_refused(command + " --device cuda", 1, "CUDA");
    } else {
      expect_refused(command + " --device cuda:4000", 2, "CUDA device 4000");
    }
    EXPECT_FALSE(std::filesystem::exists(in("new"))) << command;
  }
}

TEST(Tf32Option, IsRefusedOnTheCpu) {
  for (const auto& command : commands()) {
    const bool computes = command.starts_with("train") || command.starts_with("verify") || command.starts_with("bench");
    expect_refused(command + " --tf32", 2, "tf32");
    if (computes) {
      expect_refused(command + " --tf32 --device cpu", 2, "only GPUs have TF32");
      expect_refused(command + " --tf32 --device cuda --dtype f64", 2, "float32");
    }
    EXPECT_FALSE(std::filesystem::exists(in("new"))) << command;
  }
  const auto config = models().write("tf32.toml", "tf32 = true\n");
  expect_refused(fmt::format("train labels --train {} --out {} --config {}", in("labels.txt"), in("new"), config), 2,
                 "--tf32: --device is cpu");
}

TEST(RowsOption, IsForGpusAndTheWindowedHead) {
  const auto train = fmt::format("train labels --train {} --out {}", in("labels.txt"), in("new"));
  expect_refused(train + " --rows host", 2, "--rows host: --device is cpu, whose memory is the host's");
  expect_refused(train + " --rows device --head dense --device cuda", 2, "--rows device: only the windowed head");
  expect_refused(train + " --rows-file V --device cuda", 2, "--rows host keeps it in the host's memory");
  expect_refused(train + " --rows shelf", 2, "shelf");
  for (const std::string command :
       {"verify --steps 1 --outputs 50 --dim 6", "bench step --heads windowed --outputs 60 --dim 6 --rounds 1"}) {
    expect_refused(command + " --rows host", 2, "the memory of device cpu is the host's");
    expect_refused(command + " --rows shelf", 2, "shelf");
  }
  EXPECT_FALSE(std::filesystem::exists(in("new")));
}

/// On a machine with a GPU: a model trained there, with V in either place, is as good as the CPU's, on either device.
TEST(RowsOption, TrainsTheSameModel_Cuda) {
  if (cuda_devices() == 0) GTEST_SKIP() << "there is no GPU here";
  const auto train = fmt::format("train labels --train {} --dim 16 --epochs 60 --batch 16 --lr 0.01 --threads 1 --out ",
                                 in("labels.txt"));
  const auto test = " --test " + in("labels.txt");
  const auto truth = json_of("eval " + in("labels") + test)["held_out"];
  for (const std::string place : {"device", "host"}) {
    const auto model = in("labels-" + place);
    const auto outcome = run(train + model + " --device cuda --rows " + place);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    for (const std::string device : {"cpu", "cuda"}) {
      const auto figures = json_of("eval " + model + test + " --device " + device)["held_out"];
      EXPECT_NEAR(figures["P@1"].get<double>(), truth["P@1"].get<double>(), 0.05) << place << ", " << device;
      EXPECT_NEAR(figures["loss"].get<double>(), truth["loss"].get<double>(), 0.1) << place << ", " << device;
    }
  }
  for (const std::string place : {"device", "host"}) {
    EXPECT_EQ(run("verify --steps 50 --outputs 500 --dim 16 --device cuda --rows " + place).code, 0);
    EXPECT_EQ(run("bench step --heads windowed --outputs 600 --dim 16 --rounds 1 --device cuda --rows " + place).code,
              0);
  }
  expect_refused("verify --steps 1 --outputs 50 --dim 6 --device cuda --rows-file " + in("new"), 2, "rows file");
}

/// On a machine with a GPU: the same answers but for rounding.
TEST(DeviceOption, GivesTheSameModel_Cuda) {
  if (cuda_devices() == 0) GTEST_SKIP() << "there is no GPU here";
  const auto pairs = " --similarity " + in("pairs") + " --corpus " + in("text") + " --examples 300";
  for (const std::string model : {"lm", "lm64"}) {
    const auto here = json_of("eval " + in(model) + pairs),
               there = json_of("eval " + in(model) + pairs + " --device cuda");
    EXPECT_NEAR(here["held_out"]["loss"].get<double>(), there["held_out"]["loss"].get<double>(), 1e-4);
    EXPECT_NEAR(here["held_out"]["mrr"].get<double>(), there["held_out"]["mrr"].get<double>(), 1e-2);
    for (const char* kind : {"input", "output"}) {
      EXPECT_NEAR(here["similarity"][0][kind]["spearman"].get<double>(),
                  there["similarity"][0][kind]["spearman"].get<double>(), 1e-3);
    }
  }
  const auto features = models().write("one_feature", "8:1\n");
  EXPECT_EQ(text_of(fmt::format("predict {} {} --top-k 1 --device cuda", in("labels"), features)).substr(0, 2), "1:");
  const auto near = json_of("neighbours " + in("items") + " a3 --top-k 3 --device cuda")["neighbours"];
  for (const auto& each : near) EXPECT_EQ(each["item"].get<std::string>()[0], 'a');
}

}  // namespace
}  // namespace widehead::test
