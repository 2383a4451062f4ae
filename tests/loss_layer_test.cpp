/// Layers trained with each loss, beside the definition; probabilities; losses of the user's own.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>

#include "compare.h"
#include "errors.h"
#include "heads_under_test.h"
#include "loss_oracle.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

HeadCase windowed_case(double absorb_limit, double deflate_below) {
  auto options = options_of("windowed");
  options.windowed.window = 12;
  options.windowed.absorb_limit = absorb_limit;
  options.windowed.deflation.below = deflate_below;
  return {.label = fmt::format("windowed_{:g}_{:g}", absorb_limit, 10 * deflate_below), .options = options};
}

std::vector<HeadCase> heads() {
  std::vector<HeadCase> list{{.label = "dense", .options = options_of("dense")}};
  for (const auto inverse : {Inverse::solve, Inverse::woodbury}) {
    list.push_back({.label = inverse == Inverse::solve ? "factored_solve" : "factored_woodbury",
                    .options = factored_options(inverse, Stabilize::power)});
  }
  for (const double absorb_limit : {1.0, 30.0}) {
    for (const double deflate_below : {0.2, 0.8}) list.push_back(windowed_case(absorb_limit, deflate_below));
  }
  return in_each_dtype(list);
}
INSTANTIATE_TEST_SUITE_P(All, HeadTest, testing::ValuesIn(heads()), case_name);

std::vector<LossCase> losses() {
  auto list = default_losses();
  list.push_back(spherical_case(1.3));
  list.push_back(z_case(1.5, 0.4));
  list.push_back(own_case());
  return list;
}
std::vector<LossCase> softmax_losses() {
  return {spherical_case(0.1), spherical_case(1.3), spherical_outside_case(0.01), taylor_case()};
}

double counter(const Diagnostics& figures, const std::string& name) {
  const auto found =
      std::find_if(figures.begin(), figures.end(), [&](const auto& figure) { return figure.name == name; });
  EXPECT_NE(found, figures.end()) << name;
  return found->value;
}

// ── steps ───────────────────────────────────────────────────────────────────────────────────────

TEST_P(HeadTest, StepIsThatOfTheDefinitionWithEveryLoss) {
  run([&]<class T>() {
    double absorbs = 0, flips = 0, deflated = 0;
    std::uint64_t seed = 70 * seeds(1).front();
    for (const auto& loss : losses()) {
      for (const double weight_decay : {0.0, 0.01}) {
        for (const Initial initial : {Initial::normal, Initial::zero}) {
          for (const bool weighted : {false, true}) {
            for (const Size K : {1, 7}) {
              if (initial == Initial::zero && !loss.leaves_zero) continue;
              SCOPED_TRACE(fmt::format("seed {}: {}, weight decay {}, initial W {}, {}, K = {}", ++seed, loss.label,
                                       weight_decay, initial == Initial::zero ? "zero" : "normal",
                                       weighted ? "weighted" : "alike", K));
              Dice dice(seed);
              LayerOptions options{.outputs = 40, .dim = 8, .weight_decay = weight_decay, .initial = initial};
              BesideLossOracle<T> pair(GetParam(), loss, options);
              for (int t = 0; t < 60 && !HasFailure(); ++t) {
                pair.step(pair.make(dice, {40, 8, 5, K, weighted}));
                if (t % 20 == 7) pair.compare_state();
              }
              if (HasFailure()) return;
              pair.compare_state();
              if (GetParam().options.head == "windowed") {
                const auto figures = pair.layer->counters();
                absorbs += counter(figures, "absorbs");
                flips += counter(figures, "flips");
                deflated += counter(figures, "deflated");
              }
            }
          }
        }
      }
    }
    if (GetParam().options.head != "windowed") return;  // else: windows have closed in the way that the case is for
    const auto& windowed = GetParam().options.windowed;
    const bool flips_only = windowed.absorb_limit == 1 || GetParam().device != "cpu";
    EXPECT_GT(flips_only ? flips : absorbs, 500);
    if (!flips_only && windowed.deflation.below > 0.5) {
      EXPECT_GT(deflated, 50);
    }
  });
}

