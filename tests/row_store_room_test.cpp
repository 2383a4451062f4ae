/// Room on the disk for the rows in a file: it is made before a row is written, for that row only, and where there is
/// none, that is an error and not the end (a store into the mapping would raise SIGBUS).

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "compare.h"
#include "dice.h"
#include "errors.h"
#include "heads_under_test.h"
#include "oracle.h"
#include "small_disk.h"
#include "state_in_memory.h"
#include "temporary_folder.h"
#include "widehead/row_store.h"

namespace widehead::test {
namespace {

const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

std::size_t bytes_on_disk(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

/// Rows of which four fill a page.
struct Store {
  explicit Store(const std::string& path, Size rows = 1000)
      : backend(make_cpu_backend<float>(1)), store(*backend, rows, static_cast<Size>(page / 16), path) {}
  Matrix<float> read(const std::vector<Index>& rows) {
    Matrix<float> out(store.dim(), static_cast<Size>(rows.size()));
    store.gather(rows, out);
    return out;
  }
  std::shared_ptr<Backend<float>> backend;
  RowStore<float> store;
};

TEST(RowStoreRoom, IsRefusedByAnErrorWhereTheDiskIsFull) {
  const SmallDisk disk(16 * page);
  WIDEHEAD_SKIP_WITHOUT(disk);
  const auto path = disk / "rows";
  Store file(path);
  disk.leave_free(2 * page);
  const std::vector<Index> first{0, 400}, more{1, 800, 801, 900};
  const auto Z = Dice(1).matrix<float>(file.store.dim(), 4);
  file.store.scatter(first, Z.view().columns(0, 2));
  const std::vector<std::string> words{"rows file " + path, "no room left on the disk for 3 more rows",
                                       fmt::format("row 800 at byte {}", 200 * page), "No space left on device"};
  expect_throw<std::system_error>([&] { file.store.reserve(more); }, words);
  expect_throw<std::system_error>([&] { file.store.scatter(more, Z); }, words);
  EXPECT_TRUE(is_identical<float>(file.read(first), Z.view().columns(0, 2)));
  EXPECT_EQ(norm<float>(file.read({1})), 0) << "a scatter that is refused writes nothing";
  file.store.scatter(std::vector<Index>{1, 403}, Z.view().columns(2, 2));  // in pages that have room
  EXPECT_TRUE(is_identical<float>(file.read({0, 400, 1, 403}), Z));

  disk.leave_all_free();
  file.store.scatter(more, Z);
  EXPECT_TRUE(is_identical<float>(file.read(more), Z));
}

TEST(RowStoreRoom, StaysForRowsThatHadItOnce) {
  const SmallDisk disk(16 * page);
  WIDEHEAD_SKIP_WITHOUT(disk);
  Store file(disk / "rows");
  const std::vector<Index> rows{0, 400, 999};
  file.store.reserve(rows);
  disk.leave_free(0);
  const auto Z = Dice(1).matrix<float>(file.store.dim(), 3);
  file.store.scatter(rows, Z);
  EXPECT_TRUE(is_identical<float>(file.read(rows), Z));
}

TEST(RowStoreRoom, ForAllRowsIsMadeBeforeTheyAreFilled) {
  const SmallDisk disk(32 * page);
  WIDEHEAD_SKIP_WITHOUT(disk);
  const auto path = disk / "rows";
  Store file(path, 128);  // 32 pages
  disk.leave_free(31 * page);
  expect_throw<std::system_error>([&] { file.store.view_to_fill(); },
                                  {path, "for 128 more rows", "row 0 at byte 0", "No space left"});
  EXPECT_FALSE(std::filesystem::exists(path));

  disk.leave_all_free();
  Store other(disk / "other", 124);
  const auto Z = Dice(1).matrix<float>(other.store.dim(), 124);
  other.backend->copy(Z, other.store.view_to_fill());
  disk.leave_free(0);
  other.backend->copy(Z, other.store.view_to_fill());
  EXPECT_TRUE(is_identical<float>(other.store.view(), Z));
}

TEST(RowStoreRoom, IsMadeForTheRowsOfALoadedState) {
  const SmallDisk disk(16 * page);
  WIDEHEAD_SKIP_WITHOUT(disk);
  const std::vector<Index> used{3, 500, 501, 502, 503, 504, 999};  // in four pages
  const auto next_used = [&](Size from) -> Size {
    const auto found = std::lower_bound(used.begin(), used.end(), from);
    return found == used.end() ? 1000 : *found;
  };
  Store saved("");
  const auto Z = Dice(1).matrix<float>(saved.store.dim(), 7);
  saved.store.scatter(used, Z);
  MemorySaver saver;
  saved.store.visit_state(saver, next_used);
  const auto load_into = [&](Store& loaded) {
    MemoryLoader loader(saver.state);
    loaded.store.visit_state(loader, next_used);
  };

  const auto path = disk / "rows";
  Store file(path);
  disk.leave_free(3 * page);
  expect_throw<std::system_error>([&] { load_into(file); }, {path, "for 1 more row,", "row 999", "No space left"});
  disk.leave_free(page);                  // beside the three of the load that was refused
  for (int time = 0; time < 2; ++time) {  // the second time what was there gives way
    load_into(file);
    EXPECT_TRUE(is_identical<float>(file.read(used), Z));
    EXPECT_EQ(bytes_on_disk(path), 4 * page);
    file.store.scatter(used, Z);
  }
  EXPECT_THROW(file.store.reserve(std::vector<Index>{700}), std::system_error);
}

TEST(RowStoreRoom, MakingItChangesNoRow) {
  const TemporaryFolder folder;
  const auto backend = make_cpu_backend<double>(1);
  RowStore<double> file(*backend, 3000, 7, folder / "rows"), memory(*backend, 3000, 7);  // rows lie across pages
  Dice dice(2);
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<Index> rows{static_cast<Index>(dice.between(0, 2998))};
    rows.push_back(rows.front() + 1);
    if (turn % 2 == 0) {
      const auto Z = dice.matrix<double>(7, 2);
      file.scatter(rows, Z);
      memory.scatter(rows, Z);
    } else {
      file.reserve(rows);
    }
  }
  EXPECT_TRUE(is_identical<double>(file.view(), memory.view()));
  EXPECT_TRUE(is_identical<double>(file.view_to_fill(), memory.view()));
  EXPECT_EQ(std::filesystem::file_size(folder / "rows"), 3000U * 7 * sizeof(double));
}

TEST(RowStoreRoom, IsMadeForTheirPagesOnly) {
  const TemporaryFolder folder;
  const auto backend = make_cpu_backend<float>(1);
  RowStore<float> store(*backend, 100'000'000, 128, folder / "rows");  // 51 GB
  for (Index k = 0; k < 100; ++k) store.reserve(std::vector<Index>{999'983 * k, 999'983 * k + 1});
  const auto Z = Dice(1).matrix<float>(128, 1);
  store.scatter(std::vector<Index>{999'983 * 99}, Z);
  EXPECT_GE(bytes_on_disk(folder / "rows"), 100 * page);
  EXPECT_LE(bytes_on_disk(folder / "rows"), 300 * page);  // some rows lie across two; the system has its tables
}

TEST(RowStoreRoom, IsNoMatterInMemory) {
  Store memory("");
  memory.store.reserve(std::vector<Index>{0, 999});
  EXPECT_EQ(norm<float>(memory.store.view_to_fill()), 0);
}

// ── a layer ─────────────────────────────────────────────────────────────────────────────────────

/// What a layer will compute with, without the counts of what it has done, which questions change, too.
template <class T>
SavedState state_of(OutputLayer<T>& layer) {
  auto state = save(layer);
  for (const auto* count : {"rows.rows_read", "timeline.products"}) {
    EXPECT_EQ(std::erase_if(state, [&](const auto& array) { return array.first.ends_with(count); }), 1U) << count;
  }
  return state;
}

TEST(LayerOnAFullDisk, AStepIsRefusedAndTakenWhenThereIsRoom) {
  constexpr Size d = 32;
  const Size D = 1250 * static_cast<Size>(page) / (4 * d);
  const SmallDisk disk(1300 * page);
  WIDEHEAD_SKIP_WITHOUT(disk);
  for (const double decay : {0.0, 0.1}) {
    SCOPED_TRACE(decay);
    std::filesystem::remove(disk / "rows");
    auto options = options_of("windowed");
    options.layer = {.outputs = D, .dim = d, .weight_decay = decay};
    const auto twin = make_head<float>(options, make_cpu_backend<float>(1));
    options.windowed.rows_file = disk / "rows";
    const auto layer = make_head<float>(options, make_cpu_backend<float>(1));
    Dice dice(71);
    Matrix<float> grad(d, 8), twin_grad(d, 8);
    std::size_t room = 0;
    int refused = 0;
    for (int t = 0; t < 60; ++t) {
      const auto minibatch = make_minibatch(dice, {D, d, 8, 3});
      const TypedMinibatch<float> typed(minibatch);
      const double eta = eta_for(minibatch, 0.3);
      if (t % 10 == 0) {
        disk.leave_free(0);
        EXPECT_NO_THROW(layer->evaluate(typed.H, typed.targets()));
        try {
          layer->step(typed.H, typed.targets(), eta, grad);
          ADD_FAILURE() << "24 rows of so many, and no new page";
        } catch (const std::system_error& error) {
          EXPECT_EQ(error.code(), std::errc::no_space_on_device) << error.what();
          EXPECT_NE(std::string(error.what()).find(disk / "rows"), std::string::npos) << error.what();
          ++refused;
        }
        EXPECT_EQ(state_of(*layer), state_of(*twin));
        EXPECT_TRUE(is_identical<float>(layer->weights(), twin->weights()));
        disk.leave_all_free();
      }
      EXPECT_EQ(layer->step(typed.H, typed.targets(), eta, grad), twin->step(typed.H, typed.targets(), eta, twin_grad));
      EXPECT_TRUE(is_identical<float>(grad, twin_grad));
      room = bytes_on_disk(disk / "rows");
    }
    EXPECT_EQ(refused, 6);
    EXPECT_GT(room, 400 * page);
    EXPECT_EQ(state_of(*layer), state_of(*twin));
  }
}

TEST(LayerOnAFullDisk, OnlyRowsThatAreTargetsForTheFirstTimeNeedRoom) {
  constexpr Size d = 32;
  const Size D = 1250 * static_cast<Size>(page) / (4 * d);
  const SmallDisk disk(1300 * page);
  WIDEHEAD_SKIP_WITHOUT(disk);
  auto options = options_of("windowed");
  options.layer = {.outputs = D, .dim = d};
  options.windowed.rows_file = disk / "rows";
  options.windowed.timeline.radix = 2;  // merges, and many of them
  const auto layer = make_head<float>(options, make_cpu_backend<float>(1));
  Dice dice(72);
  std::vector<TypedMinibatch<float>> minibatches;
  for (int t = 0; t < 40; ++t) minibatches.emplace_back(make_minibatch(dice, {D, d, 8, 3}));
  const auto round = [&] {
    for (const auto& minibatch : minibatches) {
      layer->step(minibatch.H, minibatch.targets(), layer->eta_for(minibatch.H, minibatch.targets(), 0.9));
    }
  };
  round();
  disk.leave_free(0);
  for (int k = 0; k < 20; ++k) round();
  const auto figures = layer->counters();
  const auto value = [&](const std::string& name) {
    const auto found = std::find_if(figures.begin(), figures.end(), [&](const auto& f) { return f.name == name; });
    return found == figures.end() ? 0 : found->value;
  };
  EXPECT_GT(value("rows_caught_up"), 0);
  EXPECT_GT(value("flips"), 0);
  EXPECT_GT(value("merges"), 0);
  EXPECT_GT(value("rows_moved"), 0);
}

TEST(LayerOnAFullDisk, ALayerThatStartsFullIsRefused) {
  const SmallDisk disk(16 * page);
  WIDEHEAD_SKIP_WITHOUT(disk);
  auto options = options_of("windowed");
  options.layer = {.outputs = static_cast<Size>(page), .dim = 16, .initial = Initial::normal};
  options.windowed.rows_file = disk / "rows";
  expect_throw<std::system_error>([&] { make_head<float>(options, make_cpu_backend<float>(1)); },
                                  {disk / "rows", "no room left on the disk", "No space left"});
  EXPECT_FALSE(std::filesystem::exists(disk / "rows"));
}

}  // namespace
}  // namespace widehead::test
