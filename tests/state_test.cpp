/// States as lists of named arrays: what a visitor is told, and what it refuses.

#include "widehead/state.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "errors.h"
#include "state_in_memory.h"
#include "widehead/errors.h"
#include "widehead/heads.h"

namespace widehead::test {
namespace {

struct Record {
  bool flag = true;
  std::int32_t small = -3;
  std::int64_t large = 5;
  long long also_large = 6;
  std::uint64_t natural = 7;
  float single = 0.5F;
  double real = 0.25;
  std::vector<std::uint32_t> values{1, 2, 3};
  std::vector<std::uint8_t> none;
  Matrix<double> table = Matrix<double>::identity(2);
  Matrix<float> fixed = Matrix<float>(3, 2);

  void visit_state(StateVisitor& visitor) {
    visitor.scalar("flag", flag);
    const auto outer = visitor.scope("outer");
    visitor.scalar("small", small);
    {
      const auto inner = visitor.scope("inner");
      visitor.scalar("large", large);
      visitor.scalar("also_large", also_large);
      visitor.scalar("natural", natural);
    }
    visitor.scalar("single", single);
    visitor.scalar("real", real);
    visitor.list("values", values);
    visitor.list("none", none);
    visitor.matrix("table", table);
    visitor.block("fixed", fixed.view());
    visitor.agree("version", std::int32_t{4});
  }
};

TEST(State, FieldsAreNamedByTheirScopesAndTyped) {
  Record record;
  std::map<std::string, std::string> seen;
  for (const auto& [name, array] : save(record)) {
    seen[name] = std::string(name_of(array.type)) + to_string(array.shape);
    EXPECT_EQ(array.bytes.size(), bytes_of(array.type, array.shape)) << name;
  }
  const std::map<std::string, std::string> expected{
      {"flag", "u8{}"},           {"outer.small", "i32{}"},         {"outer.inner.large", "i64{}"},
      {"outer.single", "f32{}"},  {"outer.real", "f64{}"},          {"outer.inner.also_large", "i64{}"},
      {"outer.none", "u8{0}"},    {"outer.inner.natural", "u64{}"}, {"outer.table", "f64{2, 2}"},
      {"outer.values", "u32{3}"}, {"outer.fixed", "f32{2, 3}"},     {"outer.version", "i32{}"}};
  EXPECT_EQ(seen, expected);
}

TEST(State, LoadingTakesWhatWasSaved) {
  Record saved, loaded;
  saved.flag = false;
  saved.small = 11;
  saved.natural = std::numeric_limits<std::uint64_t>::max();
  saved.values = {9};
  saved.table = Matrix<double>(1, 5);
  saved.table(0, 3) = 2;
  saved.fixed(2, 1) = 8;
  load(save(saved), loaded);
  EXPECT_EQ(save(loaded), save(saved));
  EXPECT_EQ(loaded.table.cols(), 5);
  EXPECT_EQ(loaded.fixed(2, 1), 8);
  EXPECT_FALSE(loaded.flag);
}

TEST(State, WhatDoesNotFitIsRefusedByName) {
  Record record;
  const auto good = save(record);
  const auto refuse = [&](const std::vector<std::string>& words, const auto& spoil) {
    auto state = good;
    spoil(state);
    Record other;
    expect_throw<FileError>([&] { load(state, other); }, words);
  };
  refuse({"outer.real", "missing"}, [](auto& state) { state.erase("outer.real"); });
  refuse({"flag", "is 2"}, [](auto& state) { state.at("flag").bytes[0] = 2; });
  refuse({"outer.version", "is 5", "it is 4"}, [](auto& state) { state.at("outer.version").bytes[0] = 5; });
  refuse({"outer.fixed", "{3, 2}", "{2, 3}"}, [](auto& state) { state.at("outer.fixed").shape = {3, 2}; });
}

TEST(State, RefusesABlockWithGaps) {
  Matrix<double> A(4, 3);
  MemorySaver saver;
  expect_throw<std::invalid_argument>([&] { saver.block("A", A.view().block(0, 0, 2, 3)); }, {"contiguous"});
  expect_throw<std::invalid_argument>([&] { saver.sparse_block("A", A.view().block(0, 0, 2, 3)); }, {"contiguous"});
}

// ── heads without ───────────────────────────────────────────────────────────────────────────────

class Forgetful final : public OutputLayer<double> {
 public:
  Forgetful() : OutputLayer<double>({.outputs = 2, .dim = 1}, make_cpu_backend<double>(1)) {}
  std::string head() const override { return "forgetful"; }
  Matrix<double> gram() override { return {}; }
  std::vector<GemmShape> step_products(Size) const override { return {}; }

 protected:
  double take_step(ConstView<double>, const SparseBatch<double>&, double, MatrixView<double>) override { return 0; }
  double compute_loss(ConstView<double>, const SparseBatch<double>&, MatrixView<double>) override { return 0; }
  void begin_scores(ConstView<double>) override {}
  void write_scores(std::span<const Index>, MatrixView<double>) override {}
  void write_weights(Size, MatrixView<double>) override {}
};

TEST(State, AHeadThatListsNothingSaysSo) {
  Forgetful layer;
  expect_throw<std::logic_error>([&] { save(layer); }, {"forgetful", "cannot be saved"});
}

}  // namespace
}  // namespace widehead::test