TEST_P(HeadTest, StepOfEveryLossFollowsAChangingMAndExamplesWithoutTargets) {
  run([&]<class T>() {
    for (const auto& loss : losses()) {
      SCOPED_TRACE(loss.label);
      Dice dice(71 * seeds(1).front());
      BesideLossOracle<T> pair(GetParam(), loss,
                               {.outputs = 30, .dim = 7, .weight_decay = 0.01, .initial = Initial::normal});
      for (const Size m : {3, 20, 1, 5, 30, 2, 1, 9}) {  // more than the window, more than d
        for (const Size K : {2, 0}) {
          auto batch = pair.make(dice, {30, 7, m, K, true});
          if (m == 5) batch.offsets[1] = 0;  // the first example gives its targets to the second
          pair.step(batch);
        }
      }
      pair.compare_state();
      if (HasFailure()) return;
    }
  });
}

TEST_P(HeadTest, StepOfEveryLossIsExactAtTheEdgesOfEveryExtent) {
  run([&]<class T>() {
    for (const auto& loss : losses()) {
      for (const auto& [D, d] : {std::pair<Size, Size>{1, 1}, {1, 6}, {40, 1}, {3, 9}}) {
        if (D == 1 && std::holds_alternative<ZLoss>(loss.loss)) continue;  // one output does not vary
        for (const Size m : {1, 11}) {
          SCOPED_TRACE(fmt::format("{}, D = {}, d = {}, m = {}", loss.label, D, d, m));
          Dice dice(72 * seeds(1).front());
          BesideLossOracle<T> pair(GetParam(), loss, {.outputs = D, .dim = d, .initial = Initial::normal});
          for (int t = 0; t < 6; ++t) pair.step(pair.make(dice, {D, d, m, 2, true}));
          pair.compare_state();
          if (HasFailure()) return;
        }
      }
    }
  });
}

TEST_P(HeadTest, EvaluateIsTheLossAndGradientOfTheStepOfEveryLossAndChangesNothing) {
  run([&]<class T>() {
    for (const auto& loss : losses()) {
      SCOPED_TRACE(loss.label);
      Dice dice(73 * seeds(1).front());
      BesideLossOracle<T> pair(GetParam(), loss, {.outputs = 25, .dim = 6, .initial = Initial::normal});
      for (const Size m : {1, 5, 2, 9, 5, 4}) {
        const auto minibatch = pair.make(dice, {25, 6, m, 3, m == 5});
        const TypedMinibatch<T> typed(minibatch);
        const auto W = pair.layer->weights(), Q = pair.layer->gram(), w_bar = pair.layer->sum_of_rows();
        const auto steps = pair.layer->steps();
        Padded<T> grad_H(6, m);
        const double L = pair.layer->evaluate(typed.H, typed.targets(), grad_H);
        EXPECT_EQ(pair.layer->evaluate(typed.H, typed.targets()), L) << "without a gradient";
        EXPECT_TRUE(is_identical<T>(pair.layer->weights(), W));
        EXPECT_TRUE(is_identical<T>(pair.layer->gram(), Q));
        EXPECT_TRUE(is_identical<T>(pair.layer->sum_of_rows(), w_bar));
        EXPECT_EQ(pair.layer->steps(), steps);
        const auto truth = pair.oracle.evaluate(minibatch);
        EXPECT_TRUE(is_near(L, truth.loss, pair.limit(), truth.loss_scale));
        EXPECT_TRUE(is_near<T>(grad_H, truth.grad_H, pair.limit(), truth.grad_scale));
        EXPECT_TRUE(grad_H.rim_is_intact());
        pair.step(minibatch);  // whose loss and ∇H are compared with the same truth
      }
      pair.compare_state();
    }
  });
}

