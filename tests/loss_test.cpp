/// Losses as pure functions: their values against the definition from all D outputs, their derivatives
/// against differences, and the points where a formula would divide by 0 or overflow.

#include "widehead/loss.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <vector>

#include "compare.h"
#include "dice.h"
#include "errors.h"
#include "loss_definitions.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

/// What a loss says of (q, s, o_t, y).
struct Answer {
  LossValue value;
  std::vector<double> g;
};
Answer ask(const Loss& loss, double q, double s, double outputs, const std::vector<double>& o,
           const std::vector<double>& y) {
  std::vector<double> g(o.size(), std::numeric_limits<double>::quiet_NaN());
  const LossInput input{q, s, outputs, o, y};
  const auto value = std::visit([&](const auto& function) { return function(input, g); }, loss);
  return {value, g};
}
bool is_finite(const Answer& answer) {
  return std::isfinite(answer.value.L) && std::isfinite(answer.value.a) && std::isfinite(answer.value.b) &&
         std::all_of(answer.g.begin(), answer.g.end(), [](double g) { return std::isfinite(g); });
}

/// A made-up output vector with K targets, and what a loss sees of it.
struct Point {
  std::vector<double> all;  // D
  std::vector<Target> targets;
  double q = 0, s = 0, D = 0;
  double size = 0;  ///< Σ|oᵢ|
  std::vector<double> o, y;

  Point(Dice& dice, const LossCase& loss, Size outputs, Size K, double mean, double spread)
      : D(static_cast<double>(outputs)) {
    do {
      all.clear();
      while (static_cast<Size>(all.size()) < outputs) {
        const double value = mean + spread * dice.normal();
        if (!(std::abs(value - loss.pole) < 0.05)) all.push_back(value);  // the pole has its own tests; NaN is no pole
      }
    } while (moments(all).second < spread / 3);  // as a few may happen to be alike
    for (const double value : all) {
      q += value * value;
      s += value;
      size += std::abs(value);
    }
    for (Size k = 0; k < K; ++k) {  // distinct
      const auto output = static_cast<Index>((k * outputs + dice.between(0, outputs - 1)) / K);
      if (!targets.empty() && targets.back().output == output) continue;
      const double value = loss.y_is_a_value ? dice.normal() : dice.uniform(0.1, 2);
      targets.push_back({output, value});
      o.push_back(all[static_cast<std::size_t>(output)]);
      y.push_back(value);
    }
  }
};

class LossTest : public testing::TestWithParam<LossCase> {
 protected:
  /// Calls check(point) for many.
  template <class Check>
  void for_each_point(const Check& check) {
    for (const auto seed : seeds(3)) {
      Dice dice(seed);
      for (const Size outputs : {3, 7, 40, 1000}) {
        for (const Size K : {0, 1, 3}) {
          for (const double mean : {0.0, 0.7, -0.4}) {
            for (const double spread : {0.1, 1.0, 3.0}) {
              SCOPED_TRACE(fmt::format("seed {}, D = {}, K = {}, mean {}, spread {}", seed, outputs, K, mean, spread));
              check(Point(dice, GetParam(), outputs, K, mean, spread));
              if (HasFailure()) return;
            }
          }
        }
      }
    }
  }
  /// Σ of what L is a sum of: at the scale of q and of logarithms, before anything cancels.
  static double magnitude(const Point& point) {
    double sum = point.q + 1;
    for (std::size_t k = 0; k < point.o.size(); ++k) {
      sum += std::abs(point.y[k]) * (std::abs(point.y[k]) + 2 * std::abs(point.o[k]) + 50);
    }
    return sum;
  }
};

std::vector<LossCase> all_losses() {
  auto losses = default_losses();
  for (auto& other : other_losses()) losses.push_back(other);
  losses.push_back(own_case());
  return losses;
}
std::string loss_case_name(const testing::TestParamInfo<LossCase>& info) {
  auto name = info.param.label;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, LossTest, testing::ValuesIn(all_losses()), loss_case_name);

