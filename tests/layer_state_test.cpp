/// Saving a layer and going on from what was saved: bit for bit, for every head.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>

#include "compare.h"
#include "courses.h"
#include "dice.h"
#include "enqueueing_backend.h"
#include "errors.h"
#include "heads_under_test.h"
#include "state_in_memory.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

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
INSTANTIATE_TEST_SUITE_P(All, StateTest, testing::ValuesIn(in_each_dtype(all_heads(), heads_on_gpu())), case_name);

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
      expect_same_course<T>(*layer, *resumed, dice, course, GetParam().device == "cpu" ? 300 : 60);
      for (const auto& [name, value] : before) at_cut[name] = std::max(at_cut[name], value);
      for (const auto& [name, value] : figures(*layer)) happened[name] += value - before.at(name);
    });
    const std::string label = GetParam().device == "cpu" ? GetParam().label : "";  // a GPU only flips
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

/// What is trained on a GPU is used on a CPU: their timelines are kept differently, and windows are longer there.
TEST(LayerState, MovesBetweenTimelinesWithProductsAndWithout) {
  for (const bool from_products : {false, true}) {
    for (const Initial initial : {Initial::zero, Initial::normal}) {
      for (const auto seed : seeds(6)) {
        SCOPED_TRACE(fmt::format("seed {}, products {}, initial {}", seed, from_products, static_cast<int>(initial)));
        Dice dice(seed);
        HeadCase with{.label = "with", .options = windowed_options(1, 0.2, 2)},
            without{.label = "without", .options = windowed_options(1.3, 0.9, 3)};
        with.options.windowed.timeline.keeps_products = true;
        with.options.windowed.window = 4 * d;
        const LayerOptions options{.outputs = D, .dim = d, .initial = initial, .seed = seed};
        const auto layer = make_layer<double>(from_products ? with : without, options);
        const auto other = make_layer<double>(from_products ? without : with, options);
        train<double>(*layer, dice, {.largest_m = 2, .lambda = 0.6}, static_cast<int>(dice.between(0, 150)));
        load(save(*layer), *other);
        for (int t = 0; t < 60; ++t) {
          ASSERT_TRUE(is_near<double>(other->weights(), layer->weights(), 1e-12)) << "step " << t;
          const auto examples = draw<double>(dice, 2, 2);
          const double eta = layer->eta_for(examples.H, examples.targets(), 0.6);
          const auto a = step<double>(*layer, examples, eta), b = step<double>(*other, examples, eta);
          ASSERT_NEAR(a.loss, b.loss, 1e-11 * (1 + std::abs(a.loss)));
        }
      }
    }
  }
}

/// A run of the first layer goes on in the second. It begins in one that flips all the time, so that there are blocks,
/// from which so many rows come in the first that it makes ways to now.
void expect_the_same_run(OutputLayer<double>& layer, OutputLayer<double>& other, Dice& dice) {
  const auto flipping = make_layer<double>({.label = "flip", .options = windowed_options(1, 0.2, 3)}, layer.options());
  train<double>(*flipping, dice, {.largest_m = 2, .lambda = 0.6}, 40);
  load(save(*flipping), layer);
  train<double>(layer, dice, {.largest_m = 2, .lambda = 0.1}, 60);
  load(save(layer), other);
  for (int t = 0; t < 12; ++t) {
    ASSERT_TRUE(is_near<double>(other.weights(), layer.weights(), 1e-12)) << "step " << t;
    const auto examples = draw<double>(dice, 2, 2);
    const double eta = layer.eta_for(examples.H, examples.targets(), 0.6);
    const auto a = step<double>(layer, examples, eta), b = step<double>(other, examples, eta);
    ASSERT_NEAR(a.loss, b.loss, 1e-11 * (1 + std::abs(a.loss)));
  }
}

/// make_other(options) is a windowed layer elsewhere: what began on the host goes on there, and the other way round.
template <class Make>
void expect_the_same_run_elsewhere(const Make& make_other) {
  for (const bool leaves : {true, false}) {
    for (const Initial initial : {Initial::zero, Initial::normal}) {
      for (const auto seed : seeds(3)) {
        SCOPED_TRACE(fmt::format("seed {}, leaves {}, initial {}", seed, leaves, static_cast<int>(initial)));
        Dice dice(seed);
        const HeadCase head{.label = "absorb", .options = windowed_options(1e6, 0, 3)};
        const LayerOptions options{.outputs = D, .dim = d, .initial = initial, .seed = seed};
        const auto here = make_layer<double>(head, options), there = make_other(head, options);
        expect_the_same_run(leaves ? *here : *there, leaves ? *there : *here, dice);
      }
    }
  }
}

TEST(LayerState, GoesOnInAnotherMemory) {
  expect_the_same_run_elsewhere([](const HeadCase& head, const LayerOptions& layer) {
    auto options = head.options;
    options.layer = layer;
    return make_head<double>(options, std::make_shared<FakeDevice<double>>());
  });
}

TEST(LayerState, GoesOnOnAnotherDevice_Cuda) {
  if (cuda_devices() == 0) GTEST_SKIP() << "there is no GPU here";
  expect_the_same_run_elsewhere([](HeadCase head, const LayerOptions& layer) {
    head.device = "cuda";
    return make_layer<double>(head, layer);
  });
}

/// There and back again, whatever a layer has been through: nothing yet, a part of a window, windows that deflated.
TEST(LayerState, GoesToATimelineWithProductsAndComesBack) {
  for (const auto seed : seeds(12)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Dice dice(seed);
    HeadCase with{.label = "with", .options = windowed_options(1, 0.2, 2)},
        without{.label = "without", .options = windowed_options(1.3, 0.9, 3)};
    with.options.windowed.timeline.keeps_products = true;
    const LayerOptions options{.outputs = D, .dim = d, .initial = Initial::normal, .seed = seed};
    const auto stays = make_layer<double>(without, options);
    auto moves = make_layer<double>(without, options);
    for (const auto* next : {&with, &without, &with, &with, &without}) {
      const auto steps = seed == 0 ? 0 : dice.between(0, 30);
      for (Size t = 0; t < steps; ++t) {
        const auto examples = draw<double>(dice, 2, 2);
        const double eta = stays->eta_for(examples.H, examples.targets(), 0.6);
        step<double>(*stays, examples, eta);
        step<double>(*moves, examples, eta);
      }
      auto moved = make_layer<double>(*next, options);
      load(save(*moves), *moved);
      moves = std::move(moved);
      ASSERT_TRUE(is_near<double>(moves->weights(), stays->weights(), 1e-12));
    }
  }
}

}  // namespace
}  // namespace widehead::test
