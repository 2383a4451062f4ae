/// The program where a disk is full: one line on stderr, exit code 1, nothing half-written, nothing lost. A limit on
/// the size of files stands for the disk: the system refuses to write beyond it. A rows file is as long as it will ever
/// be from the start, so that needs a disk that is really full.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "process.h"
#include "scratch_folder.h"
#include "small_disk.h"

namespace widehead::test {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

class FullDisk : public testing::Test {
 protected:
  FullDisk() {
    std::string text;
    for (int k = 0; k < 3000; ++k) text += "w" + std::to_string(k * k % 83) + (k % 10 == 9 ? "\n" : " ");
    folder_.file("corpus.txt", text);
  }
  Arguments train(const Arguments& more = {}, const std::string& dim = "8", const std::string& batch = "32") const {
    Arguments arguments = {"train", "lm", "--corpus", folder_.path("corpus.txt"), "--out", folder_.path("model")};
    arguments.insert(arguments.end(), {"--embedding", "4", "--hidden", "8", "--epochs", "4", "--min-count", "1",
                                       "--threads", "1", "--dim", dim, "--batch", batch});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  Ended run(const Arguments& arguments, std::uint64_t largest_file = Process::no_limit) const {
    return Process(arguments, folder_.path("."), largest_file).wait();
  }
  /// Exit code 1, and a last line that says what the system said and names a file; nothing on stdout.
  static void expect_refused(const Ended& outcome, const std::string& name, const char* why = "File too large") {
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    const auto line = outcome.err.rfind("widehead: ");
    ASSERT_NE(line, std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find('\n', line), outcome.err.size() - 1) << outcome.err;
    EXPECT_NE(outcome.err.find(why, line), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(name, line), std::string::npos) << name << " | " << outcome.err;
  }
  /// Names in a folder that stand for something unfinished.
  static std::vector<std::string> leftovers_in(const fs::path& path) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path)) {
      const auto name = entry.path().filename().string();
      if (name.ends_with(".tmp") || name.ends_with(".partial") || name.ends_with(".old")) names.push_back(name);
    }
    return names;
  }

  ScratchFolder folder_;
};

TEST_F(FullDisk, LeavesNoModelOrTheLastCheckpointWhenTrainingFindsIt) {
  int none = 0, some = 0;
  for (std::uint64_t room = 1000;; room += room / 4) {
    SCOPED_TRACE(room);
    const auto outcome = run(train(), room);
    if (outcome.code == 0) break;  // there was enough for all of it
    expect_refused(outcome, folder_.path("model"));
    EXPECT_EQ(leftovers_in(folder_.path(".")), std::vector<std::string>{});
    if (!fs::exists(folder_.path("model"))) {
      ++none;
      continue;
    }
    ++some;  // the log has more room to fill than the state
    const auto info = run({"info", folder_.path("model")});
    EXPECT_EQ(info.code, 0) << info.err;
    EXPECT_EQ(leftovers_in(folder_.path("model")), std::vector<std::string>{});
    EXPECT_EQ(run(train({"--resume"})).code, 0);  // with room again
    EXPECT_EQ(run({"info", folder_.path("model")}).code, 0);
    fs::remove_all(folder_.path("model"));
  }
  EXPECT_GT(none, 2);
  EXPECT_GT(some, 0);
}

TEST_F(FullDisk, KeepsTheModelThatWasToBeOverwritten) {
  ASSERT_EQ(run(train()).code, 0);
  const auto manifest = folder_.content("model/manifest.json");
  expect_refused(run(train({"--overwrite", "--seed", "9"}), 3000), folder_.path("model"));
  EXPECT_EQ(folder_.content("model/manifest.json"), manifest);
  EXPECT_EQ(run({"info", folder_.path("model")}).code, 0);
  EXPECT_EQ(leftovers_in(folder_.path(".")), std::vector<std::string>{});
}

TEST_F(FullDisk, LeavesNoHalfOfAnExportOrAText) {
  ASSERT_EQ(run(train()).code, 0);
  for (const auto* format : {"word2vec", "word2vec-binary", "npy", "safetensors"}) {
    SCOPED_TRACE(format);
    const auto out = folder_.path("vectors");
    expect_refused(run({"export", folder_.path("model"), "--format", format, "--out", out}, 500), out);
    EXPECT_FALSE(fs::exists(out));
  }
  const auto out = folder_.path("text");
  expect_refused(run({"generate", "text", "--out", out, "--tokens", "5000", "--words", "1000"}, 2000), out);
  EXPECT_FALSE(fs::exists(out));
  EXPECT_EQ(leftovers_in(folder_.path(".")), std::vector<std::string>{});
}

TEST_F(FullDisk, RefusesARowsFileThatDoesNotFit) {
  const auto rows = folder_.path("rows");
  expect_refused(run(train({"--rows-file", rows}, "512"), 50'000), rows);
  EXPECT_FALSE(fs::exists(folder_.path("model")));
  EXPECT_FALSE(fs::exists(rows));
}

TEST_F(FullDisk, EndsARunWhoseRowsFindNoRoomAtItsLastCheckpoint) {
  const SmallDisk disk(200'000);
  WIDEHEAD_SKIP_WITHOUT(disk);
  const std::size_t page = 4096;
  folder_.file("corpus.txt", folder_.content("corpus.txt").substr(0, 300));  // 20 steps an epoch, of up to 4 new rows
  const Arguments often = {"--save-every", "1e-9", "--rows-file"};           // after every step
  const auto with = [&](Arguments more, const Arguments& even_more) {
    more.insert(more.end(), even_more.begin(), even_more.end());
    return train(more, "256", "4");  // four rows a page
  };
  const auto weights = [&] {
    const auto out = folder_.path("vectors");
    EXPECT_EQ(run({"export", folder_.path("model"), "--vectors", "output", "--format", "npy", "--out", out}).code, 0);
    return folder_.content("vectors");
  };
  ASSERT_EQ(run(with(often, {folder_.path("rows")})).code, 0);
  const auto wanted = weights();
  fs::remove_all(folder_.path("model"));

  const auto rows = disk / "rows";
  const auto refused = [&](const Ended& outcome) {
    expect_refused(outcome, "rows file " + rows + ": no room left on the disk for ", "No space left on device");
    EXPECT_EQ(run({"info", folder_.path("model")}).code, 0);
    EXPECT_EQ(leftovers_in(folder_.path("model")), std::vector<std::string>{});
  };
  disk.leave_free(7 * page);
  refused(run(with(often, {rows})));
  refused(run(with(often, {rows, "--resume"})));  // there is room for what it had learnt, and for no more
  fs::remove(rows);
  disk.leave_free(2 * page);
  const auto manifest = folder_.content("model/manifest.json");
  refused(run(with(often, {rows, "--resume"})));  // not even for that
  EXPECT_EQ(folder_.content("model/manifest.json"), manifest);
  disk.leave_all_free();
  const auto resumed = run(with(often, {rows, "--resume"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(weights(), wanted);
}

TEST_F(FullDisk, RefusesToStartWithMoreRowsThanThereIsRoomFor) {
  const SmallDisk disk(40'000);
  WIDEHEAD_SKIP_WITHOUT(disk);
  const auto rows = disk / "rows";
  expect_refused(run(train({"--rows-file", rows, "--init", "normal"}, "512")), "rows file " + rows,
                 "No space left on device");
  EXPECT_FALSE(fs::exists(folder_.path("model")));
  EXPECT_FALSE(fs::exists(rows));
}

}  // namespace
}  // namespace widehead::test
