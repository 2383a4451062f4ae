/// Model folders: generations that are wholly there or not at all, whatever happens to whoever writes them.

#include "widehead/model/model_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <optional>
#include <set>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "dice.h"
#include "errors.h"
#include "temporary_folder.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

using Access = ModelFolder::Access;
using Verify = ModelFolder::Verify;

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

void append(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::app | std::ios::binary) << text;
}

/// A folder with one generation: state, vocabulary and a log of two lines.
ModelFolder make_model(const std::filesystem::path& path) {
  auto folder = ModelFolder::create(path);
  append(folder.append_only("metrics.jsonl"), "1\n2\n");
  auto change = folder.begin();
  write_bytes(change.file("state.safetensors"), "state of 1");
  write_bytes(change.fixed_file("vocabulary.txt"), "a\nb\n");
  change.append_only("metrics.jsonl");
  change.commit(R"({"step": 10, "epoch": 1})");
  return folder;
}

/// The next one, with another state.
void advance(ModelFolder& folder, const std::string& state) {
  auto change = folder.begin();
  write_bytes(change.file("state.safetensors"), state);
  change.keep("vocabulary.txt");
  change.append_only("metrics.jsonl");
  change.commit();
}

// ── generations ─────────────────────────────────────────────────────────────────────────────────

TEST(ModelFolder, WhatIsCommittedIsWhatIsOpened) {
  const TemporaryFolder place;
  EXPECT_FALSE(ModelFolder::exists(place / "model"));
  make_model(place / "model");
  EXPECT_TRUE(ModelFolder::exists(place / "model"));
  const auto folder = ModelFolder::open(place / "model");
  EXPECT_EQ(folder.path(), place / "model");
  EXPECT_EQ(folder.generation(), 1);
  EXPECT_EQ(folder.info(), R"({"step":10,"epoch":1})");
  EXPECT_EQ(folder.path_of("state.safetensors"), place / "model/state-000001.safetensors");
  EXPECT_EQ(folder.path_of("vocabulary.txt"), place / "model/vocabulary.txt");
  EXPECT_EQ(read_bytes(folder.path_of("state.safetensors")), "state of 1");
  EXPECT_TRUE(folder.has("metrics.jsonl"));
  EXPECT_FALSE(folder.has("weights"));
  expect_throw<std::invalid_argument>([&] { folder.path_of("weights"); }, {"'weights'"});
  EXPECT_EQ(names_in(place / "model"), (std::set<std::string>{"lock", "manifest.json", "metrics.jsonl",
                                                              "state-000001.safetensors", "vocabulary.txt"}));
}

TEST(ModelFolder, ManifestSaysWhatThereIs) {
  const TemporaryFolder place;
  auto folder = ModelFolder::create(place / "model");
  auto change = folder.begin();
  write_bytes(change.file("empty"), "");
  change.commit();
  const auto text = read_bytes(place / "model/manifest.json");
  for (const char* words :
       {R"("format": 1)", R"("generation": 1)", R"("role": "empty")", R"("name": "empty-000001")", R"("bytes": 0)",
        R"("info": {})", R"("xxh3_128": "99aa06d3014798d86001c324468d497f")"}) {  // that of no bytes
    EXPECT_NE(text.find(words), std::string::npos) << words << " is not in " << text;
  }
}

TEST(ModelFolder, ChecksumOfAFileWithHolesIsThatOfItsBytes) {
  const TemporaryFolder place;
  std::string bytes(3'000'000, '\0');
  bytes[1'500'000] = 'x';
  bytes.back() = 'y';
  const auto checksum_of = [&](const std::string& name, const auto& write) {
    auto folder = ModelFolder::create(place / name);
    auto change = folder.begin();
    write(change.file("data"));
    change.commit();
    const auto text = read_bytes(place / name / "manifest.json");
    return text.substr(text.find("xxh3_128"), 48);
  };
  const auto dense = checksum_of("dense", [&](const auto& path) { write_bytes(path, bytes); });
  const auto sparse = checksum_of("sparse", [&](const auto& path) {
    write_bytes(path, "");
    std::filesystem::resize_file(path, bytes.size());
    std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(1'500'000).put('x');
    out.seekp(2'999'999).put('y');
  });
  EXPECT_EQ(read_bytes(place / "sparse/data-000001"), bytes);
  EXPECT_EQ(dense, sparse);
}

