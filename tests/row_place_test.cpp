/// Rows that a device has no room for: where they are put, that each crosses the bus once, and that no layer can tell.
/// On the CPU with a fake device (enqueueing_backend.h), and on GPUs.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "compare.h"
#include "dice.h"
#include "enqueueing_backend.h"
#include "errors.h"
#include "heads_under_test.h"
#include "state_in_memory.h"
#include "widehead/errors.h"
#include "widehead/synthetic.h"

namespace widehead::test {
namespace {

TEST(RowPlace, IsTheDeviceWhereItHasRoomAndElseTheHost) {
  FakeDevice<float> backend;
  backend.free_bytes = 4000;  // of which 3200 may be taken
  const auto is_remote = [&](Size rows, RowPlace place) {
    const RowStore<float> store(backend, rows, 8, "", place);
    const auto bytes = static_cast<std::size_t>(rows) * 8 * sizeof(float);
    EXPECT_EQ(backend.memory().bytes(), store.is_remote() ? 0 : bytes);
    EXPECT_EQ(backend.column_memory().bytes(), store.is_remote() ? bytes : 0);
    return store.is_remote();
  };
  EXPECT_FALSE(is_remote(100, RowPlace::automatic));
  EXPECT_TRUE(is_remote(101, RowPlace::automatic));
  EXPECT_TRUE(is_remote(1, RowPlace::host));
  EXPECT_FALSE(is_remote(1000, RowPlace::device));
}

TEST(RowPlace, IsNoQuestionWhereTheMemoryIsTheHosts) {
  const auto backend = make_cpu_backend<float>(1);
  EXPECT_FALSE(RowStore<float>(*backend, 10, 2).is_remote());
  for (const auto place : {RowPlace::device, RowPlace::host}) {
    expect_throw<std::invalid_argument>([&] { RowStore<float>(*backend, 10, 2, "", place); }, {"rows", "cpu"});
  }
}

TEST(RowPlace, IsNoFileOnADevice) {
  FakeDevice<float> backend;
  for (const auto place : {RowPlace::automatic, RowPlace::host}) {
    expect_throw<std::invalid_argument>([&] { RowStore<float>(backend, 10, 2, "V", place); },
                                        {"rows file V", "device fake", "host"});
  }
}

TEST(RowPlace, ThatIsRemoteGivesBackTheRowsItWasGiven) {
  FakeDevice<double> backend;
  RowStore<double> store(backend, 1000, 7, "", RowPlace::host);
  const auto Z = Dice(1).matrix<double>(7, 3);
  const std::vector<Index> rows{5, 0, 999}, mixed{0, RowStore<double>::zero_row, 7, 999};
  store.scatter(rows, Z);
  EXPECT_EQ(backend.columns_written, rows);
  Matrix<double> matrices(7, 14, backend.memory()), out(7, 4, backend.memory());
  const auto M = Dice(2).matrix<double>(7, 14);
  backend.transfer<double>(M, matrices);
  const std::vector<Index> matrix{1, 0, Backend<double>::no_column, 0};
  store.express(mixed, matrices, matrix, false, out);
  EXPECT_EQ(backend.columns_read, (std::vector<Index>{0, 7, 999})) << "each once, and none that is known to be zero";
  Matrix<double> truth(7, 4);
  for (const auto& [k, row, number] : {std::tuple<Size, Size, Size>{0, 1, 1}, {3, 2, 0}}) {
    for (Size i = 0; i < 7; ++i) {
      for (Size l = 0; l < 7; ++l) truth(i, k) += M(i, 7 * number + l) * Z(l, row);
    }
  }
  EXPECT_TRUE(is_near<double>(out, truth, 1e-15));
}

/// A windowed layer that closes its window every other step.
HeadOptions layer_options(Initial initial, const Loss& loss, RowPlace place) {
  auto options = options_of("windowed");
  options.layer = {.outputs = 60, .dim = 6, .loss = loss, .initial = initial, .initial_scale = 0.3, .seed = 4};
  options.windowed.window = 12;
  options.windowed.timeline.radix = 2;
  options.windowed.rows = place;
  return options;
}

SyntheticStream<double> stream_of(const HeadOptions& options) {
  SyntheticOptions data;
  data.outputs = options.layer.outputs;
  data.dim = options.layer.dim;
  data.batch = 8;
  data.nonzeros = 2;
  return SyntheticStream<double>(data);
}

/// Both places, step by step, on whichever device.
void expect_same_in_both(const std::shared_ptr<Backend<double>>& backend) {
  for (const auto initial : {Initial::zero, Initial::normal}) {
    for (const auto* loss : {"squared", "taylor"}) {  // the second uses the sum of all rows
      SCOPED_TRACE(fmt::format("{}, {}", initial == Initial::zero ? "zero" : "normal", loss));
      const auto there = layer_options(initial, make_loss(loss), RowPlace::device),
                 here = layer_options(initial, make_loss(loss), RowPlace::host);
      auto a = make_head<double>(there, backend), b = make_head<double>(here, backend);
      EXPECT_FALSE(dynamic_cast<const WindowedLayer<double>&>(*a).rows().is_remote());
      EXPECT_TRUE(dynamic_cast<const WindowedLayer<double>&>(*b).rows().is_remote());
      const auto stream = stream_of(there);
      Matrix<double> H_there(6, 8, backend->memory()), grad(6, 8, backend->memory());
      for (std::uint64_t t = 0; t < 40; ++t) {
        const auto batch = stream.batch(t);
        backend->transfer<double>(batch.H, H_there);
        for (auto* layer : {&a, &b}) {
          if (t % 3 == 0) {
            (*layer)->step(H_there, batch.targets(), 0.01, grad);
          } else {
            (*layer)->enqueue_step(H_there, batch.targets(), 0.01, grad);
          }
        }
        if (t != 23) continue;
        EXPECT_EQ(a->settle(), b->settle());
        MemorySaver saved_a, saved_b;  // states are the same, too, and load into either place
        a->visit_state(saved_a);
        b->visit_state(saved_b);
        for (const auto& [name, array] : saved_a.state) {
          const bool same = name.ends_with("seconds") || array == saved_b.state.at(name);
          EXPECT_TRUE(same) << name;
        }
        a = make_head<double>(here, backend);
        b = make_head<double>(there, backend);
        MemoryLoader from_a(saved_a.state), from_b(saved_b.state);
        a->visit_state(from_a);
        b->visit_state(from_b);
      }
      EXPECT_EQ(a->settle(), b->settle());
      EXPECT_TRUE(is_identical<double>(a->weights(), b->weights()));
      EXPECT_TRUE(is_identical<double>(a->gram(), b->gram()));
    }
  }
}

TEST(RowPlace, MakesNoDifferenceToALayer) { expect_same_in_both(std::make_shared<FakeDevice<double>>()); }
TEST(RowPlace, MakesNoDifferenceToALayer_Cuda) {
  if (cuda_devices() == 0) GTEST_SKIP() << "there is no GPU here";
  expect_same_in_both(make_cuda_backend<double>());
}

/// In a step without upkeep the rows of the targets are read, once each, and nothing is written; a window that closes
/// writes its own.
TEST(RowPlace, ThatIsRemoteIsReadOnceForEveryRowOfAStep) {
  const auto backend = std::make_shared<FakeDevice<double>>();
  auto options = layer_options(Initial::normal, SquaredError{}, RowPlace::host);
  options.windowed.window = 16;
  const auto layer = make_head<double>(options, backend);
  const auto stream = stream_of(options);
  Matrix<double> H_there(6, 8, backend->memory()), grad(6, 8, backend->memory());
  std::set<Index> window;
  for (std::uint64_t t = 0; t < 9; ++t) {
    const auto batch = stream.batch(t);
    backend->transfer<double>(batch.H, H_there);
    backend->columns_read.clear();
    backend->columns_written.clear();
    layer->enqueue_step(H_there, batch.targets(), 0.01, grad);
    const std::set<Index> targets(batch.indices.begin(), batch.indices.end());
    window.insert(targets.begin(), targets.end());
    const auto& read = backend->columns_read;
    const bool closes = t % 2 == 1;
    if (!closes) {
      EXPECT_EQ(read.size(), targets.size());
      EXPECT_EQ(std::set<Index>(read.begin(), read.end()), targets);
      EXPECT_TRUE(backend->columns_written.empty());
    } else if (t == 1) {  // later ones merge blocks besides
      EXPECT_EQ(read.size(), targets.size() + window.size());
      EXPECT_EQ(backend->columns_written.size(), window.size());
    }
    if (closes) window.clear();
  }
}

TEST(RowPlace, ThatIsRemoteIsZeroAtFirst_Cuda) {
  if (cuda_devices() == 0) GTEST_SKIP() << "there is no GPU here";
  const auto backend = make_cuda_backend<float>();
  EXPECT_FALSE(RowStore<float>(*backend, 1000, 8).is_remote());
  constexpr Size rows = 1'000'000, dim = 33;
  for (int turn = 0; turn < 2; ++turn) {  // the second may be given what the first has written to
    RowStore<float> store(*backend, rows, dim, "", RowPlace::host);
    ASSERT_TRUE(store.is_remote());
    EXPECT_EQ(norm<float>(store.view()), 0);
    Matrix<float> Z(dim, 1000, backend->memory()), out(dim, 1000, backend->memory());
    const auto values = Dice(5).matrix<float>(dim, 1000);
    backend->transfer<float>(values, Z);
    std::vector<Index> written;
    for (Index k = 0; k < 1000; ++k) written.push_back((k * 997 + 13) % static_cast<Index>(rows));
    store.scatter(written, Z);
    store.gather(written, out);
    Matrix<float> back(dim, 1000);
    backend->transfer<float>(out, back);
    EXPECT_TRUE(is_identical<float>(back, values));
    EXPECT_TRUE(is_identical<float>(store.view().columns(written[7], 1), values.view().columns(7, 1)));
  }
}

}  // namespace
}  // namespace widehead::test