TEST_P(HeadTest, EtaForGivesTheContractionThatItWasAskedFor) {
  run([&]<class T>() {
    for (const auto& [loss, a] :
         {std::pair{squared_case(), 1.0}, {weighted_case(0.05, 1), 0.05}, {taylor_case(), 1.0}}) {
      SCOPED_TRACE(loss.label);
      LayerOptions options{.outputs = 25, .dim = 2};
      options.loss = loss.loss;
      const auto layer = make_layer<T>(GetParam(), options);
      Minibatch minibatch;
      minibatch.outputs = 25;
      minibatch.offsets = {0, 0, 0};
      minibatch.H = Matrix<double>(2, 2);
      minibatch.H(0, 0) = 2;  // orthogonal: ‖H diag(√w)‖₂² is the larger of 4 w₀ and 9 w₁
      minibatch.H(1, 1) = 3;
      const auto eta = [&](double lambda) {
        const TypedMinibatch<T> typed(minibatch);
        return layer->eta_for(typed.H, typed.targets(), lambda);
      };
      EXPECT_NEAR(2 * a * eta(0.25) * 9, 0.25, 1e-4);
      EXPECT_EQ(eta(0), 0);
      minibatch.weights = {4, 0.5};
      EXPECT_NEAR(2 * a * eta(0.25) * 16, 0.25, 1e-4);
      expect_throw<std::invalid_argument>([&] { eta(-1); }, {"lambda = -1"});
      expect_throw<std::invalid_argument>([&] { eta(NAN); }, {"lambda = nan"});
      minibatch.H = Matrix<double>(2, 2);
      EXPECT_EQ(eta(0.25), 0);
      EXPECT_EQ(layer->steps(), 0);
    }
  });
}

// ── questions ───────────────────────────────────────────────────────────────────────────────────

/// A layer after some steps, most of whose rows were never named: they have moved by U and ω alone.
template <class T>
BesideLossOracle<T> trained(const HeadCase& head, const LossCase& loss, Size D = 40, Size d = 6) {
  BesideLossOracle<T> pair(head, loss, {.outputs = D, .dim = d, .initial = Initial::normal, .seed = 3});
  Dice dice(74 * seeds(1).front());
  for (int t = 0; t < 25; ++t) {
    auto batch = pair.make(dice, {D, d, 3, 2});
    pair.step(batch);
  }
  return pair;
}

TEST_P(HeadTest, ScoresTopKAndWeightsHaveThePartThatAllOutputsShare) {
  run([&]<class T>() {
    for (const auto& loss : losses()) {
      if (!uses_sum(loss.loss)) continue;
      SCOPED_TRACE(loss.label);
      const auto pair = trained<T>(GetParam(), loss);
      const double slack = pair.limit() * pair.oracle.W_scale;
      const auto H = Dice(75 * seeds(1).front()).matrix<T>(6, 4);
      const auto O = pair.oracle.outputs(to_double(H));
      for (const auto& [first, count] : {std::pair<Size, Size>{0, 40}, {39, 1}, {7, 9}}) {
        Padded<T> out(6, count);
        pair.layer->weights(first, out);
        EXPECT_TRUE(is_near<T>(out, pair.oracle.W.view().columns(first, count), 1, slack));
        EXPECT_TRUE(out.rim_is_intact());
      }
      for (const auto& rows : {std::vector<Index>{39, 0, 7, 7, 3}, {4, 5, 6, 7}}) {
        const auto count = static_cast<Size>(rows.size());
        Matrix<double> truth(count, 4);
        for (Size j = 0; j < 4; ++j) {
          for (Size r = 0; r < count; ++r) truth(r, j) = O(rows[static_cast<std::size_t>(r)], j);
        }
        Padded<T> out(count, 4);
        pair.layer->scores(H, rows, out);
        EXPECT_TRUE(is_near<T>(out, truth, norm(H), slack));
        EXPECT_TRUE(out.rim_is_intact());
      }
      const auto top = pair.layer->top_k(H, 5);
      for (Size j = 0; j < 4; ++j) {
        std::vector<double> sorted(O.view().column(j), O.view().column(j) + 40);
        std::sort(sorted.rbegin(), sorted.rend());
        for (Size i = 0; i < 5; ++i) {
          EXPECT_NEAR(static_cast<double>(top.scores(i, j)), sorted[static_cast<std::size_t>(i)], norm(H) * slack);
          EXPECT_NEAR(O(top.outputs(i, j), j), sorted[static_cast<std::size_t>(i)], norm(H) * slack);
        }
      }
    }
  });
}

