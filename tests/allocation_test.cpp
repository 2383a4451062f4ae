/// A step allocates nothing after warm-up.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "count_allocations.h"
#include "heads_under_test.h"
#include "oracle.h"
#include "temporary_folder.h"

namespace widehead::test {
namespace {

std::vector<HeadCase> heads_without_checks() {
  auto heads = fast_heads();
  for (auto& head : heads) head.options.factored.stabilizer.n_check = 1000;  // not due
  return in_each_dtype(heads);
}
INSTANTIATE_TEST_SUITE_P(Plain, HeadTest, testing::ValuesIn(heads_without_checks()), case_name);

TEST(Allocations, AreCounted) {
  const long before = allocations;
  const Matrix<float> A(3, 3);
  const long after_matrix = allocations;
  const std::vector<int> v(3);
  const long after_vector = allocations;
  EXPECT_GT(after_matrix, before);
  EXPECT_GT(after_vector, after_matrix);
}

TEST_P(HeadTest, StepAllocatesNothingAfterWarmUp) {
  run([&]<class T>() {
    constexpr Size D = 3000, d = 48;
    for (const int threads : {1, 2}) {
      for (const bool weighted : {false, true}) {
        SCOPED_TRACE(fmt::format("{} threads, {}", threads, weighted ? "weighted" : "not weighted"));
        const auto layer = make_layer<T>(
            GetParam(), {.outputs = D, .dim = d, .weight_decay = 0.1, .initial = Initial::normal}, threads);
        std::vector<TypedMinibatch<T>> minibatches;
        Dice dice(91);
        // The first is the largest; the same shapes come again: what is made once for each shape is made.
        for (const Size m : {100, 1, 30, 100})
          minibatches.emplace_back(make_minibatch(dice, {D, d, m, m == 30 ? 0 : 4, weighted}));
        Matrix<T> grad_H(d, 100);
        const auto round = [&] {
          for (const auto& minibatch : minibatches) {
            layer->step(minibatch.H, minibatch.targets(), 1e-6, grad_H.view().columns(0, minibatch.H.cols()));
            layer->evaluate(minibatch.H, minibatch.targets());
          }
        };
        round();
        round();
        const long before = allocations;
        round();
        round();
        EXPECT_EQ(allocations - before, 0);
      }
    }
  });
}

TEST(Allocations, AStepWithItsRowsInAFileMakesNoneAfterWarmUp) {
  constexpr Size D = 3000, d = 48;
  const TemporaryFolder folder;
  auto options = options_of("windowed");
  options.layer = {.outputs = D, .dim = d};
  options.windowed.rows_file = folder / "rows";
  const auto layer = make_head<float>(options, make_cpu_backend<float>(1));
  Dice dice(91);
  std::vector<TypedMinibatch<float>> minibatches;
  for (int k = 0; k < 3; ++k) minibatches.emplace_back(make_minibatch(dice, {D, d, 100, 4}));
  Matrix<float> grad_H(d, 100);
  const auto round = [&] {
    for (const auto& minibatch : minibatches) layer->step(minibatch.H, minibatch.targets(), 1e-6, grad_H);
  };
  for (int k = 0; k < 3; ++k) round();
  const long before = allocations;
  for (int k = 0; k < 3; ++k) round();
  EXPECT_EQ(allocations - before, 0);
}

TEST(Allocations, SoftmaxHeadsMakeNoneAfterWarmUp) {
  constexpr Size D = 3000, d = 48;
  for (const std::string head : {"softmax", "hierarchical", "sampled"}) {
    for (const int threads : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, {} threads", head, threads));
      auto options = options_of(head);
      options.layer = {.outputs = D, .dim = d, .initial = Initial::normal};
      const auto layer = make_head<float>(options, make_cpu_backend<float>(threads));
      std::vector<TypedMinibatch<float>> minibatches;
      Dice dice(92);
      for (const Size m : {100, 1, 30, 100}) {
        auto minibatch = make_minibatch(dice, {D, d, m, m == 30 ? 0 : 4, true});
        for (auto& value : minibatch.values) value = std::abs(value);
        minibatches.emplace_back(minibatch);
      }
      Matrix<float> grad_H(d, 100);
      const auto round = [&] {
        for (const auto& minibatch : minibatches) {
          const auto room = grad_H.view().columns(0, minibatch.H.cols());
          layer->step(minibatch.H, minibatch.targets(), 1e-6, room);
          layer->evaluate(minibatch.H, minibatch.targets(), room);
          layer->evaluate(minibatch.H, minibatch.targets());
        }
      };
      for (int i = 0; i < 10; ++i) round();  // samples differ in size a little
      const long before = allocations;
      for (int i = 0; i < 3; ++i) round();
      EXPECT_EQ(allocations - before, 0);
    }
  }
}

}  // namespace
}  // namespace widehead::test