TEST_P(LossTest, LIsTheDefinitionFromAllOutputs) {
  for_each_point([&](const Point& point) {
    const auto answer = ask(GetParam().loss, point.q, point.s, point.D, point.o, point.y);
    const double truth = GetParam().define(point.all, point.targets).loss;
    // The sums q and s have their roundings, of D terms; a mean of 0.7 and a spread of 0.1 lose another (μ/σ)² = 49 of
    // them.
    const double limit = 50 * tolerance::double_sum(static_cast<Size>(point.D));
    EXPECT_TRUE(is_near(answer.value.L, truth, limit, magnitude(point)));
  });
}

TEST_P(LossTest, TheDerivativesMakeUpTheGradientByAllOutputs) {
  for_each_point([&](const Point& point) {
    const auto [value, g] = ask(GetParam().loss, point.q, point.s, point.D, point.o, point.y);
    const auto truth = GetParam().define(point.all, point.targets).r;
    std::vector<double> r;
    double scale = 0;
    for (const double o : point.all) {  // ∂L/∂oᵢ = 2a oᵢ + b + Γᵢ
      r.push_back(2 * value.a * o + value.b);
      scale += std::abs(2 * value.a * o) + std::abs(value.b);
    }
    for (std::size_t k = 0; k < g.size(); ++k) {
      r[static_cast<std::size_t>(point.targets[k].output)] += g[k];
      scale += std::abs(g[k]);
    }
    const double limit = 50 * tolerance::double_sum(static_cast<Size>(point.D));
    for (std::size_t i = 0; i < r.size(); ++i) ASSERT_TRUE(is_near(r[i], truth[i], limit, scale + 1e-300)) << i;
  });
}

/// f′(0) by differences at a step and its half: what they disagree by bounds what the better one is off by
/// (it is a third of that, f being smooth), and each value of f has a rounding.
struct Slope {
  double value, error;
};
template <class Function>
Slope slope_of(const Function& f, double step, double rounding) {
  const double coarse = (f(step) - f(-step)) / (2 * step), fine = (f(step / 2) - f(-step / 2)) / step;
  return {fine, std::abs(fine - coarse) + 4 * rounding / step};
}

TEST_P(LossTest, DerivativesAreTheSlopesOfLInEachArgument) {
  for_each_point([&](const Point& point) {
    const Loss& loss = GetParam().loss;
    const auto [value, g] = ask(loss, point.q, point.s, point.D, point.o, point.y);
    double rounding = 8 * tolerance::epsilon<double> * magnitude(point);
    double q_step = 1e-4 * point.q, s_step = 1e-4 * point.size;
    if (std::holds_alternative<ZLoss>(loss)) {  // σ² = q/D − μ², which must stay positive and enlarges roundings
      const auto [mean, sigma] = moments(point.all);
      q_step = 1e-4 * point.D * sigma * sigma;
      s_step = q_step / (sigma + std::abs(mean));
      rounding *= 1 + mean * mean / (sigma * sigma);
    }
    const auto expect_slope = [&](const char* what, double derivative, const Slope& slope, double scale) {
      EXPECT_NEAR(derivative, slope.value, slope.error) << what;
      EXPECT_LE(slope.error, 1e-3 * (std::abs(derivative) + scale)) << what << ": the test has no power";
    };
    double sum_y = 0;  // how large the derivatives can be expected, at least in sum
    for (const double y : point.y) sum_y += std::abs(y);
    const double weight = sum_y + 1;
    expect_slope("a", value.a,
                 slope_of([&](double h) { return ask(loss, point.q + h, point.s, point.D, point.o, point.y).value.L; },
                          q_step, rounding),
                 weight / point.q);
    if (uses_sum(loss)) {
      expect_slope(
          "b", value.b,
          slope_of([&](double h) { return ask(loss, point.q, point.s + h, point.D, point.o, point.y).value.L; }, s_step,
                   rounding),
          weight / point.size);
    } else {
      EXPECT_EQ(value.b, 0);
      EXPECT_EQ(ask(loss, point.q, NAN, point.D, point.o, point.y).value.L, value.L) << "it looks at s";
    }
    for (std::size_t k = 0; k < g.size(); ++k) {
      const auto L = [&](double h) {
        auto o = point.o;
        o[k] += h;
        return ask(loss, point.q, point.s, point.D, o, point.y).value.L;
      };
      expect_slope("g", g[k], slope_of(L, 1e-4, rounding), weight);
    }
  });
}

