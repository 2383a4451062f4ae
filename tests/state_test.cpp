/// Saving a layer and going on from what was saved: bit for bit, for every head; and states that cannot be.

#include "widehead/state.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>

#include "compare.h"
#include "dice.h"
#include "errors.h"
#include "heads_under_test.h"
#include "state_in_memory.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

// ── the visitor ─────────────────────────────────────────────────────────────────────────────────

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

// ── every head ──────────────────────────────────────────────────────────────────────────────────

constexpr Size D = 30, d = 5;

template <class T>
struct Examples {
  Matrix<T> H;
  std::vector<std::int64_t> offsets{0};
  std::vector<Index> indices;
  std::vector<T> values;
  SparseBatch<T> targets() const { return {D, offsets, indices, values}; }
};

/// K targets per example at most.
template <class T>
Examples<T> draw(Dice& dice, Size m, Size K) {
  Examples<T> examples;
  examples.H = dice.matrix<T>(d, m);
  for (Size j = 0; j < m; ++j) {
    const Size count = dice.between(0, K);
    for (Size k = 0; k < count; ++k) {
      examples.indices.push_back(static_cast<Index>(dice.between(0, D - 1)));
      examples.values.push_back(static_cast<T>(dice.uniform(0.2, 1)));
    }
    examples.offsets.push_back(static_cast<std::int64_t>(examples.indices.size()));
  }
  return examples;
}

/// The outcome of a step, its error included.
template <class T>
struct Outcome {
  std::string error;
  double loss = 0;
  Matrix<T> grad_H;
};

template <class T>
Outcome<T> step(OutputLayer<T>& layer, const Examples<T>& examples, double eta) {
  Outcome<T> outcome;
  outcome.grad_H = Matrix<T>(d, examples.H.cols());
  try {
    outcome.loss = layer.step(examples.H, examples.targets(), eta, outcome.grad_H);
  } catch (const NumericalError& error) {
    outcome.error = error.what();
  }
  return outcome;
}

struct Course {
  Size largest_m = 4;
  Size K = 2;
  double lambda = 0.3;
};

template <class T>
void train(OutputLayer<T>& layer, Dice& dice, const Course& course, int steps) {
  for (int t = 0; t < steps; ++t) {
    const auto examples = draw<T>(dice, dice.between(1, course.largest_m), course.K);
    step<T>(layer, examples, layer.eta_for(examples.H, examples.targets(), course.lambda));
  }
}

/// Both layers take the same steps, with the same results to the last bit.
template <class T>
void expect_same_course(OutputLayer<T>& one, OutputLayer<T>& other, Dice& dice, const Course& course, int steps) {
  for (int t = 0; t < steps; ++t) {
    const auto examples = draw<T>(dice, dice.between(1, course.largest_m), course.K);
    const double eta = one.eta_for(examples.H, examples.targets(), course.lambda);
    const auto a = step<T>(one, examples, eta), b = step<T>(other, examples, eta);
    ASSERT_EQ(a.error, b.error) << "step " << t;
    ASSERT_EQ(a.loss, b.loss) << "step " << t;
    ASSERT_TRUE(is_identical<T>(a.grad_H, b.grad_H)) << "step " << t;
  }
  EXPECT_TRUE(is_identical<T>(one.weights(), other.weights()));
  EXPECT_TRUE(is_identical<T>(one.gram(), other.gram()));
  EXPECT_TRUE(is_identical<T>(one.sum_of_rows(), other.sum_of_rows()));
  EXPECT_EQ(one.steps(), other.steps());
}

/// Losses with and without Σo.
std::vector<Loss> losses_of(const HeadCase& head) {
  if (head.options.head == "reference") return {SquaredError{}};
  return {SquaredError{}, SphericalSoftmax{}, TaylorSoftmax{}, ZLoss{}};
}

template <class T>
std::map<std::string, double> figures(const OutputLayer<T>& layer) {
  std::map<std::string, double> map;
  for (const auto& [name, value] : layer.counters()) map[name] = value;
  return map;
}

