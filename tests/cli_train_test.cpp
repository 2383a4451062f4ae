/// `widehead train` from outside: what it makes, and what it says to bad input. Whatever goes wrong is one line on
/// stderr, exit code 2 for usage and 1 for the rest, and nothing half-written.

#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "process.h"
#include "scratch_folder.h"
#include "widehead/data/synthetic_text.h"

namespace widehead::test {
namespace {

using Arguments = std::vector<std::string>;

class CliTrain : public testing::Test {
 protected:
  Ended train(Arguments arguments, const std::string& out = "model") {
    arguments.insert(arguments.begin(), "train");
    arguments.insert(arguments.end(), {"--out", folder_.path(out), "--threads", "1"});
    return run_process(arguments, folder_.path("."));
  }
  /// The run fails with this code and one line that has all the parts; there is no model, and nothing else either.
  void expect_failure(const Arguments& arguments, int code, const std::vector<std::string>& parts) {
    SCOPED_TRACE(arguments.back());
    const auto outcome = train(arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    const auto line = outcome.err.rfind("widehead: ");
    ASSERT_NE(line, std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find('\n', line), outcome.err.size() - 1) << outcome.err;
    for (const auto& part : parts)
      EXPECT_NE(outcome.err.find(part, line), std::string::npos) << part << " | " << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(folder_.path("model")));
  }
  Arguments lm(const std::string& corpus) {
    return {"lm", "--min-count", "1", "--hold-out", "0", "--dim", "8", "--corpus", corpus};
  }
  Arguments labels(const std::string& file) { return {"labels", "--dim", "8", "--train", file}; }
  Arguments items(const std::string& file) { return {"items", "--dim", "8", "--train", file}; }

  ScratchFolder folder_;
};

std::string gzipped(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string result(text.size() + 100, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  return result;
}

std::string many_words() {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += fmt::format("word{} {}", i * i % 997, i % 10 == 9 ? "\n" : "");
  return text;
}

// ── bad input ───────────────────────────────────────────────────────────────────────────────────

TEST_F(CliTrain, NamesTheTextAndTheLineThatAreBad) {
  expect_failure(lm(folder_.path("none.txt")), 1, {"none.txt", "No such file"});
  expect_failure(lm(folder_.file("empty.txt", "")), 1, {"empty.txt", "no word"});
  expect_failure(lm(folder_.file("nul.txt", std::string("a b\nc \0 d\n", 10))), 1, {"nul.txt:2", "NUL"});
  expect_failure(lm(folder_.file("latin1.txt", "a b\ncaf\xe9 d\n")), 1, {"latin1.txt:2", "UTF-8"});
  auto compressed = gzipped(many_words());
  expect_failure(lm(folder_.file("cut.gz", compressed.substr(0, compressed.size() / 2))), 1, {"cut.gz:"});
  compressed[compressed.size() / 2] = static_cast<char>(compressed[compressed.size() / 2] ^ 0x55);
  expect_failure(lm(folder_.file("damaged.gz", compressed)), 1, {"damaged.gz:"});
}

TEST_F(CliTrain, SaysWhichOptionLeavesNoWords) {
  const auto corpus = folder_.file("few.txt", "one two three\nfour five six\n");
  expect_failure({"lm", "--min-count", "5", "--corpus", corpus}, 2, {"min_count"});
}

TEST_F(CliTrain, NamesTheLineOfALabelsFileThatIsBad) {
  expect_failure(labels(folder_.path("none.txt")), 1, {"none.txt", "No such file"});
  expect_failure(labels(folder_.file("label.txt", "2 5 3\n0 1:1\n3 2:1\n")), 1, {"label.txt:3", "3"});
  expect_failure(labels(folder_.file("feature.txt", "1 5 3\n0 5:1\n")), 1, {"feature.txt:2", "5"});
  expect_failure(labels(folder_.file("value.txt", "1 5 3\n0 1:much\n")), 1, {"value.txt:2", "much"});
  expect_failure(labels(folder_.file("nan.txt", "1 5 3\n0 1:nan\n")), 1, {"nan.txt:2", "nan"});
  expect_failure(labels(folder_.file("header.txt", "two 5 3\n0 1:1\n")), 1, {"header.txt:1"});
  expect_failure(labels(folder_.file("fewer.txt", "3 5 3\n0 1:1\n")), 1, {"fewer.txt"});
  expect_failure(labels(folder_.file("huge.txt", "4000000000000 5 3\n0 1:1\n")), 1, {"huge.txt"});
  const auto good = folder_.file("good.txt", "1 5 3\n0 1:1\n");
  expect_failure({"labels", "--train", good, "--valid", folder_.file("other.txt", "1 6 3\n0 1:1\n")}, 1,
                 {"other.txt:1", "6"});
}

TEST_F(CliTrain, NamesTheLineOfAnItemsFileThatIsBad) {
  expect_failure(items(folder_.file("empty.txt", "")), 1, {"empty.txt"});
  expect_failure(items(folder_.file("rating.csv", "u,a,5\nu,b,good\n")), 1, {"rating.csv:2", "good"});
  expect_failure(items(folder_.file("lone.csv", "u,a\nv\n")), 1, {"lone.csv:2"});
}

TEST_F(CliTrain, RefusesWrongUsage) {
  const auto corpus = folder_.file("corpus.txt", many_words());
  const auto with = [&](const Arguments& more) {
    auto arguments = lm(corpus);
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  expect_failure(with({"--dtype", "f16"}), 2, {"--dtype", "f16", "f32"});
  expect_failure(with({"--batch", "0"}), 2, {"--batch", "0"});
  expect_failure(with({"--lambda", "-1"}), 2, {"--lambda", "-1"});
  expect_failure(with({"--resume", "--overwrite"}), 2, {"--resume", "--overwrite"});
  expect_failure(with({"--head", "dense", "--rows-file", folder_.path("rows")}), 2, {"--rows-file", "dense"});
  expect_failure(with({"--config", folder_.file("bad.toml", "job = \"lm\"\nlerning-rate = 1\n")}), 1,
                 {"bad.toml:2", "lerning-rate"});
  expect_failure(with({"--config", folder_.file("type.toml", "epochs = \"many\"\n")}), 1, {"type.toml:1", "epochs"});
  EXPECT_EQ(run_process({"train", "lm", "--corpus", corpus}, folder_.path(".")).code, 2);  // no --out
  EXPECT_EQ(run_process({"train", "nothing"}, folder_.path(".")).code, 2);
}

TEST_F(CliTrain, StopsARunThatDivergesAndSaysSo) {
  const auto corpus = folder_.file("corpus.txt", many_words());
  auto arguments = lm(corpus);
  arguments.insert(arguments.end(), {"--head-lr", "1000", "--epochs", "5"});
  const auto outcome = train(arguments);
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("step"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("λ₁"), std::string::npos) << outcome.err;
}

// ── models ──────────────────────────────────────────────────────────────────────────────────────

TEST_F(CliTrain, MakesAModelAndKeepsItUnlessTold) {
  const auto corpus = folder_.file("corpus.txt", many_words());
  const auto first = train(lm(corpus));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out.find("examples/s"), std::string::npos) << first.out;
  const auto manifest = folder_.content("model/manifest.json");
  EXPECT_EQ(nlohmann::json::parse(manifest)["info"]["complete"], true);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("model/tokens.bin")));

