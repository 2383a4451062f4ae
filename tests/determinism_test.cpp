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

/// Enqueued steps of which the last ones have more targets than any before, on a layer that has met a larger minibatch
/// already, or has not: as one that was loaded.
template <class T>
Outcome<T> enqueue_growing(const HeadCase& head, bool has_room) {
  constexpr Size D = 200, d = 40, m = 16;
  const auto layer = make_layer<T>(head, {.outputs = D, .dim = d, .initial = Initial::normal}, 1);
  auto& memory = layer->backend().memory();
  const auto minibatch = [&](Size examples, Size nonzeros, std::uint64_t t) {
    return SyntheticStream<T>({.outputs = D, .dim = d, .batch = examples, .nonzeros = nonzeros, .distinct = 14})
        .batch(t);
  };
  if (has_room) layer->evaluate(minibatch(2 * m, 5, 0).H, minibatch(2 * m, 5, 0).targets());
  Outcome<T> outcome;
  Matrix<T> H_there(d, m, memory), grad_there(d, m, memory);
  for (std::uint64_t t = 0; t < 12; ++t) {
    const auto batch = minibatch(m, t < 6 ? 1 : 3, t);
    layer->backend().template transfer<T>(batch.H.view(), H_there);
    layer->enqueue_step(H_there, batch.targets(), 2e-4, grad_there);
  }
  outcome.losses.push_back(layer->settle());
  outcome.grad_H = Matrix<T>(d, m);
  layer->backend().template transfer<T>(grad_there.view(), outcome.grad_H);
  outcome.W = layer->weights();
  outcome.Q = layer->gram();
  return outcome;
}

/// What goes to a device together must not depend on which scratch grows meanwhile.
TEST_P(HeadTest, EnqueuedStepsRoundAlikeWhateverTheyHaveRoomFor) {
  run([&]<class T>() {
    const auto without = enqueue_growing<T>(GetParam(), false), with = enqueue_growing<T>(GetParam(), true);
    EXPECT_EQ(without.losses, with.losses);
    EXPECT_TRUE(is_identical<T>(without.W, with.W));
    EXPECT_TRUE(is_identical<T>(without.Q, with.Q));
    EXPECT_TRUE(is_identical<T>(without.grad_H, with.grad_H));
  });
}

}  // namespace
}  // namespace widehead::test