TEST(ModelFolder, ANewGenerationReplacesTheOldAndKeepsWhatItIsTold) {
  const TemporaryFolder place;
  auto folder = make_model(place / "model");
  struct stat before {
  }, after{};
  stat((place / "model/vocabulary.txt").c_str(), &before);
  advance(folder, "state of 2");
  EXPECT_EQ(folder.generation(), 2);
  EXPECT_EQ(folder.info(), "{}");
  EXPECT_EQ(names_in(place / "model"), (std::set<std::string>{"lock", "manifest.json", "metrics.jsonl",
                                                              "state-000002.safetensors", "vocabulary.txt"}));
  stat((place / "model/vocabulary.txt").c_str(), &after);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(before.st_ctim.tv_nsec, after.st_ctim.tv_nsec);

  auto change = folder.begin();  // keeps nothing but the state
  change.keep("state.safetensors");
  change.commit();
  EXPECT_EQ(folder.path_of("state.safetensors"), place / "model/state-000002.safetensors");
  EXPECT_FALSE(folder.has("vocabulary.txt"));
  EXPECT_EQ(names_in(place / "model"), (std::set<std::string>{"lock", "manifest.json", "state-000002.safetensors"}));
  EXPECT_EQ(ModelFolder::open(place / "model").generation(), 3);
}

TEST(ModelFolder, FilesOfOthersAreLeftAlone) {
  const TemporaryFolder place;
  auto folder = make_model(place / "model");
  const std::set<std::string> own{"state-000002.safetensors", "x-1234567.y", "state.safetensors.77.tmp"};
  const std::set<std::string> others{"notes.txt", "run-12345.log", "-123456", "a-12345x.b", "2024-report", "tmp"};
  for (const auto* names : {&own, &others}) {
    for (const auto& name : *names) write_bytes(place / "model" / name, "?");
  }
  advance(folder, "2");
  const auto names = names_in(place / "model");
  for (const auto& name : others) EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_FALSE(names.contains("x-1234567.y"));
  EXPECT_FALSE(names.contains("state.safetensors.77.tmp"));
  EXPECT_EQ(read_bytes(folder.path_of("state.safetensors")), "2");
}

TEST(ModelFolder, AnAbandonedChangeHasNotHappened) {
  const TemporaryFolder place;
  auto folder = make_model(place / "model");
  const auto before = names_in(place / "model");
  const auto manifest = read_bytes(place / "model/manifest.json");
  {
    auto change = folder.begin();
    write_bytes(change.file("state.safetensors"), "no");
    write_bytes(change.fixed_file("config.toml"), "no");
    write_bytes(change.file("more.bin").string() + ".9.tmp", "no");
    change.keep("vocabulary.txt");
    expect_throw<std::logic_error>([&] { folder.begin(); }, {"being changed"});
    expect_throw<std::invalid_argument>([&] { change.commit("{}"); }, {"more-000002.bin", "not written"});
    const auto moved = std::move(change);
  }
  EXPECT_EQ(names_in(place / "model"), before);
  EXPECT_EQ(read_bytes(place / "model/manifest.json"), manifest);
  EXPECT_EQ(folder.generation(), 1);
  advance(folder, "yes");
  EXPECT_EQ(folder.generation(), 2);
}

TEST(ModelFolder, RefusesNamesAndTurnsThatMakeNoSense) {
  const TemporaryFolder place;
  auto folder = make_model(place / "model");
  auto change = folder.begin();
  for (const std::string name : {"", ".", "..", ".hidden", "a/b", "manifest.json", "lock", "a.tmp", "a-000001.b"}) {
    expect_throw<std::invalid_argument>([&] { change.file(name); }, {"'" + name + "'"});
    expect_throw<std::invalid_argument>([&] { change.fixed_file(name); }, {"'" + name + "'"});
    expect_throw<std::invalid_argument>([&] { folder.append_only(name); }, {"'" + name + "'"});
  }
  expect_throw<std::invalid_argument>([&] { change.keep("nothing"); }, {"'nothing'"});
  expect_throw<std::invalid_argument>([&] { change.fixed_file("vocabulary.txt"); }, {"'vocabulary.txt'", "kept"});
  expect_throw<std::invalid_argument>([&] { change.append_only("vocabulary.txt"); }, {"'vocabulary.txt'"});
  expect_throw<std::invalid_argument>([&] { change.append_only("unheard.of"); }, {"'unheard.of'"});
  change.keep("vocabulary.txt");
  expect_throw<std::invalid_argument>([&] { change.file("vocabulary.txt"); }, {"twice"});
  for (const char* info : {"", "3", "[]", "{", "{\"a\": \"\xff\"}"}) {
    expect_throw<std::invalid_argument>([&] { change.commit(info); }, {"info"});
  }
  change.commit();
  expect_throw<std::logic_error>([&] { change.commit(); }, {"over"});
  expect_throw<std::logic_error>([&] { change.file("x"); }, {"over"});
}