TEST_P(LossTest, AnExampleWithoutTargetsTeachesASoftmaxNothingAndSquaredErrorsZeros) {
  const Loss& loss = GetParam().loss;
  const auto [value, g] = ask(loss, 5.0, -2.0, 40, {}, {});
  if (std::holds_alternative<SquaredError>(loss)) {
    EXPECT_EQ(value.L, 5);
    EXPECT_EQ(value.a, 1);
    EXPECT_EQ(value.b, 0);
  } else if (const auto* weighted = std::get_if<WeightedSquaredError>(&loss)) {
    EXPECT_EQ(value.L, weighted->unobserved * 5);
    EXPECT_EQ(value.a, weighted->unobserved);
    EXPECT_EQ(value.b, 0);
  } else if (!std::holds_alternative<CustomLoss>(loss)) {
    EXPECT_EQ(value.L, 0);
    EXPECT_EQ(value.a, 0);
    EXPECT_EQ(value.b, 0);
  }
}

TEST_P(LossTest, SoftmaxLossesAreMinusTheLogarithmOfTheProbability) {
  const Loss& loss = GetParam().loss;
  for_each_point([&](const Point& point) {
    if (!has_probabilities(loss)) {
      expect_throw<std::invalid_argument>([&] { log_probability(loss, point.q, point.s, point.D, 1); },
                                          {name_of(loss), "no probabilities"});
      return;
    }
    double sum = 0, total = 0;
    for (std::size_t k = 0; k < point.o.size(); ++k) {
      sum -= point.y[k] * log_probability(loss, point.q, point.s, point.D, point.o[k]);
    }
    EXPECT_NEAR(ask(loss, point.q, point.s, point.D, point.o, point.y).value.L, sum, 1e-13 * magnitude(point));
    for (const double o : point.all) total += std::exp(log_probability(loss, point.q, point.s, point.D, o));
    EXPECT_NEAR(total, 1, 50 * tolerance::double_sum(static_cast<Size>(point.D)));
  });
}

// ── spherical softmax: the pole o = −ε, and Z at its floor ──────────────────────────────────────

TEST(SphericalSoftmaxTest, IsFiniteAtThePoleWhereItsGradientIsZero) {
  for (const double epsilon : {0.1, 1.3, 1e-6, 64.0}) {
    const SphericalSoftmax loss{epsilon};
    const auto at_pole = ask(loss, 20, 3, 40, {-epsilon}, {1.5});
    EXPECT_TRUE(is_finite(at_pole));
    EXPECT_EQ(at_pole.g[0], 0);
    const double delta = epsilon / 1000, Z = 20 + 2 * epsilon * 3 + 40 * epsilon * epsilon;
    EXPECT_NEAR(at_pole.value.L, 1.5 * (std::log(Z) - 2 * std::log(delta) + 1), 1e-12 * std::abs(at_pole.value.L));
    EXPECT_NEAR(at_pole.value.a, 1.5 / Z, 1e-14 / Z);
    EXPECT_NEAR(at_pole.value.b, 3 * epsilon / Z, 1e-14 * epsilon / Z);
    // nowhere is it steeper than at the rim of the parabola
    for (double r = -3 * delta; r < 3 * delta; r += delta / 7) {
      const auto answer = ask(loss, 20, 3, 40, {r - epsilon}, {1.5});
      EXPECT_TRUE(is_finite(answer));
      EXPECT_LE(std::abs(answer.g[0]), 3 / delta * (1 + 1e-9)) << "r = " << r;
      EXPECT_LE(answer.value.L, at_pole.value.L * (1 + 1e-12)) << "the pole is the worst";
      EXPECT_LE(answer.g[0] * r, 0) << "away from the pole, on either side";
    }
  }
}