TEST_P(HeadTest, LogProbIsThatOfTheDefinitionByEntryAsGiven) {
  run([&]<class T>() {
    for (const auto& loss : softmax_losses()) {
      SCOPED_TRACE(loss.label);
      const auto pair = trained<T>(GetParam(), loss);
      Dice dice(76 * seeds(1).front());
      const auto minibatch = pair.make(dice, {40, 6, 8, 5, true});
      const TypedMinibatch<T> typed(minibatch);
      const auto O = pair.oracle.outputs(minibatch.H);
      std::vector<double> log_p(minibatch.indices.size());
      const auto W = pair.layer->weights();
      pair.layer->log_prob(typed.H, typed.targets(), log_p);
      EXPECT_TRUE(is_identical<T>(pair.layer->weights(), W));
      // Poles are half their size away at least: what o is off by counts 4/ε at most, or 2/√ε.
      const double slack = pair.limit() * pair.oracle.W_scale * norm(minibatch.H) * 40;
      double sum = 0, total = 0;
      for (Size j = 0; j < 8; ++j) {
        const std::span<const double> o(O.view().column(j), 40);
        for (std::size_t k = 0; k < 5; ++k) {
          const std::size_t e = static_cast<std::size_t>(j) * 5 + k;
          const Target target{minibatch.indices[e], 1};
          const double truth = -loss.define(o, {&target, 1}).loss;
          EXPECT_NEAR(log_p[e], truth, slack) << "entry " << e;
          sum += minibatch.values[e] * truth;
          total += minibatch.values[e];
        }
      }
      const double perplexity = std::exp(-sum / total);
      EXPECT_NEAR(pair.layer->perplexity(typed.H, typed.targets()), perplexity, perplexity * slack);
      EXPECT_EQ(pair.layer->steps(), 25);
    }
  });
}

TEST_P(HeadTest, ProbabilitiesOfAllOutputsAddUpToOne) {
  run([&]<class T>() {
    for (const auto& loss : softmax_losses()) {
      SCOPED_TRACE(loss.label);
      const auto pair = trained<T>(GetParam(), loss);
      const auto H = Dice(77 * seeds(1).front()).matrix<T>(6, 5);
      std::vector<Index> rows(40);
      std::iota(rows.begin(), rows.end(), 0);
      Padded<double> p(40, 5);
      const double slack = sizeof(T) == 4 ? 1e-5 : 1e-12;
      pair.layer->probabilities(H, rows, p);
      EXPECT_TRUE(p.rim_is_intact());
      const auto O = pair.oracle.outputs(to_double(H));
      for (Size j = 0; j < 5; ++j) {
        double sum = 0;
        for (Size i = 0; i < 40; ++i) {
          const Target target{static_cast<Index>(i), 1};
          const double truth = std::exp(-loss.define({O.view().column(j), 40}, {&target, 1}).loss);
          EXPECT_NEAR(p.view()(i, j), truth, slack) << i << ", " << j;
          sum += p.view()(i, j);
        }
        EXPECT_NEAR(sum, 1, slack) << "example " << j;
      }
      // some of them, in any order
      const std::vector<Index> some{31, 2, 2, 17};
      Padded<double> q(4, 5);
      pair.layer->probabilities(H, some, q);
      for (Size j = 0; j < 5; ++j) {
        for (Size r = 0; r < 4; ++r) {
          EXPECT_NEAR(q.view()(r, j), p.view()(some[static_cast<std::size_t>(r)], j), slack) << r << ", " << j;
        }
      }
      EXPECT_TRUE(q.rim_is_intact());
    }
  });
}