class StateTest : public HeadTest {
 protected:
  /// Calls body(options, course, dice) with losses × weight decay × initial W × K, the rest drawn.
  template <class Body>
  void for_each_setting(const Body& body) {
    std::uint64_t seed = 0;
    for (const auto& loss : losses_of(GetParam())) {
      for (const double weight_decay : weight_decays()) {
        for (const Initial initial : {Initial::zero, Initial::normal}) {
          if (initial == Initial::zero && std::holds_alternative<ZLoss>(loss)) continue;
          Dice dice(seeds(1)[0] + ++seed);
          const Course course{.largest_m = dice.between(1, 4), .K = dice.between(1, 5), .lambda = dice.uniform(0, 0.7)};
          SCOPED_TRACE(fmt::format("seed {}: {}, weight decay {}, initial {}, m ≤ {}, K ≤ {}, λ = {}", seed,
                                   widehead::name_of(loss), weight_decay, static_cast<int>(initial), course.largest_m,
                                   course.K, course.lambda));
          body(
              LayerOptions{
                  .outputs = D, .dim = d, .loss = loss, .weight_decay = weight_decay, .initial = initial, .seed = seed},
              course, dice);
        }
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(All, StateTest, testing::ValuesIn(in_each_dtype(all_heads())), case_name);

TEST_P(StateTest, ResumedRunIsBitIdentical) {
  run([&]<class T>() {
    std::map<std::string, double> happened, at_cut;
    for_each_setting([&](const LayerOptions& options, const Course& course, Dice& dice) {
      const auto layer = make_layer<T>(GetParam(), options), resumed = make_layer<T>(GetParam(), options);
      train<T>(*layer, dice, course, static_cast<int>(dice.between(0, 60)));
      const auto before = figures(*layer);
      const auto state = save(*layer);
      load(state, *resumed);
      EXPECT_EQ(save(*resumed), state) << "what is loaded is what was saved";
      expect_same_course<T>(*layer, *resumed, dice, course, 300);
      for (const auto& [name, value] : before) at_cut[name] = std::max(at_cut[name], value);
      for (const auto& [name, value] : figures(*layer)) happened[name] += value - before.at(name);
    });
    const auto& label = GetParam().label;
    const auto expect_some = [&](auto& counts, std::initializer_list<const char*> names) {
      for (const char* name : names) EXPECT_GT(counts[name], 0) << name << " was not put to the test";
    };
    if (label == "windowed_absorb") expect_some(happened, {"absorbs"});
    if (label == "windowed_deflate") expect_some(happened, {"absorbs", "deflated"});
    if (label == "windowed_flip") expect_some(happened, {"flips", "merges", "rows_caught_up", "rows_moved"});
    if (label == "windowed_flip") expect_some(at_cut, {"blocks_alive", "merges"});
    if (label == "windowed_mixed") expect_some(happened, {"flips", "deflated", "merges", "rows_caught_up"});
    if (label == "windowed_mixed") expect_some(at_cut, {"window_fill", "panel_rank", "blocks_alive"});
    if (label == "factored_woodbury" || label == "factored_solve") expect_some(happened, {"checks", "fixes"});
    if (label == "factored_refresh") expect_some(happened, {"inversions"});
  });
}

TEST_P(StateTest, WhateverALayerWasBeforeLoadingIsForgotten) {
  run([&]<class T>() {
    for_each_setting([&](const LayerOptions& options, const Course& course, Dice& dice) {
      const auto layer = make_layer<T>(GetParam(), options), used = make_layer<T>(GetParam(), options);
      train<T>(*layer, dice, course, static_cast<int>(dice.between(0, 40)));
      train<T>(*used, dice, course, static_cast<int>(dice.between(1, 80)));
      load(save(*layer), *used);
      expect_same_course<T>(*layer, *used, dice, course, 40);
    });
  });
}

TEST_P(StateTest, SavingChangesNothing) {
  run([&]<class T>() {
    for_each_setting([&](const LayerOptions& options, const Course& course, Dice& dice) {
      const auto layer = make_layer<T>(GetParam(), options), saved = make_layer<T>(GetParam(), options);
      for (int t = 0; t < 20; ++t) {
        expect_same_course<T>(*layer, *saved, dice, course, 1);
        EXPECT_EQ(save(*saved), save(*saved));
      }
    });
  });
}

TEST_P(StateTest, RefusesTheStateOfALayerOfAnotherShape) {
  run([&]<class T>() {
    const auto layer = make_layer<T>(GetParam(), {.outputs = D, .dim = d});
    const auto state = save(*layer);
    for (const auto& [outputs, dim] : {std::pair{D + 1, d}, std::pair{D, d + 1}, std::pair{d, D}}) {
      const auto other = make_layer<T>(GetParam(), {.outputs = outputs, .dim = dim});
      EXPECT_THROW(load(state, *other), FileError);
    }
  });
}

TEST_P(StateTest, RefusesTheStateOfALossThatUsesTheSumWhereThisOneDoesNot) {
  run([&]<class T>() {
    if (GetParam().options.head == "reference" || GetParam().options.head == "dense") return;  // nothing to tell apart
    LayerOptions with{.outputs = D, .dim = d}, without = with;
    with.loss = ZLoss{};
    const auto one = make_layer<T>(GetParam(), with), other = make_layer<T>(GetParam(), without);
    expect_throw<FileError>([&] { load(save(*one), *other); }, {"uses_sum", "is 1", "it is 0"});
    expect_throw<FileError>([&] { load(save(*other), *one); }, {"uses_sum", "is 0", "it is 1"});
  });
}

// ── states that cannot be ───────────────────────────────────────────────────────────────────────

/// The whole numbers of an array, whatever its type; others have none.
template <class Change>
void for_each_number(SavedArray& array, const Change& change) {
  const auto each = [&]<class V>(V) {
    for (std::size_t at = 0; at < array.bytes.size(); at += sizeof(V)) {
      V value{};
      std::memcpy(&value, array.bytes.data() + at, sizeof(V));
      for (const std::int64_t strange : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1}, std::int64_t{D},
                                         static_cast<std::int64_t>(value) - 1, static_cast<std::int64_t>(value) + 1,
                                         std::int64_t{INT32_MAX}, std::int64_t{UINT32_MAX} - 1, INT64_MAX, INT64_MIN}) {
        const V spoilt = static_cast<V>(strange);
        if (spoilt == value) continue;
        std::memcpy(array.bytes.data() + at, &spoilt, sizeof(V));
        change();
      }
      std::memcpy(array.bytes.data() + at, &value, sizeof(V));
    }
  };
  if (array.type == ElementType::i32) each(std::int32_t{});
  if (array.type == ElementType::u32) each(std::uint32_t{});
  if (array.type == ElementType::i64) each(std::int64_t{});
  if (array.type == ElementType::u64) each(std::uint64_t{});
  if (array.type == ElementType::u8) each(std::uint8_t{});
}

/// A layer in the middle of things, and copies of it from states that were tampered with.
template <class T>
class Tampering {
 public:
  explicit Tampering(const HeadCase& head) : head_(head), layer_(make_layer<T>(head, options_)) {
    Dice dice(seeds(1)[0]);
    train<T>(*layer_, dice, course_, 37);
    state = save(*layer_);
  }

  /// Whether the state is refused. If not, the layer must be as safe to use as any other: the sanitizers tell.
  bool is_refused() const {
    const auto victim = make_layer<T>(head_, options_);
    try {
      load(state, *victim);
    } catch (const FileError&) {
      return true;
    }
    try {
      Dice dice(7);
      train<T>(*victim, dice, course_, 12);
      victim->weights();
    } catch (const std::runtime_error&) {  // NumericalError, BackendError
    }
    return false;
  }

  SavedState state;

 private:
  HeadCase head_;
  LayerOptions options_{.outputs = D, .dim = d};
  Course course_{.largest_m = 2, .K = 3, .lambda = 0.5};
  std::unique_ptr<OutputLayer<T>> layer_;
};

class TamperedStateTest : public HeadTest {};
INSTANTIATE_TEST_SUITE_P(All, TamperedStateTest, testing::ValuesIn(in_each_dtype(all_heads())), case_name);

TEST_P(TamperedStateTest, NothingMayBeMissingOrLeftOverOrOfAnotherType) {
  run([&]<class T>() {
    Tampering<T> tampering(GetParam());
    ASSERT_FALSE(tampering.is_refused());
    const auto good = tampering.state;
    for (const auto& [name, array] : good) {
      SCOPED_TRACE(name);
      tampering.state.erase(name);
      EXPECT_TRUE(tampering.is_refused());
      tampering.state = good;
      auto& spoilt = tampering.state.at(name);
      spoilt.type = array.type == ElementType::f32 ? ElementType::i32 : ElementType::f32;
      spoilt.bytes.resize(bytes_of(spoilt.type, spoilt.shape));
      EXPECT_TRUE(tampering.is_refused());
      tampering.state = good;
      tampering.state[name + ".more"] = array;
      EXPECT_TRUE(tampering.is_refused());
      tampering.state = good;
    }
  });
}

TEST_P(TamperedStateTest, OtherShapesAreRefusedOrHarmless) {
  run([&]<class T>() {
    Tampering<T> tampering(GetParam());
    const auto good = tampering.state;
    for (const auto& [name, array] : good) {
      SCOPED_TRACE(name);
      for (std::size_t k = 0; k < array.shape.size(); ++k) {
        for (const std::int64_t extent : {array.shape[k] - 1, array.shape[k] + 1, std::int64_t{0}}) {
          if (extent < 0 || extent == array.shape[k]) continue;
          auto& spoilt = tampering.state.at(name);
          spoilt.shape[k] = extent;
          spoilt.bytes.resize(bytes_of(spoilt.type, spoilt.shape));
          const bool refused = tampering.is_refused();
          if (array.shape.size() == 2) {
            EXPECT_TRUE(refused) << to_string(spoilt.shape) << " for " << to_string(array.shape);
          }
          tampering.state = good;
        }
      }
    }
  });
}

TEST_P(TamperedStateTest, OtherNumbersAreRefusedOrHarmless) {
  run([&]<class T>() {
    Tampering<T> tampering(GetParam());
    for (auto& [name, array] : tampering.state) {
      SCOPED_TRACE(name);
      for_each_number(array, [&] { tampering.is_refused(); });
    }
  });
}

/// What each check of the windowed layer's state is for.
TEST(WindowedState, ImpossibleEpochsRowsAndColumnsAreRefused) {
  const auto heads = all_heads();
  const auto head =
      *std::find_if(heads.begin(), heads.end(), [](const auto& one) { return one.label == "windowed_deflate"; });
  const LayerOptions options{.outputs = D, .dim = d};
  SavedState state;
  const auto layer = make_layer<double>(head, options);
  Dice dice(3);
  const auto holds = [&](const std::string& name) { return state.contains(name) && !state.at(name).bytes.empty(); };
  for (int t = 0; t < 5000; ++t) {  // until there is something in every part
    train<double>(*layer, dice, {.largest_m = 1, .K = 3, .lambda = dice.uniform(0, 0.3)}, 1);
    state = save(*layer);
    if (holds("window.rows") && holds("timeline.panel.A") && holds("timeline.panel.start_rows") &&
        holds("timeline.block1.panel.start_rows") && holds("timeline.block1.panel.A")) {
      break;
    }
  }
  ASSERT_TRUE(holds("window.rows") && holds("timeline.panel.A") && holds("timeline.block1.panel.A"));
  const auto refuse = [&]<class V>(const std::string& name, std::size_t at, V value,
                                   const std::vector<std::string>& words) {
    auto spoilt = state;
    ASSERT_LE((at + 1) * sizeof(V), spoilt.at(name).bytes.size()) << name;
    std::memcpy(spoilt.at(name).bytes.data() + at * sizeof(V), &value, sizeof(V));
    const auto victim = make_layer<double>(head, options);
    expect_throw<FileError>([&] { load(spoilt, *victim); }, words);
  };
  const auto number = [&]<class V>(const std::string& name, V value) {
    std::memcpy(&value, state.at(name).bytes.data(), sizeof(V));
    return value;
  };
  const auto now = number("timeline.now", std::uint32_t{});
  refuse("steps", 0, std::int64_t{-1}, {"steps", "-1"});
  refuse("steps", 0, INT64_MAX, {"steps"});
  refuse("timeline.starts_as_zero", 0, std::uint8_t{0}, {"timeline.starts_as_zero"});
  refuse("timeline.stamps", 4, now + 2, {"timeline.stamps", "row 4", fmt::format("epoch {}", now + 1)});
  refuse("timeline.now", 0, now + 1, {"timeline.now"});
  refuse("timeline.now", 0, UINT32_MAX, {"timeline.now"});
  refuse("timeline.blocks", 0, INT64_MAX, {"timeline.block", "missing"});
  refuse("timeline.panel.start", 0, now + 1, {"timeline.panel", "starts at"});
  refuse("timeline.panel.rank", 0, std::int64_t{3}, {"timeline.panel.rank", "room for 2"});
  refuse("timeline.panel.rank", 0, std::int64_t{-1}, {"timeline.panel.rank", "-1"});
  refuse("timeline.panel.columns", 0, std::int64_t{1}, {"timeline.panel.columns"});
  refuse("timeline.panel.columns", 1, std::int64_t{9}, {"timeline.panel.columns"});
  refuse("timeline.panel.start_rows", 0, std::int32_t{D}, {"timeline.panel.start_rows", "output 30"});
  refuse("timeline.block1.panel.start_rows", 0, std::int32_t{-1}, {"timeline.block1.panel.start_rows", "output -1"});
  refuse("timeline.block0.level", 0, std::int32_t{-1}, {"timeline.block0"});
  refuse("window.rows", 0, std::int32_t{D}, {"window.rows", "output 30", "D = 30"});
  refuse("window.rows", 0, std::int32_t{-1}, {"window.rows", "output -1"});
  refuse("window.examples", 0, std::int64_t{4}, {"window.examples", "room for 3"});
  refuse("window.examples", 0, std::int64_t{-1}, {"window.examples", "-1"});
  refuse("window.entry_slots", 0, std::int32_t{INT32_MAX}, {"window.entry_slots"});
  refuse("window.entry_slots", 0, std::int32_t{-1}, {"window.entry_slots"});
  refuse("window.entry_columns", 0, std::int64_t{3}, {"window.entry_columns"});
  refuse("window.entry_columns", 0, std::int64_t{-1}, {"window.entry_columns"});
}

// ── rows in a file ──────────────────────────────────────────────────────────────────────────────

TEST(WindowedState, GoesFromMemoryToAFileAndBack) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("widehead_state_rows_{}", ::getpid());
  std::filesystem::remove(path);
  HeadOptions options = options_of("windowed");
  options.layer = {.outputs = 20000, .dim = 8};
  const auto in_memory = make_head<float>(options, make_cpu_backend<float>(1));
  options.windowed.rows_file = path;
  const auto in_file = make_head<float>(options, make_cpu_backend<float>(1));
  const auto touch = [](OutputLayer<float>& layer, std::uint64_t seed) {
    Dice dice(seed);
    for (int t = 0; t < 60; ++t) {
      const auto H = dice.matrix<float>(8, 2);
      const std::vector<std::int64_t> offsets{0, 2, 3};
      const std::vector<Index> indices{static_cast<Index>(dice.between(0, 19999)),
                                       static_cast<Index>(dice.between(0, 19999)), 7};
      const std::vector<float> values{1, 0.5F, 2};
      layer.step(H, SparseBatch<float>(20000, offsets, indices, values), 0.01);
    }
  };
  touch(*in_memory, 1);
  touch(*in_file, 2);
  load(save(*in_memory), *in_file);
  EXPECT_TRUE(is_identical<float>(in_memory->weights(), in_file->weights()));
  touch(*in_memory, 3);
  touch(*in_file, 3);
  EXPECT_TRUE(is_identical<float>(in_memory->weights(), in_file->weights()));
  touch(*in_file, 4);
  load(save(*in_file), *in_memory);
  EXPECT_TRUE(is_identical<float>(in_memory->weights(), in_file->weights()));
  std::filesystem::remove(path);
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