TEST(SphericalSoftmaxTest, HasOneSlopeOnBothSidesOfTheRimOfThePole) {
  for (const double epsilon : {0.1, 1.3}) {
    const SphericalSoftmax loss{epsilon};
    const double delta = epsilon / 1000;
    for (const double side : {-1.0, 1.0}) {
      const auto inside = ask(loss, 20, 3, 40, {side * delta * (1 - 1e-7) - epsilon}, {1});
      const auto outside = ask(loss, 20, 3, 40, {side * delta * (1 + 1e-7) - epsilon}, {1});
      // L moves by its slope 2/δ times the way 2e-7 δ; the slope by a part of 1e-7 or so
      EXPECT_NEAR(inside.value.L, outside.value.L, 5e-7);
      EXPECT_NEAR(inside.g[0], outside.g[0], 5e-7 * 2 / delta);
      EXPECT_NEAR(inside.g[0], -side * 2 / delta, 5e-7 * 2 / delta);
    }
    for (const double r : {-0.9 * delta, -0.3 * delta, 0.2 * delta, 0.8 * delta}) {  // inside, g is the slope of L
      const auto L = [&](double h) { return ask(loss, 20, 3, 40, {r - epsilon + h}, {1}).value.L; };
      const auto slope = slope_of(L, delta / 20, 1e-14 * 30);
      EXPECT_NEAR(ask(loss, 20, 3, 40, {r - epsilon}, {1}).g[0], slope.value, slope.error + 1e-9 / delta);
    }
  }
}

TEST(SphericalSoftmaxTest, KeepsZAboveItsFloor) {
  for (const double epsilon : {0.1, 0.5}) {
    for (const double D : {1.0, 40.0, 1e6}) {
      const SphericalSoftmax loss{epsilon};
      // all outputs at the pole, exactly or missed by roundings: Z is 0 or negative
      for (const double miss : {0.0, 1e-12, -1e-12}) {
        const auto answer = ask(loss, D * epsilon * epsilon * (1 + miss), -D * epsilon, D, {-epsilon}, {2});
        EXPECT_TRUE(is_finite(answer));
        EXPECT_EQ(answer.value.a, 0) << "the floor has no slope";
        EXPECT_EQ(answer.value.b, 0) << "the floor has no slope";
        EXPECT_NEAR(answer.value.L, 2 * (std::log(D) + 1), 1e-9) << "log Dδ² − (log δ² − 1)";
      }
      const auto above = ask(loss, D * epsilon * epsilon * (1 + 1e-5), -D * epsilon, D, {-epsilon}, {2});
      EXPECT_GT(above.value.a, 0);
    }
  }
}

/// The header: "Z is at least Dδ²".
TEST(SphericalSoftmaxTest, LogProbabilityIsNoNaNWhereZIsAtItsFloor) {
  const Loss loss = SphericalSoftmax{0.5};
  for (const double miss : {0.0, 1e-12, -1e-12}) {
    for (const double o : {-0.5, -0.4999}) {
      const double log_p = log_probability(loss, 10 * (1 + miss), -20, 40, o);
      EXPECT_FALSE(std::isnan(log_p)) << "q = 10 (1 + " << miss << "), o = " << o;
      EXPECT_LE(log_p, 0) << "q = 10 (1 + " << miss << "), o = " << o;
    }
  }
}

// ── the others ──────────────────────────────────────────────────────────────────────────────────

TEST(SphericalSoftmaxOutsideTest, HasNoGradientAtOutputZero) {
  for (const double epsilon : {0.01, 3.0}) {
    const auto answer = ask(SphericalSoftmaxOutside{epsilon}, 0, 0, 40, {0, 0}, {1, 2});
    EXPECT_EQ(answer.g[0], 0);
    EXPECT_EQ(answer.g[1], 0);
    EXPECT_NEAR(answer.value.L, 3 * std::log(40), 1e-13) << "p = 1/D";
    EXPECT_NEAR(answer.value.a, 3 / (40 * epsilon), 1e-12 / epsilon);
  }
}

TEST(TaylorSoftmaxTest, IsUniformAtOutputsZeroAndHasNoPole) {
  const auto answer = ask(TaylorSoftmax{}, 0, 0, 40, {0}, {1});
  EXPECT_NEAR(answer.value.L, std::log(40), 1e-14);
  EXPECT_EQ(answer.g[0], -1);
  const auto lowest = ask(TaylorSoftmax{}, 1, -1, 40, {-1}, {1});  // 1 + o + o²/2 is 1/2 there
  EXPECT_EQ(lowest.g[0], 0);
  EXPECT_NEAR(lowest.value.L, std::log(79), 1e-14);
}