// ── files that grow ─────────────────────────────────────────────────────────────────────────────

TEST(ModelFolder, AppendOnlyFilesAreCutBackToTheirGeneration) {
  const TemporaryFolder place;
  {
    auto folder = make_model(place / "model");
    append(folder.append_only("metrics.jsonl"), "3\n");
    advance(folder, "2");
    append(folder.append_only("metrics.jsonl"), "4 that belongs to no gener");
    append(folder.append_only("other.log"), "nor this");
  }
  EXPECT_EQ(ModelFolder::open(place / "model").generation(), 2);
  EXPECT_EQ(read_bytes(place / "model/metrics.jsonl"), "1\n2\n3\n4 that belongs to no gener")
      << "a reader cuts nothing";
  auto folder = ModelFolder::open(place / "model", Access::write);
  EXPECT_EQ(read_bytes(folder.append_only("metrics.jsonl")), "1\n2\n3\n");
  EXPECT_EQ(read_bytes(folder.append_only("other.log")), "");
  append(folder.append_only("other.log"), "x");
  EXPECT_EQ(read_bytes(folder.append_only("other.log")), "x") << "emptied once only";
  auto change = folder.begin();
  change.append_only("other.log");
  change.keep("metrics.jsonl");
  change.commit();
  EXPECT_EQ(read_bytes(folder.append_only("other.log")), "x");
  EXPECT_EQ(read_bytes(folder.path_of("metrics.jsonl")), "1\n2\n3\n");
}

// ── damage ──────────────────────────────────────────────────────────────────────────────────────

TEST(ModelFolder, DamagedFilesAreNamed) {
  const TemporaryFolder place;
  make_model(place / "model");
  const auto state = place / "model/state-000001.safetensors", log = place / "model/metrics.jsonl";
  const auto open = [&](Verify verify) {
    return [&place, verify] { ModelFolder::open(place / "model", Access::read, verify); };
  };
  const auto restore = [&] {
    write_bytes(state, "state of 1");
    write_bytes(log, "1\n2\n");
    EXPECT_NO_THROW(open(Verify::checksums)());
  };
  write_bytes(state, "State of 1");
  expect_throw<FileError>(open(Verify::checksums), {state.string(), "damaged"});
  EXPECT_NO_THROW(open(Verify::sizes)());
  write_bytes(state, "state of 12");
  expect_throw<FileError>(open(Verify::checksums), {state.string(), "11 bytes", "says 10"});
  expect_throw<FileError>(open(Verify::sizes), {state.string(), "11 bytes", "says 10"});
  std::filesystem::remove(state);
  expect_throw<FileError>(open(Verify::sizes), {state.string(), "missing"});
  std::filesystem::create_directory(state);
  expect_throw<FileError>(open(Verify::sizes), {state.string(), "not a regular file"});
  std::filesystem::remove(state);
  restore();
  write_bytes(log, "1\n2");
  expect_throw<FileError>(open(Verify::sizes), {log.string(), "3 bytes", "says 4"});
  write_bytes(log, "1\n3\n4\n");
  expect_throw<FileError>(open(Verify::checksums), {log.string(), "damaged"});
  restore();
}

