/// Every head at sizes where threads, stripes and blocks of rows come into play.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "beside_oracle.h"

namespace widehead::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Plain, HeadTest, testing::ValuesIn(in_each_dtype(plain_heads())), case_name);

TEST_P(HeadTest, StepIsExactOverSeveralBlocksOfRows) {
  run([&]<class T>() {
    constexpr Size d = 3;
    const Size D = 2 * make_cpu_backend<T>(1)->rows_per_block(d) + 17;
    for (const double weight_decay : weight_decays()) {
      Dice dice(41);
      BesideOracle<T> pair(GetParam(),
                           {.outputs = D, .dim = d, .weight_decay = weight_decay, .initial = Initial::normal});
      for (const Size m : {1, 4, 2, 5, 1}) pair.step(make_minibatch(dice, {D, d, m, 5}));
      pair.compare_state();
    }
  });
}

TEST_P(HeadTest, StepIsExactOnSeveralThreads) {
  run([&]<class T>() {
    constexpr Size D = 90, d = 70;
    for (const double weight_decay : weight_decays()) {
      Dice dice(42);
      BesideOracle<T> pair(GetParam(),
                           {.outputs = D, .dim = d, .weight_decay = weight_decay, .initial = Initial::normal}, 3);
      for (const Size m : {100, 7, 130, 1, 100}) pair.step(make_minibatch(dice, {D, d, m, 3, m == 130}));
      pair.compare_state();
    }
  });
}

}  // namespace
}  // namespace widehead::test