TEST_P(HeadTest, RefusesProbabilitiesOfALossThatHasNone) {
  run([&]<class T>() {
    Dice dice(78);
    const auto minibatch = make_minibatch(dice, {20, 4, 2, 1});
    const TypedMinibatch<T> typed(minibatch);
    std::vector<double> log_p(2), wrong(3);
    for (const auto& loss : {squared_case(), weighted_case(0.05, 1), z_case(0.05, 40), own_case()}) {
      LayerOptions options{.outputs = 20, .dim = 4};
      options.loss = loss.loss;
      const auto layer = make_layer<T>(GetParam(), options);
      const std::vector<std::string> words{name_of(loss.loss), "no probabilities"};
      expect_throw<std::invalid_argument>([&] { layer->log_prob(typed.H, typed.targets(), log_p); }, words);
      expect_throw<std::invalid_argument>([&] { layer->perplexity(typed.H, typed.targets()); }, words);
      const std::vector<Index> rows{3};
      expect_throw<std::invalid_argument>([&] { layer->probabilities(typed.H, rows, Matrix<double>(1, 2)); }, words);
    }
    LayerOptions options{.outputs = 20, .dim = 4};
    options.loss = TaylorSoftmax{};
    const auto layer = make_layer<T>(GetParam(), options);
    expect_throw<std::invalid_argument>([&] { layer->log_prob(typed.H, typed.targets(), wrong); },
                                        {"3 values", "2 targets"});
    const std::vector<Index> rows{3, 20};
    expect_throw<std::invalid_argument>([&] { layer->probabilities(typed.H, rows, Matrix<double>(2, 2)); },
                                        {"rows[1] = 20", "D = 20"});
    expect_throw<std::invalid_argument>([&] { layer->probabilities(typed.H, {}, Matrix<double>(2, 2)); }, {"2 x 2"});
    // a perplexity is a mean: over nothing there is none
    const std::vector<std::int64_t> offsets{0, 1, 2};
    const std::vector<Index> indices{3, 5};
    const std::vector<T> zeros{0, 0}, cancel{1, -1};
    for (const auto& values : {zeros, cancel}) {
      const SparseBatch<T> targets(20, offsets, indices, values);
      expect_throw<std::invalid_argument>([&] { layer->perplexity(typed.H, targets); }, {"add up to 0"});
    }
    const std::vector<std::int64_t> none{0, 0, 0};
    expect_throw<std::invalid_argument>([&] { layer->perplexity(typed.H, SparseBatch<T>(20, none, {}, {})); },
                                        {"add up to 0"});
  });
}

// ── losses that are refused, and their layers as before ─────────────────────────────────────────

/// A loss of the user's that can be told to misbehave at the example with the most targets.
struct Unruly {
  std::function<void(LossValue&, std::span<double>)> mischief;
};

/// Twin layers with such a loss: one is provoked, and then both must go on alike.
template <class T>
class Twins {
 public:
  explicit Twins(const HeadCase& head, bool declared = true) {
    for (std::size_t k = 0; k < 2; ++k) {
      const auto honest = own_loss().function;
      const auto function = [honest, declared, unruly = unruly_[k]](LossInput x, std::span<double> g) {
        if (!declared) x.s = 0;
        auto value = honest(x, g);
        if (unruly->mischief && x.o.size() > 1) unruly->mischief(value, g);
        return value;
      };
      LayerOptions options{.outputs = 20, .dim = 4, .initial = Initial::normal};
      options.loss = CustomLoss{.function = function, .uses_sum = declared, .name = "unruly"};
      layers_[k] = make_layer<T>(head, options);
    }
    for (int t = 0; t < 7; ++t) go_on();
  }

  template <class Error>
  void expect_refused(const std::vector<std::string>& words,
                      const std::function<void(LossValue&, std::span<double>)>& mischief) {
    auto minibatch = make_minibatch(dice_, {20, 4, 3, 3});
    minibatch.indices = {1, 1, 1, 4, 7, 9, 2, 2, 2};  // the example in the middle is provoked, the third has one target
    const TypedMinibatch<T> typed(minibatch);
    for (const bool step : {true, false}) {
      unruly_[0]->mischief = mischief;
      const auto provoke = [&] {
        if (step) {
          layers_[0]->step(typed.H, typed.targets(), 0.01);
        } else {
          layers_[0]->evaluate(typed.H, typed.targets());
        }
      };
      expect_throw<Error>(provoke, words);
      unruly_[0]->mischief = nullptr;
      compare();
      go_on();
      compare();
    }
  }

 private:
  void compare() {
    EXPECT_TRUE(is_identical<T>(layers_[0]->weights(), layers_[1]->weights())) << "W";
    EXPECT_TRUE(is_identical<T>(layers_[0]->gram(), layers_[1]->gram())) << "Q";
    EXPECT_TRUE(is_identical<T>(layers_[0]->sum_of_rows(), layers_[1]->sum_of_rows())) << "w̄";
    EXPECT_EQ(layers_[0]->steps(), layers_[1]->steps());
  }
  void go_on() {
    const TypedMinibatch<T> typed(make_minibatch(dice_, {20, 4, dice_.between(1, 5), 3, true}));
    Matrix<T> a(4, typed.H.cols()), b(4, typed.H.cols());
    EXPECT_EQ(layers_[0]->step(typed.H, typed.targets(), 0.02, a), layers_[1]->step(typed.H, typed.targets(), 0.02, b));
    EXPECT_TRUE(is_identical<T>(a, b)) << "∇H";
  }