TEST(ZLossTest, OfOutputsThatAreAllAlikeTakesSigmaMin) {
  const ZLoss loss{.scale = 0.5, .shift = 3, .sigma_min = 0.25};
  for (const double c : {0.0, 0.75, -2.0}) {  // W = 0 is c = 0
    const auto answer = ask(loss, 40 * c * c, 40 * c, 40, {c}, {2});
    EXPECT_TRUE(is_finite(answer));
    const double u = 1.5, sigmoid = 1 / (1 + std::exp(-u));
    EXPECT_NEAR(answer.value.L, 2 * std::log1p(std::exp(u)) / 0.5, 1e-13);
    EXPECT_EQ(answer.value.a, 0) << "σ is a constant";
    EXPECT_NEAR(answer.g[0], -2 * sigmoid / 0.25, 1e-13);
    EXPECT_NEAR(answer.value.b, 2 * sigmoid / (0.25 * 40), 1e-14);
  }
  // Rounding makes the variance negative; the default σ_min is finite as well.
  EXPECT_TRUE(is_finite(ask(loss, 39.999999, 40, 40, {1}, {2})));
  const auto by_default = ask(ZLoss{}, 0, 0, 40, {0}, {1});
  EXPECT_TRUE(is_finite(by_default));
  EXPECT_NEAR(by_default.g[0] * 1e-6, -1 / (1 + std::exp(-2)), 1e-12);
}

TEST(ZLossTest, SigmaPassesContinuouslyIntoSigmaMin) {
  const ZLoss loss{.scale = 0.5, .shift = 3, .sigma_min = 0.25};
  const double D = 40, limit = D * (0.0625 + 0.01);  // q at which σ = σ_min, μ being 0.1
  const auto below = ask(loss, limit * (1 - 1e-9), 4, D, {0.6}, {2}),
             above = ask(loss, limit * (1 + 1e-9), 4, D, {0.6}, {2});
  EXPECT_NEAR(below.value.L, above.value.L, 1e-7);
  EXPECT_NEAR(below.g[0], above.g[0], 1e-7);
  EXPECT_EQ(below.value.a, 0);
  EXPECT_GT(above.value.a, 0);
}

TEST(ZLossTest, SoftplusOverflowsOnNeitherSide) {
  for (const double shift : {1e3, 1e8, -1e3, -1e8, 1e300, -1e300}) {
    const ZLoss loss{.scale = 7, .shift = shift};
    const auto answer = ask(loss, 50, 3, 40, {0.5}, {1});
    EXPECT_TRUE(is_finite(answer)) << "shift " << shift;
    if (shift > 0) {
      EXPECT_NEAR(answer.value.L, shift, 1 + 1e-10 * shift) << "softplus(u) is u";
      EXPECT_LT(answer.g[0], 0);
    } else {
      EXPECT_EQ(answer.value.L, 0) << "softplus(u) is 0";
      EXPECT_EQ(answer.g[0], 0);
    }
  }
}

TEST(Losses, StaysFiniteForManyOutputsAndLargeConstants) {
  const double D = 2e9;
  for (const double epsilon : {1e-6, 1.0, 1e6, 1e100}) {
    EXPECT_TRUE(is_finite(ask(SphericalSoftmax{epsilon}, 3, -2, D, {0.5, -1}, {1, 2}))) << epsilon;
    EXPECT_TRUE(is_finite(ask(SphericalSoftmaxOutside{epsilon}, 3, -2, D, {0.5, -1}, {1, 2}))) << epsilon;
  }
  EXPECT_NEAR(ask(SphericalSoftmaxOutside{1e100}, 3, 0, D, {0.5}, {1}).value.L, std::log(D), 1e-12);
  EXPECT_TRUE(is_finite(ask(TaylorSoftmax{}, 1e200, -2, D, {0.5, -1}, {1, 2})));
  EXPECT_TRUE(is_finite(ask(ZLoss{}, 1e200, 1e90, D, {1e90, -1}, {1, 2})));
  EXPECT_TRUE(is_finite(ask(ZLoss{}, 1e-30, 1e-18, D, {1e-17, -1}, {1, 2})));
}

// ── names and parameters ────────────────────────────────────────────────────────────────────────