  const auto again = train(lm(corpus));
  EXPECT_EQ(again.code, 2);
  EXPECT_NE(again.err.find("--overwrite"), std::string::npos) << again.err;
  EXPECT_EQ(folder_.content("model/manifest.json"), manifest);

  auto resume = lm(corpus);
  resume.push_back("--resume");
  const auto complete = train(resume);
  EXPECT_EQ(complete.code, 0) << complete.err;
  EXPECT_NE(complete.err.find("complete"), std::string::npos) << complete.err;
  resume.insert(resume.end(), {"--seed", "9"});
  const auto other = train(resume);
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("--seed"), std::string::npos) << other.err;

  auto bad = lm(folder_.file("empty.txt", ""));
  bad.push_back("--overwrite");
  EXPECT_EQ(train(bad).code, 1);
  EXPECT_EQ(folder_.content("model/manifest.json"), manifest);  // a failed run does not cost the old model
  auto good = lm(corpus);
  good.push_back("--overwrite");
  EXPECT_EQ(train(good).code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("model.old")));
}

TEST_F(CliTrain, TakesAConfigFileBelowFlags) {
  const auto corpus = folder_.file("corpus.txt", many_words());
  const auto config = folder_.file(
      "run.toml", fmt::format("job = \"lm\"\ncorpus = [\"{}\"]\nmin-count = 1\ndim = 8\nbatch = 16\n", corpus));
  const auto outcome = train({"lm", "--config", config, "--batch", "32"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto stored = folder_.content("model/config.toml");
  EXPECT_NE(stored.find("dim = 8\n"), std::string::npos) << stored;
  EXPECT_NE(stored.find("batch = 32\n"), std::string::npos) << stored;
}

TEST_F(CliTrain, RefusesAModelThatIsDamagedOrTooNew) {
  const auto corpus = folder_.file("corpus.txt", many_words());
  ASSERT_EQ(train(lm(corpus)).code, 0);
  auto arguments = lm(corpus);
  arguments.push_back("--resume");

  const auto config = folder_.content("model/config.toml");
  auto damaged = config;
  damaged[damaged.size() - 2] = static_cast<char>(damaged[damaged.size() - 2] ^ 1);
  folder_.file("model/config.toml", damaged);
  auto outcome = train(arguments);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("config.toml"), std::string::npos) << outcome.err;
  folder_.file("model/config.toml", config);

  auto manifest = folder_.content("model/manifest.json");
  const auto format = manifest.find("\"format\": 1");
  ASSERT_NE(format, std::string::npos);
  folder_.file("model/manifest.json", manifest.replace(format, 11, "\"format\": 9"));
  outcome = train(arguments);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("newer"), std::string::npos) << outcome.err;
}

TEST_F(CliTrain, KeepsRowsInAFileWhereTold) {
  const auto corpus = folder_.file("corpus.txt", many_words());
  auto arguments = lm(corpus);
  arguments.insert(arguments.end(), {"--rows-file", folder_.path("rows")});
  const auto outcome = train(arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::exists(folder_.path("rows")));
}

}  // namespace
}  // namespace widehead::test
