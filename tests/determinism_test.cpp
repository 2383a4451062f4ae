/// The same run twice gives the same bits.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "compare.h"
#include "heads_under_test.h"
#include "oracle.h"
#include "widehead/synthetic.h"

namespace widehead::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Plain, HeadTest, testing::ValuesIn(in_each_dtype(fast_heads())), case_name);

template <class T>
struct Outcome {
  std::vector<double> losses;
  Matrix<T> W, Q, grad_H;
};

template <class T>
Outcome<T> run_once(const HeadCase& head, int threads) {
  // large enough for threads to take part in every operation
  constexpr Size D = 700, d = 64, m = 120;
  const auto layer = make_layer<T>(head, {.outputs = D, .dim = d, .initial = Initial::normal}, threads);
  const SyntheticStream<T> stream({.outputs = D, .dim = d, .batch = m, .nonzeros = 9});
  Outcome<T> outcome;
  outcome.grad_H = Matrix<T>(d, m);
  for (std::uint64_t t = 0; t < 6; ++t) {
    const auto batch = stream.batch(t);
    outcome.losses.push_back(layer->step(batch.H, batch.targets(), 1e-4, outcome.grad_H));
  }
  outcome.W = layer->weights();
  outcome.Q = layer->gram();
  return outcome;
}

TEST_P(HeadTest, SameRunTwiceIsBitIdentical) {
  run([&]<class T>() {
    for (const int threads : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} threads", threads));
      const auto once = run_once<T>(GetParam(), threads), again = run_once<T>(GetParam(), threads);
      EXPECT_EQ(once.losses, again.losses);
      EXPECT_TRUE(is_identical<T>(once.W, again.W));
      EXPECT_TRUE(is_identical<T>(once.Q, again.Q));
      EXPECT_TRUE(is_identical<T>(once.grad_H, again.grad_H));
    }
  });
}

}  // namespace
}  // namespace widehead::test