TEST(ModelFolder, ManifestsThatLieAreRefused) {
  const TemporaryFolder place;
  make_model(place / "model");
  const auto path = place / "model/manifest.json";
  const auto good = read_bytes(path);
  const auto refuse = [&](const std::string& text, std::vector<std::string> words) {
    write_bytes(path, text);
    words.push_back(path.string());
    expect_throw<FileError>([&] { ModelFolder::open(place / "model"); }, words);
  };
  const auto with = [&](const std::string& old, const std::string& other) {
    auto text = good;
    EXPECT_NE(text.find(old), std::string::npos) << old;
    return text.replace(text.find(old), old.size(), other);
  };
  refuse(
      with("\"format\": 1", "\"format\": 2"),
      {"model " + (place / "model").string() + " was written by a newer widehead (format 2); this one reads up to 1"});
  refuse(with("\"format\": 1", "\"format\": 0"), {"format 0"});
  refuse(with("\"format\": 1", "\"format\": \"1\""), {"\"format\""});
  refuse(with("\"format\": 1,", ""), {"no \"format\""});
  refuse(with("\"generation\": 1", "\"generation\": 0"), {"\"generation\""});
  refuse(with("\"generation\": 1", "\"generation\": 9223372036854775807"), {"\"generation\""});
  refuse(with("\"generation\": 1", "\"generation\": -1"), {"\"generation\""});
  refuse(with("\"name\": \"vocabulary.txt\"", "\"name\": \"../vocabulary.txt\""), {"\"../vocabulary.txt\""});
  refuse(with("\"name\": \"vocabulary.txt\"", "\"name\": \"/etc/passwd\""), {"\"/etc/passwd\""});
  refuse(with("\"name\": \"vocabulary.txt\"", "\"name\": \"metrics.jsonl\""), {"twice"});
  refuse(with("\"role\": \"vocabulary.txt\"", "\"role\": \"metrics.jsonl\""), {"twice"});
  refuse(with("\"name\": \"vocabulary.txt\",", ""), {"no \"name\""});
  refuse(with("\"kind\": \"fixed\"", "\"kind\": \"broken\""), {"\"broken\""});
  refuse(with("\"bytes\": 10", "\"bytes\": -10"), {"\"bytes\"", "-10"});
  refuse(with("\"bytes\": 10", "\"bytes\": 1e1"), {"\"bytes\""});
  refuse(with("\"xxh3_128\": \"", "\"xxh3_128\": \"0"), {"\"xxh3_128\""});
  refuse(with("\"info\": {", "\"info\": [], \"x\": {"), {"\"info\""});
  refuse(with("\"files\": [", "\"files\": {}, \"x\": ["), {"\"files\""});
  refuse("", {"not JSON"});
  refuse("[]", {"no \"format\""});
  refuse("{\"format\": " + std::string(100000, '['), {"deep"});
  for (std::size_t length = 0; length + 2 < good.size(); length += 7) refuse(good.substr(0, length), {});
  write_bytes(path, "");
  std::filesystem::resize_file(path, 1ULL << 40);
  expect_throw<FileError>([&] { ModelFolder::open(place / "model"); }, {"1099511627776 bytes"});
  write_bytes(path, good);
  EXPECT_NO_THROW(ModelFolder::open(place / "model"));
  expect_throw<FileError>([&] { ModelFolder::open(place / "nowhere"); }, {"nowhere", "no model"});
}

// ── one writer ──────────────────────────────────────────────────────────────────────────────────

TEST(ModelFolder, OnlyOneWritesAndTheOthersLearnWho) {
  const TemporaryFolder place;
  std::optional<ModelFolder> folder = make_model(place / "model");
  const std::string pid = std::to_string(getpid());
  const auto expect_busy = [&](const auto& action) {
    try {
      action();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::system_error& error) {
      EXPECT_NE(std::string(error.what()).find("process " + pid), std::string::npos) << error.what();
      EXPECT_EQ(error.code(), std::errc::device_or_resource_busy);
    }
  };
  expect_busy([&] { ModelFolder::open(place / "model", Access::write); });
  expect_busy([&] { ModelFolder::create(place / "model"); });
  auto reader = ModelFolder::open(place / "model");
  expect_throw<std::logic_error>([&] { reader.begin(); }, {"reading"});
  expect_throw<std::logic_error>([&] { reader.append_only("metrics.jsonl"); }, {"reading"});
  folder.reset();
  EXPECT_NO_THROW(ModelFolder::open(place / "model", Access::write));
  expect_throw<std::invalid_argument>([&] { ModelFolder::create(place / "model"); }, {"exists already"});
}

