/// A real process, killed at any moment: what --resume makes of it is what would have been without.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "process.h"
#include "scratch_folder.h"
#include "widehead/data/synthetic_text.h"
#include "widehead/model/model_folder.h"

namespace widehead::test {
namespace {

using Arguments = std::vector<std::string>;

std::string corpus_in(const ScratchFolder& folder) {
  SyntheticTextOptions options;
  options.words = 2000;
  options.tokens = 60000;
  write_synthetic_text(folder.path("corpus.txt"), options);
  return folder.path("corpus.txt");
}

const std::string often = "0.0005";  // minutes: checkpoints every 30 ms, so that there are some to be killed in

Arguments training(const std::string& corpus, const std::string& out, const std::string& save_every,
                   const Arguments& more) {
  Arguments arguments = {"train",
                         "lm",
                         "--corpus",
                         corpus,
                         "--out",
                         out,
                         "--tokens",
                         "whitespace",
                         "--dim",
                         "24",
                         "--hidden",
                         "16",
                         "--batch",
                         "32",
                         "--embedding",
                         "8",
                         "--seed",
                         "5",
                         "--epochs",
                         "6",
                         "--threads",
                         "1",
                         "--save-every",
                         save_every,
                         "--valid-examples",
                         "50",
                         "--min-count",
                         "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// The bytes of the file that holds the whole state of a run.
std::string state_of(const std::string& model) {
  const auto path = ModelFolder::open(model).path_of("state.safetensors");
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The lines of a run's metrics without what depends on the clock.
std::vector<nlohmann::json> metrics_of(const std::string& model) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(model + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    auto object = nlohmann::json::parse(line);
    for (const char* key : {"examples_per_second", "waiting_share", "head_share"}) object.erase(key);
    lines.push_back(std::move(object));
  }
  return lines;
}

class KilledRun : public testing::TestWithParam<Arguments> {};

TEST_P(KilledRun, IsResumedBitForBit) {
  const ScratchFolder folder;
  const auto corpus = corpus_in(folder);
  const auto whole = training(corpus, folder.path("whole"), often, GetParam());
  const auto start = std::chrono::steady_clock::now();
  const auto outcome = run_process(whole, folder.path("."));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto duration = std::chrono::steady_clock::now() - start;

  auto arguments = training(corpus, folder.path("killed"), often, GetParam());
  arguments.push_back("--resume");
  std::mt19937 engine(11);
  int kills = 0, resumed = 0;
  for (bool complete = false; !complete;) {
    ASSERT_LT(kills, 200) << "no progress";
    Process program(arguments, folder.path("."));
    // A fifth of the whole run on average; now and then a run is left to itself, lest a slow machine never end.
    const double share = kills % 12 == 11 ? 10 : std::exponential_distribution<double>(5)(engine);
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(duration) * share;
    const auto is_due = [&] {  // the first time as soon as there is something to resume
      return kills == 0 ? ModelFolder::exists(folder.path("killed")) : std::chrono::steady_clock::now() >= deadline;
    };
    while (!program.has_ended() && !is_due()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    program.signal(SIGKILL);
    const auto ended = program.wait();
    if (ended.err.find("resumed at step") != std::string::npos) ++resumed;
    if (ended.code == 0) {
      complete = true;
    } else {
      ASSERT_EQ(ended.code, -SIGKILL) << ended.err;
      ++kills;
    }
  }
  EXPECT_GE(kills, 1);
  EXPECT_GE(resumed, 1);
  EXPECT_TRUE(state_of(folder.path("killed")) == state_of(folder.path("whole"))) << kills << " kills";
  EXPECT_EQ(metrics_of(folder.path("killed")), metrics_of(folder.path("whole")));
}

INSTANTIATE_TEST_SUITE_P(Heads, KilledRun,
                         testing::Values(Arguments{}, Arguments{"--loss", "z", "--init", "normal", "--head-lr", "0.01"},
                                         Arguments{"--head", "hierarchical", "--head-lr", "0.1", "--combine", "mean"}));

/// The signals that a thread of a running process leaves to others, a bit each, from 1 on.
std::uint64_t signals_blocked_in(pid_t process, pid_t thread) {
  std::ifstream status(fmt::format("/proc/{}/task/{}/status", process, thread));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigBlk:")) return std::stoull(line.substr(7), nullptr, 16);
  }
  return 0;
}

TEST(InterruptedRun, HandlesNoSignalWhereItMultiplies) {
  // A handler's frame goes where the stack pointer is, and in a kernel of oneDNN's that is the heap. Of all threads the
  // first is the one that would be asked; those it starts inherit its mask.
  const ScratchFolder folder;
  const auto out = folder.path("run");
  Process program(training(corpus_in(folder), out, "0", {}), folder.path("."));
  while (!program.has_ended() && !std::filesystem::exists(out + "/metrics.jsonl")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto blocked = signals_blocked_in(program.id(), program.id());
  for (const int number : {SIGINT, SIGTERM}) {
    EXPECT_NE(blocked >> (number - 1) & 1U, 0U) << "signal " << number << ", blocked " << blocked;
  }
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait().code, 130);
}

TEST(InterruptedRun, SavesAndIsResumedBitForBit) {
  const ScratchFolder folder;
  const auto corpus = corpus_in(folder);
  ASSERT_EQ(run_process(training(corpus, folder.path("whole"), often, {}), folder.path(".")).code, 0);
  const auto out = folder.path("interrupted");
  Process program(training(corpus, out, "0", {}), folder.path("."));
  while (!program.has_ended() &&
         !std::filesystem::exists(out + "/metrics.jsonl")) {  // it is there once training has begun
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  program.signal(SIGINT);
  const auto interrupted = program.wait();
  ASSERT_EQ(interrupted.code, 130) << interrupted.err;
  EXPECT_NE(interrupted.out.find("--resume goes on"), std::string::npos) << interrupted.out;
  const auto resumed = run_process(training(corpus, out, "0", {"--resume"}), folder.path("."));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("resumed at step"), std::string::npos) << resumed.err;
  EXPECT_TRUE(state_of(out) == state_of(folder.path("whole")));
}

}  // namespace
}  // namespace widehead::test
