/// What is the windowed layer's own: its ways of closing a window, its figures, and its options.

#include "widehead/windowed_layer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "compare.h"
#include "errors.h"
#include "heads_under_test.h"
#include "tolerance.h"
#include "widehead/verify.h"

namespace widehead::test {
namespace {

using Figures = std::map<std::string, double>;
Figures to_map(const Diagnostics& diagnostics) {
  Figures figures;
  for (const auto& [name, value] : diagnostics) EXPECT_TRUE(figures.emplace(name, value).second) << name << " twice";
  return figures;
}

VerifyOptions run_at(const WindowedOptions& windowed, double lambda, std::int64_t steps) {
  VerifyOptions options;
  options.head = options_of("windowed");
  options.head.windowed = windowed;
  options.head.layer = {.outputs = 200, .dim = 12, .initial = Initial::normal};
  options.data.batch = 4;
  options.data.nonzeros = 2;
  options.lambda = lambda;
  options.steps = steps;
  options.threads = 1;
  return options;
}

double worst_of(const VerifyReport& report) {
  return std::max({report.rel_W, report.rel_Q, report.rel_grad, report.rel_loss});
}

TEST(WindowedLayer, IsExactInFloatAtAnyLearningRate) {
  // 0.15 absorbs, 0.6 deflates, 1 makes U singular, 1.6 overshoots: only flips remain. A few ε each, whatever U is.
  for (const double lambda : {0.05, 0.15, 0.6, 1.0, 1.6}) {
    SCOPED_TRACE(fmt::format("λ₁ = {}", lambda));
    const auto report = verify<float>(run_at({}, lambda, 300));
    EXPECT_EQ(report.error, "");
    EXPECT_LT(worst_of(report), 200 * tolerance::epsilon<float>);
  }
}

TEST(WindowedLayer, ClosesEarlyWhereAFullWindowCouldNotBeAbsorbed) {
  const auto close = [](double lambda) {
    auto options = run_at({}, lambda, 300);
    options.head.layer.dim = 48;
    options.data.nonzeros = 1;
    const auto report = verify<float>(options);
    EXPECT_LT(worst_of(report), 200 * tolerance::epsilon<float>);
    return to_map(report.diagnostics);
  };
  const auto windows = [](const Figures& figures) { return figures.at("absorbs") + figures.at("flips"); };
  // 15 steps of 4 examples fill a window at least, and 0.6¹⁵ is below 1/1000; 10 steps are 40 examples, more than d/2.
  const auto early = close(0.4);
  EXPECT_GT(early.at("absorbs"), 3 * early.at("flips"));
  for (const double lambda : {0.9, 1.0}) {  // 0.1³, 0: no window worth the name is short enough
    SCOPED_TRACE(fmt::format("λ₁ = {}", lambda));
    const auto full = close(lambda);
    EXPECT_EQ(full.at("absorbs"), 0);
    EXPECT_LT(windows(full), windows(early));
  }
}

TEST(WindowedLayer, IsExactThoughUHasBecomeSmall) {
  // U falls to 0.02 in the direction of the mean of h, so V is large there. Only that it is so in one number of a row
  // keeps the others from being rounded with it: else W is four times as far off, and Q is.
  auto options = run_at({}, 0.1, 600);
  options.head.windowed.deflation.below = 0.02;
  options.head.layer.dim = 32;
  options.data.batch = 32;
  options.data.nonzeros = 20;
  options.data.activation = Activation::sigmoid;
  const auto report = verify<float>(options);
  EXPECT_GT(to_map(report.diagnostics).at("deflated"), 5);
  EXPECT_LT(std::max(report.rel_W, report.rel_Q), 25 * tolerance::epsilon<float>);
}

TEST(WindowedLayer, IsExactWhicheverWayItCloses) {
  WindowedOptions absorb, flip, deflate;
  absorb.absorb_limit = 1e6;
  absorb.deflation.below = 0;
  flip.absorb_limit = 1;
  deflate.absorb_limit = 1e6;
  deflate.deflation.below = 0.8;
  deflate.timeline = {.panel_rank = 3, .radix = 2};
  const auto absorbed = verify<double>(run_at(absorb, 0.02, 60)), flipped = verify<double>(run_at(flip, 0.1, 200)),
             deflated = verify<double>(run_at(deflate, 0.1, 400));
  auto figures = to_map(absorbed.diagnostics);
  EXPECT_GT(figures.at("absorbs"), 3);
  EXPECT_EQ(figures.at("flips"), 0);
  EXPECT_EQ(figures.at("deflated"), 0);
  figures = to_map(flipped.diagnostics);
  EXPECT_EQ(figures.at("absorbs"), 0);
  EXPECT_GT(figures.at("flips"), 3);
  EXPECT_GT(figures.at("merges"), 0);
  figures = to_map(deflated.diagnostics);
  EXPECT_GT(figures.at("deflated"), 10);
  EXPECT_GT(figures.at("merges"), 0);
  EXPECT_GT(figures.at("sigma_min"), 0.1) << "U is kept in shape";
  for (const auto* report : {&absorbed, &flipped, &deflated}) EXPECT_LT(worst_of(*report), 1e-10);
}

TEST(WindowedLayer, ClosesItsWindowWhenTheNextMinibatchMightNotFit) {
  auto options = run_at({}, 0.01, 1);
  options.head.windowed.window = 12;  // three minibatches of 4
  const auto fill_after = [&](std::int64_t steps) {
    options.steps = steps;
    const auto figures = to_map(verify<double>(options).diagnostics);
    return std::pair(figures.at("window_fill"), figures.at("absorbs") + figures.at("flips"));
  };
  EXPECT_EQ(fill_after(1), std::pair(4.0, 0.0));
  EXPECT_EQ(fill_after(2), std::pair(8.0, 0.0));
  EXPECT_EQ(fill_after(3), std::pair(0.0, 1.0));
  EXPECT_EQ(fill_after(4), std::pair(4.0, 1.0));
  options.head.windowed.window = 1;  // smaller than a minibatch: every step
  EXPECT_EQ(fill_after(5), std::pair(0.0, 5.0));
}

TEST(WindowedLayer, GathersWhatComesToTheSameOutputInOneRow) {
  auto options = run_at({}, 0.01, 6);
  options.head.layer.outputs = 3;
  options.head.windowed.window = 200;
  options.data.batch = 16;
  options.data.nonzeros = 1;
  auto figures = to_map(verify<double>(options).diagnostics);
  EXPECT_GT(figures.at("window_fill"), 0);
  EXPECT_LE(figures.at("window_fill"), 3) << "a row of E for each of 3 outputs, not for each of 96 examples";
  EXPECT_EQ(figures.at("absorbs") + figures.at("flips"), 0);
  options.steps = 19;  // 304 examples are more than 3/2 · 200
  figures = to_map(verify<double>(options).diagnostics);
  EXPECT_EQ(figures.at("absorbs") + figures.at("flips"), 1) << "a window ends although it is not full";
  options.head.windowed.window = 40;
  for (const double lambda : {0.05, 0.6, 1.6}) {  // they are absorbed, and flipped, as any others
    options.lambda = lambda;
    options.steps = 300;
    const auto report = verify<float>(options);
    EXPECT_EQ(report.error, "");
    EXPECT_LT(worst_of(report), 200 * tolerance::epsilon<float>) << "λ₁ = " << lambda;
  }
}

TEST(WindowedLayer, TouchesOnlyTheRowsItIsAskedFor) {
  WindowedLayer<float> layer({.outputs = 2000000000, .dim = 4}, {}, make_cpu_backend<float>(1));
  const SyntheticStream<float> stream({.outputs = 2000000000, .dim = 4, .batch = 3});
  for (std::uint64_t t = 0; t < 50; ++t) {
    const auto batch = stream.batch(t);
    layer.step(batch.H, batch.targets(), 0.05 / (2 * spectral_norm_squared<float>(batch.H)));
  }
  EXPECT_LE(layer.rows().rows_written(), 50 * 3 * 10) << "not of the order of D";
}

TEST(WindowedLayer, MultipliesOnlyRowsThatWereTouchedBefore) {
  constexpr Size d = 4, m = 6;
  WindowedOptions options;
  options.window = m;  // which closes in every step
  WindowedLayer<double> layer({.outputs = 100, .dim = d}, options, make_cpu_backend<double>(1));
  const SyntheticStream<double> stream({.outputs = 100, .dim = d, .batch = m});
  const auto H = stream.batch(0).H;
  const std::vector<std::int64_t> offsets = {0, 1, 2, 3, 4, 5, 6};
  const std::vector<double> values(m, 1.0);
  const auto columns_after = [&](const std::vector<Index>& rows) {
    layer.step(H, SparseBatch<double>(100, offsets, rows, values), 0.01);
    return layer.step_products(m)[2].n;  // behind Q's and the stack's: the mean of all steps so far, one at least
  };
  EXPECT_EQ(columns_after({10, 20, 30, 40, 50, 60}), 1) << "all of them zero";
  EXPECT_EQ(columns_after({10, 20, 30, 40, 50, 60}), 3) << "none, then 6";
  EXPECT_EQ(columns_after({10, 20, 30, 71, 72, 73}), 3) << "none, 6, then 3 of 6";
}

TEST(WindowedLayer, RefusesBadOptions) {
  const auto refuse = [](const std::vector<std::string>& words, const auto& change) {
    WindowedOptions options;
    change(options);
    expect_throw<std::invalid_argument>(
        [&] { WindowedLayer<float>({.outputs = 5, .dim = 2}, options, make_cpu_backend<float>(1)); }, words);
  };
  refuse({"window = -1"}, [](auto& options) { options.window = -1; });
  refuse({"absorb_limit = 0.5"}, [](auto& options) { options.absorb_limit = 0.5; });
  refuse({"absorb_limit = nan"}, [](auto& options) { options.absorb_limit = NAN; });
  refuse({"below = 1"}, [](auto& options) { options.deflation.below = 1; });
  refuse({"below = -0.5"}, [](auto& options) { options.deflation.below = -0.5; });
  refuse({"below = nan"}, [](auto& options) { options.deflation.below = NAN; });
  refuse({"probes = 0"}, [](auto& options) { options.deflation.probes = 0; });
  refuse({"panel_rank = -1"}, [](auto& options) { options.timeline.panel_rank = -1; });
  refuse({"radix = 1"}, [](auto& options) { options.timeline.radix = 1; });
}

}  // namespace
}  // namespace widehead::test