  Dice dice_{79};
  std::array<std::shared_ptr<Unruly>, 2> unruly_{std::make_shared<Unruly>(), std::make_shared<Unruly>()};
  std::array<std::unique_ptr<OutputLayer<T>>, 2> layers_;
};

TEST_P(HeadTest, RefusesALossThatUsesTheSumAgainstItsDeclaration) {
  run([&]<class T>() {
    Twins<T> twins(GetParam(), false);
    twins.template expect_refused<std::invalid_argument>({"unruly", "∂L/∂s = 0.5", "example 1", "not to use the sum"},
                                                         [](LossValue& value, std::span<double>) { value.b = 0.5; });
  });
}

TEST_P(HeadTest, RefusesALossThatIsNotFinite) {
  run([&]<class T>() {
    Twins<T> twins(GetParam());
    for (const double bad : {double(NAN), double(INFINITY), -double(INFINITY)}) {
      const auto refuse = [&](const std::function<void(LossValue&, std::span<double>)>& mischief) {
        twins.template expect_refused<NumericalError>({"example 1", "not taken"}, mischief);
      };
      refuse([bad](LossValue& value, std::span<double>) { value.L = bad; });
      refuse([bad](LossValue& value, std::span<double>) { value.a = bad; });
      refuse([bad](LossValue& value, std::span<double>) { value.b = bad; });
      for (const std::size_t k : {0U, 2U}) refuse([bad, k](LossValue&, std::span<double> g) { g[k] = bad; });
      refuse([bad](LossValue& value, std::span<double> g) { value.L = bad, value.a = -bad, g[1] = bad; });
    }
    if (sizeof(T) == 4) {  // finite, but not in float
      const auto refuse = [&](const std::function<void(LossValue&, std::span<double>)>& mischief) {
        twins.template expect_refused<NumericalError>({"example 1"}, mischief);
      };
      refuse([](LossValue& value, std::span<double>) { value.a = 1e100; });
      refuse([](LossValue& value, std::span<double>) { value.b = -1e100; });
      refuse([](LossValue&, std::span<double> g) { g[1] = 1e100; });
      refuse([](LossValue&, std::span<double> g) { g[0] = 1e100, g[2] = -1e100; });  // that cancel in Σg
    }
  });
}

TEST_P(HeadTest, IsAsBeforeWhenALossThrows) {
  run([&]<class T>() {
    Twins<T> twins(GetParam());
    twins.template expect_refused<std::domain_error>(
        {"enough"}, [](LossValue&, std::span<double>) { throw std::domain_error("enough"); });
  });
}

TEST_P(HeadTest, RefusesALossWhoseParametersMakeNoSense) {
  run([&]<class T>() {
    const auto refuse = [&](const Loss& loss, const std::string& word) {
      LayerOptions options{.outputs = 20, .dim = 4};
      options.loss = loss;
      expect_throw<std::invalid_argument>([&] { make_layer<T>(GetParam(), options); }, {name_of(loss), word});
    };
    refuse(SphericalSoftmax{0}, "epsilon = 0");
    refuse(WeightedSquaredError{-1, 1}, "unobserved");
    refuse(ZLoss{.scale = NAN}, "scale");
    refuse(CustomLoss{}, "no function");
  });
}

TEST(ReferenceLayerLossTest, KnowsTheSquaredErrorOnly) {
  for (const auto& loss : losses()) {
    auto options = options_of("reference");
    options.layer.outputs = 20;
    options.layer.dim = 4;
    options.layer.loss = loss.loss;
    const auto make = [&] { make_head<double>(options, make_cpu_backend<double>(1)); };
    if (std::holds_alternative<SquaredError>(loss.loss)) {
      EXPECT_NO_THROW(make());
    } else {
      expect_throw<std::invalid_argument>(make, {"reference", name_of(loss.loss), "squared error"});
    }
  }
}

}  // namespace
}  // namespace widehead::test
