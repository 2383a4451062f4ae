/// States that cannot be: refused, or harmless.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>

#include "courses.h"
#include "dice.h"
#include "errors.h"
#include "heads_under_test.h"
#include "state_in_memory.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

/// The whole numbers of an array, whatever its type; others have none.
template <class Change>
void for_each_number(SavedArray& array, const Change& change) {
  const auto each = [&]<class V>(V) {
    for (std::size_t at = 0; at < array.bytes.size(); at += sizeof(V)) {
      V value{};
      std::memcpy(&value, array.bytes.data() + at, sizeof(V));
      const auto bits = static_cast<std::uint64_t>(value);  // unsigned: a neighbour of the greatest number wraps around
      for (const std::uint64_t strange : {std::uint64_t{0} - 1, std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{D},
                                          bits - 1, bits + 1, std::uint64_t{INT32_MAX}, std::uint64_t{UINT32_MAX} - 1,
                                          std::uint64_t{INT64_MAX}, std::uint64_t{INT64_MAX} + 1}) {
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
INSTANTIATE_TEST_SUITE_P(All, TamperedStateTest, testing::ValuesIn(in_each_dtype(all_heads(), heads_on_gpu())),
                         case_name);

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
  refuse("window.columns", 0, std::int64_t{21}, {"window.columns", "room for 20"});
  refuse("window.columns", 0, std::int64_t{-1}, {"window.columns", "-1"});
  refuse("window.examples", 0, std::int64_t{-1}, {"window.examples", "-1"});
  refuse("window.examples", 0, std::int64_t{41}, {"window.examples", "41", "window of 20"});
  refuse("window.examples", 0, INT64_MAX, {"window.examples"});
  refuse("window.entry_slots", 0, std::int32_t{INT32_MAX}, {"window.entry_slots"});
  refuse("window.entry_slots", 0, std::int32_t{-1}, {"window.entry_slots"});
  refuse("window.entry_columns", 0, std::int64_t{3}, {"window.entry_columns"});
  refuse("window.entry_columns", 0, std::int64_t{-1}, {"window.entry_columns"});
}

}  // namespace
}  // namespace widehead::test