TEST(ModelFolder, ReadersSeeWholeGenerationsWhileAnotherCommits) {
  const TemporaryFolder place;
  auto folder = make_model(place / "model");
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int k = 2; k <= 20; ++k) advance(folder, "state of " + std::to_string(k));
    done = true;
  });
  while (!done) EXPECT_NO_THROW(ModelFolder::open(place / "model"));
  writer.join();
  EXPECT_EQ(ModelFolder::open(place / "model").generation(), 20);
}

// ── violence ────────────────────────────────────────────────────────────────────────────────────

/// A file that says which generation it is of, all over.
std::string content(std::int64_t generation, std::size_t bytes) {
  const auto number = fmt::format("{} ", generation);
  std::string text;
  while (text.size() < bytes) text += number;
  return text;
}

void commit_again_and_again(const std::filesystem::path& path, int times) {
  auto folder = ModelFolder::exists(path) ? ModelFolder::open(path, Access::write) : ModelFolder::create(path);
  const auto log = folder.append_only("log");
  for (int time = 0; time < times; ++time) {
    const auto next = folder.generation() + 1;
    auto change = folder.begin();
    write_bytes(change.file("state.bin"), content(next, 300'000));
    write_bytes(change.file("rows.bin"), content(next, 1000));
    if (folder.has("vocabulary.txt")) {
      change.keep("vocabulary.txt");
    } else {
      write_bytes(change.fixed_file("vocabulary.txt"), "words");
    }
    append(log, fmt::format("{}\n", next));
    change.append_only("log");
    change.commit(fmt::format("{{\"generation\":{}}}", next));
  }
}

TEST(ModelFolder, KilledAtAnyMomentOneGenerationIsWhole) {
  const TemporaryFolder place;
  const auto path = place / "model";
  Dice dice(seeds(1)[0]);
  std::int64_t last = 0;
  int leftovers = 0;
  const auto start = std::chrono::steady_clock::now();
  commit_again_and_again(place / "clock", 5);
  const auto few_commits =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
  for (int round = 0; round < 50; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        commit_again_and_again(path, INT_MAX);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
      }
      _exit(1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(dice.between(0, few_commits)));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed by itself";
    if (!ModelFolder::exists(path)) continue;

    auto folder = ModelFolder::open(path, Access::write);
    const auto generation = folder.generation();
    EXPECT_GE(generation, last);
    last = generation;
    EXPECT_EQ(folder.info(), fmt::format("{{\"generation\":{}}}", generation));
    EXPECT_EQ(read_bytes(folder.path_of("state.bin")), content(generation, 300'000));
    EXPECT_EQ(read_bytes(folder.path_of("rows.bin")), content(generation, 1000));
    EXPECT_EQ(read_bytes(folder.path_of("vocabulary.txt")), "words");
    std::string log;
    for (std::int64_t k = 1; k <= generation; ++k) log += fmt::format("{}\n", k);
    EXPECT_EQ(read_bytes(folder.path_of("log")), log);
    leftovers += names_in(path).size() > 6 ? 1 : 0;
    if (round % 2 == 0) {
      folder.begin();  // and abandoned
      EXPECT_EQ(names_in(path).size(), 6U);
    }
  }
  EXPECT_GT(last, 5) << "the children got nothing done";
  EXPECT_GT(leftovers, 0) << "none was killed in the middle of a change";
}

TEST(ModelFolder, AFullDiskLeavesTheGenerationInForce) {
  const TemporaryFolder place;
  auto folder = make_model(place / "model");
  const auto names = names_in(place / "model");
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  {
    auto change = folder.begin();
    write_bytes(change.file("state.safetensors"), "new");
    change.keep("vocabulary.txt");
    const rlimit small{100, limit.rlim_max};  // less than the manifest needs
    setrlimit(RLIMIT_FSIZE, &small);
    EXPECT_THROW(change.commit(), std::system_error);
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(names_in(place / "model"), names);
  EXPECT_EQ(ModelFolder::open(place / "model").generation(), 1);
  advance(folder, "2");
  EXPECT_EQ(ModelFolder::open(place / "model").generation(), 2);
}

}  // namespace
}  // namespace widehead::test
