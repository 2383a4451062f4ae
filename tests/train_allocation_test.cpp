/// A step of a network allocates nothing after warm-up, nor does filling minibatches.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "count_allocations.h"
#include "network_under_test.h"
#include "widehead/train/ngram_source.h"

namespace widehead::test {
namespace {

/// Of the network; what heads do is the business of allocation_test.
TEST(NetworkStep, AllocatesNothingAfterWarmUp) {
  for (const auto optimizer : {Optimizer::sgd, Optimizer::adam}) {
    for (const bool concat : {true, false}) {
      SCOPED_TRACE(fmt::format("{}, {}", concat ? "concat" : "sum", optimizer == Optimizer::sgd ? "sgd" : "adam"));
      auto options = options_of({.concat = concat, .hidden = {5}, .head = "dense"});
      options.optimizer = optimizer;
      Network<float> network(options, make_cpu_backend<float>(2));
      Dice dice(66);
      std::vector<Batch<float>> batches;
      for (const Size m : {40, 1, 7, 40}) batches.push_back(make_batch<float>(dice, concat, m));
      const auto round = [&] {
        for (const auto& batch : batches) {
          step(network, batch, 1e-4, 1);
          evaluate(network, batch);
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
}

TEST(NGramSource, AllocatesNothingAfterTheFirstEpoch) {
  std::vector<Index> tokens;
  for (Index k = 0; k < 1000; ++k) tokens.push_back(k % 13 == 0 ? -1 : k % 7);
  const std::vector<std::int64_t> counts(7, 100);
  for (const auto combine : {Combine::concat, Combine::mean}) {
    const NGramSource<float> source(tokens, counts, {}, {.combine = combine});
    Batch<float> batch;
    Cursor at;
    while (at.epoch == 0) {
      source.fill(at, 50, batch);
      at = batch.next;
    }
    for (auto* rows : {&batch.inputs, &batch.targets}) {  // the order of the next epoch may need a little more
      rows->indices.reserve(1000);
      rows->values.reserve(1000);
    }
    const long before = allocations;
    while (at.epoch == 1) {
      source.fill(at, 50, batch);
      at = batch.next;
    }
    EXPECT_EQ(allocations - before, 0);
  }
}

}  // namespace
}  // namespace widehead::test
