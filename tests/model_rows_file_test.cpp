/// States in two files: what is mostly untouched and may be larger than memory lies apart.

#include <gtest/gtest.h>

#include <set>

#include "compare.h"
#include "dice.h"
#include "errors.h"
#include "heads_under_test.h"
#include "state_in_memory.h"
#include "temporary_folder.h"
#include "widehead/errors.h"
#include "widehead/model/safetensors.h"
#include "widehead/synthetic.h"

namespace widehead::test {
namespace {

struct Record {
  std::int64_t steps = 3;
  Matrix<float> rows = Matrix<float>(4, 5);
  Matrix<std::uint8_t> stamps = Matrix<std::uint8_t>(1, 5);

  explicit Record(std::uint64_t seed) {
    Dice dice(seed);
    for (Size i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(dice.uniform(-1, 1));
    for (Size i = 0; i < stamps.size(); ++i) stamps.data()[i] = static_cast<std::uint8_t>(dice.between(1, 200));
  }
  void visit_state(StateVisitor& visitor) {
    if (visitor.loading()) {
      std::fill_n(rows.data(), rows.size(), 0.F);  // as sparse_block asks for
      std::fill_n(stamps.data(), stamps.size(), std::uint8_t{0});
    }
    visitor.scalar("steps", steps);
    const auto scope = visitor.scope("in");
    visitor.sparse_block("stamps", stamps.view());
    visitor.sparse_block("rows", rows.view());
  }
};

template <class Object>
VisitState visit_of(Object& object) {
  return [&object](StateVisitor& visitor) { object.visit_state(visitor); };
}

std::set<std::string> names_in(const std::filesystem::path& path) {
  std::set<std::string> names;
  const SafetensorsFile file(path);
  for (const auto& tensor : file.tensors()) names.insert(tensor.name);
  return names;
}

TEST(RowsFile, HoldsTheSparseBlocksAndTheOtherFileTheRest) {
  const TemporaryFolder folder;
  Record saved(1), loaded(2);
  saved.steps = 7;
  const Metadata metadata{{"of", "both"}};
  save_state(folder / "state", visit_of(saved), metadata, folder / "rows");
  EXPECT_EQ(names_in(folder / "state"), std::set<std::string>{"steps"});
  EXPECT_EQ(names_in(folder / "rows"), (std::set<std::string>{"in.rows", "in.stamps"}));
  EXPECT_EQ(SafetensorsFile(folder / "rows").metadata(), metadata);
  EXPECT_EQ(load_state(folder / "state", visit_of(loaded), folder / "rows"), metadata);
  EXPECT_EQ(save(loaded), save(saved));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(RowsFile, IsNotMadeUnlessAskedFor) {
  const TemporaryFolder folder;
  Record saved(1), loaded(2);
  save_state(folder / "state", visit_of(saved));
  EXPECT_EQ(names_in(folder / "state"), (std::set<std::string>{"steps", "in.rows", "in.stamps"}));
  load_state(folder / "state", visit_of(loaded));
  EXPECT_EQ(save(loaded), save(saved));
}

TEST(RowsFile, IsMissedAndHoldsNothingTwiceAndNothingElse) {
  const TemporaryFolder folder;
  Record record(1);
  save_state(folder / "state", visit_of(record), {}, folder / "rows");
  const auto load = [&](const std::string& state, const std::string& rows) {
    return [&, state, rows] {
      load_state(folder / state, visit_of(record), rows.empty() ? std::filesystem::path() : folder / rows);
    };
  };
  expect_throw<FileError>(load("state", ""), {"state: tensor 'in.stamps' is missing"});
  expect_throw<FileError>(load("state", "state"), {"tensor 'steps' is in ", "state, too"});
  const SafetensorsFile state(folder / "state"), rows(folder / "rows");
  expect_throw<FileError>([&] { state.load([&](StateVisitor& v) { v.count("steps", record.steps); }, &rows); },
                          {"rows: tensor 'in.rows' and 1 more are not expected here"});
  state.load_part([&](StateVisitor& v) { v.count("steps", record.steps); }, &rows);

  Record other(1);
  other.rows = Matrix<float>(4, 6);
  save_state(folder / "other", visit_of(other), {}, folder / "other_rows");
  expect_throw<FileError>(load("state", "other_rows"), {"other_rows: tensor 'in.rows' is f32 {6, 4}", "{5, 4}"});
}

TEST(RowsFile, EveryCutIsRefused) {
  const TemporaryFolder folder;
  Record record(1);
  save_state(folder / "state", visit_of(record), {}, folder / "rows");
  const auto whole = read_bytes(folder / "rows");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write_bytes(folder / "rows", whole.substr(0, length));
    EXPECT_THROW(load_state(folder / "state", visit_of(record), folder / "rows"), FileError) << length;
  }
}

TEST(RowsFile, AFailedSaveLeavesBothOldFilesAndNothingElse) {
  const TemporaryFolder folder;
  Record record(1);
  save_state(folder / "state", visit_of(record), {}, folder / "rows");
  const auto state = read_bytes(folder / "state"), rows = read_bytes(folder / "rows");
  Record next(2);
  int passes = 0;
  const auto fail = [&](StateVisitor& visitor) {
    next.visit_state(visitor);
    if (++passes == 2) throw std::runtime_error("in the middle");
  };
  expect_throw<std::runtime_error>([&] { save_state(folder / "state", fail, {}, folder / "rows"); }, {"in the middle"});
  EXPECT_THROW(save_state(folder / "state", visit_of(next), {}, folder / "no/such/folder"), std::system_error);
  EXPECT_EQ(read_bytes(folder / "state"), state);
  EXPECT_EQ(read_bytes(folder / "rows"), rows);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(RowsFile, ALayerWithItsRowsInAFileGoesOnBitForBit) {
  const TemporaryFolder folder;
  const auto make = [&](const std::string& name) {
    auto options = options_of("windowed");
    options.layer = {.outputs = 300, .dim = 12};
    options.windowed.rows_file = folder / name;
    return make_head<float>(options, make_cpu_backend<float>(1));
  };
  const auto layer = make("V"), resumed = make("V of another");
  const SyntheticStream<float> stream({.outputs = 300, .dim = 12, .batch = 3, .nonzeros = 2});
  Matrix<float> grad(12, 3), resumed_grad(12, 3);
  for (std::uint64_t t = 0; t < 80; ++t) {
    const auto batch = stream.batch(t);
    const double eta = layer->eta_for(batch.H, batch.targets(), 0.4);
    if (t == 37) {
      save_state(folder / "state", visit_of(*layer), {}, folder / "rows");
      load_state(folder / "state", visit_of(*resumed), folder / "rows");
    }
    const double loss = layer->step(batch.H, batch.targets(), eta, grad);
    if (t < 37) continue;
    EXPECT_EQ(resumed->step(batch.H, batch.targets(), eta, resumed_grad), loss);
    EXPECT_TRUE(is_identical<float>(resumed_grad, grad));
  }
  EXPECT_EQ(names_in(folder / "rows"), (std::set<std::string>{"rows.V", "timeline.stamps"}));
  EXPECT_TRUE(save(*layer) == save(*resumed));
}

}  // namespace
}  // namespace widehead::test