TEST(Losses, NamesMakeTheLossesTheyName) {
  const std::vector<std::string_view> expected{"squared", "weighted", "spherical", "spherical-outside", "taylor", "z"};
  EXPECT_EQ(std::vector<std::string_view>(loss_names().begin(), loss_names().end()), expected);
  for (const auto name : loss_names()) {
    SCOPED_TRACE(name);
    const Loss loss = make_loss(name);
    EXPECT_EQ(name_of(loss), name);
    EXPECT_NO_THROW(check(loss));
    EXPECT_EQ(uses_sum(loss), name == "spherical" || name == "taylor" || name == "z");
    EXPECT_EQ(has_probabilities(loss), name == "spherical" || name == "spherical-outside" || name == "taylor");
  }
  const auto losses = default_losses();
  for (std::size_t k = 0; k < losses.size(); ++k) {  // with the parameters that are the documented defaults
    const Loss loss = make_loss(loss_names()[k]);
    EXPECT_EQ(loss.index(), losses[k].loss.index());
    const auto one = ask(loss, 20, 3, 40, {0.5}, {1}), other = ask(losses[k].loss, 20, 3, 40, {0.5}, {1});
    EXPECT_EQ(one.value.L, other.value.L) << losses[k].label;
  }
  EXPECT_EQ(std::get<ZLoss>(make_loss("z")).sigma_min, 1e-6);
}

TEST(Losses, CurvatureIsAWhereThatIsAConstantAndElseOne) {
  EXPECT_EQ(curvature(SquaredError{}), 1);
  EXPECT_EQ(curvature(WeightedSquaredError{.unobserved = 0.25}), 0.25);
  EXPECT_EQ(curvature(WeightedSquaredError{.unobserved = 0}), 1) << "a rate must not be divided by 0";
  for (const auto* name : {"spherical", "spherical-outside", "taylor", "z"}) EXPECT_EQ(curvature(make_loss(name)), 1);
  EXPECT_EQ(curvature(own_loss()), 1);
}

TEST(Losses, RefusesAnUnknownNameWithTheListOfTheKnown) {
  for (const auto* name : {"softmax", "", "Squared", "custom", "squared "}) {
    expect_throw<std::invalid_argument>(
        [&] { make_loss(name); },
        {fmt::format("'{}'", name), "squared, weighted, spherical, spherical-outside, taylor, z"});
  }
}

TEST(Losses, ACustomLossHasTheNameAndTheUsesOfItsUser) {
  Loss loss = own_loss();
  EXPECT_EQ(name_of(loss), "own");
  EXPECT_TRUE(uses_sum(loss));
  EXPECT_FALSE(has_probabilities(loss));
  EXPECT_NO_THROW(check(loss));
  std::get<CustomLoss>(loss).uses_sum = false;
  EXPECT_FALSE(uses_sum(loss));
  expect_throw<std::invalid_argument>([] { check(CustomLoss{}); }, {"custom", "no function"});
  expect_throw<std::invalid_argument>([] { check(CustomLoss{.function = nullptr, .name = "mine"}); },
                                      {"mine", "no function"});
}

TEST(Losses, RefusesParametersThatMakeNoSenseByName) {
  const auto refuse = [](const Loss& loss, const std::string& parameter) {
    expect_throw<std::invalid_argument>([&] { check(loss); }, {name_of(loss), parameter});
  };
  for (const double bad : {-1.0, -1e-300, double(NAN), double(INFINITY), -double(INFINITY)}) {
    refuse(WeightedSquaredError{.unobserved = bad}, fmt::format("unobserved (w₀) = {}", bad));
    refuse(WeightedSquaredError{.observed = bad}, fmt::format("observed (w₁) = {}", bad));
  }
  for (const double bad : {0.0, -1.0, double(NAN), double(INFINITY), -double(INFINITY)}) {
    refuse(SphericalSoftmax{bad}, fmt::format("epsilon = {}", bad));
    refuse(SphericalSoftmaxOutside{bad}, fmt::format("epsilon = {}", bad));
    refuse(ZLoss{.scale = bad}, fmt::format("scale (α) = {}", bad));
    refuse(ZLoss{.sigma_min = bad}, fmt::format("sigma_min = {}", bad));
  }
  for (const double bad : {double(NAN), double(INFINITY), -double(INFINITY)}) {
    refuse(ZLoss{.shift = bad}, fmt::format("shift (β) = {}", bad));
  }
  EXPECT_NO_THROW(check(WeightedSquaredError{0, 0}));
  EXPECT_NO_THROW(check(ZLoss{.scale = 1, .shift = -5}));
}

}  // namespace
}  // namespace widehead::test
