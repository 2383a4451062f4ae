/// Backend: losses of a minibatch against their definition by all outputs, and the elementwise part of a softmax.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend_under_test.h"
#include "compare.h"
#include "loss_definitions.h"
#include "oracle.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

WIDEHEAD_ON_ALL_BACKENDS;

/// What a loss sees of outputs O (D x m), and room for its answers.
template <class T>
struct Case {
  Case(Backend<T>& backend, const Minibatch& minibatch, const Matrix<double>& O)
      : typed(minibatch),
        q(backend, O.cols(), 1),
        s(backend, O.cols(), 1),
        a(backend, O.cols(), 1),
        b(backend, O.cols(), 1),
        gamma(backend, O.cols(), 1),
        o(backend, groups_of(typed).nonzeros(), 1),
        g(backend, groups_of(typed).nonzeros(), 1) {
    groups.assign(typed.targets());
    for (const auto& weight : minibatch.weights) weights.push_back(static_cast<T>(weight));
    for (Size j = 0; j < O.cols(); ++j) {
      q.host()(j, 0) = s.host()(j, 0) = 0;
      for (Size i = 0; i < O.rows(); ++i) {
        q.host()(j, 0) += O(i, j) * O(i, j);
        s.host()(j, 0) += O(i, j);
      }
    }
    for (Size e = 0; e < groups.nonzeros(); ++e) o.host()(e, 0) = O(groups.entry(e).row, groups.entry(e).example);
    for (auto* answer : {&a, &b, &gamma, &g}) answer->fill(std::numeric_limits<T>::quiet_NaN());
  }

  Verdict judge(Backend<T>& backend, const Loss& loss, Size outputs) {
    return backend.judge(loss, outputs, groups, weights,
                         {q.device(), s.device(), o.device(), a.device(), b.device(), gamma.device(), g.device()});
  }
  void judge_later(Backend<T>& backend, const Loss& loss, Size outputs, Both<double>& ledger) {
    backend.judge_later(loss, outputs, groups, weights,
                        {q.device(), s.device(), o.device(), a.device(), b.device(), gamma.device(), g.device()},
                        ledger.device());
  }
  bool rims_are_intact() {
    const auto intact = [](auto& matrix) { return static_cast<bool>(matrix.rim_is_intact()); };
    return intact(q) && intact(s) && intact(o) && intact(a) && intact(b) && intact(gamma) && intact(g);
  }

  static RowGroups<T> groups_of(const TypedMinibatch<T>& minibatch) {
    RowGroups<T> groups;
    groups.assign(minibatch.targets());
    return groups;
  }

  TypedMinibatch<T> typed;
  RowGroups<T> groups;
  std::vector<T> weights;
  Both<double> q, s;
  Both<T> a, b, gamma;
  Both<double> o;
  Both<T> g;
};

/// The targets of an example as the definitions take them: each output once.
template <class T>
std::vector<Target> targets_of(const RowGroups<T>& groups, Size example) {
  std::vector<Target> targets;
  for (const Index e : groups.of_example(example)) {
    targets.push_back({groups.entry(e).row, static_cast<double>(groups.entry(e).value)});
  }
  return targets;
}

std::vector<LossCase> all_losses() {
  auto losses = default_losses();
  for (const auto& loss : other_losses()) losses.push_back(loss);
  losses.push_back(own_case());
  return losses;
}

TEST_P(BackendTest, JudgeGivesLossAndDerivativesOfEveryExample) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(81);
    for (const auto& loss : all_losses()) {
      for (const MinibatchShape& shape : std::vector<MinibatchShape>{
               {5, 1, 1, 0}, {5, 1, 1, 1}, {40, 1, 9, 3}, {40, 1, 70, 2, true}, {60, 1, 700, 1}}) {
        SCOPED_TRACE(fmt::format("{}: D = {}, m = {}, K = {}", loss.label, shape.outputs, shape.batch, shape.nonzeros));
        const auto minibatch = make_minibatch(dice, shape);
        const auto O = dice.matrix<double>(shape.outputs, shape.batch);
        Case<T> x(backend, minibatch, O);
        const auto verdict = x.judge(backend, loss.loss, shape.outputs);
        EXPECT_EQ(verdict.bad, -1);

        // Roundings to T, and those of the sums over all outputs that the derivatives are made of, which may cancel:
        // the variance of the Z-loss is q/D − μ².
        const double limit = 4 * tolerance::epsilon<T> + 16 * tolerance::double_sum(shape.outputs);
        double L = 0, L_scale = 0, largest_a = 0;
        bool a_is_one = true;
        for (Size j = 0; j < shape.batch; ++j) {
          const auto weight = x.weights.empty() ? 1.0 : static_cast<double>(x.weights[static_cast<std::size_t>(j)]);
          const auto targets = targets_of(x.groups, j);
          const auto truth = loss.define({O.view().column(j), static_cast<std::size_t>(shape.outputs)}, targets);
          L += weight * truth.loss;
          L_scale += weight * (std::abs(truth.loss) + x.q(j, 0));
          for (const auto& target : targets) L_scale += weight * target.y * target.y;
          largest_a = std::max(largest_a, std::abs(static_cast<double>(x.a(j, 0))));
          a_is_one = a_is_one && x.a(j, 0) == T(1);
          // ∂L/∂oᵢ = 2a oᵢ + b, and g besides at the targets
          std::vector<double> r, scale;
          for (Size i = 0; i < shape.outputs; ++i) {
            const double from_q = 2 * static_cast<double>(x.a(j, 0)) * O(i, j), from_s = static_cast<double>(x.b(j, 0));
            r.push_back(from_q + from_s);
            scale.push_back(std::abs(from_q) + std::abs(from_s));
          }
          double gamma = 0, gamma_scale = 0;
          for (const Index e : x.groups.of_example(j)) {
            const auto g = static_cast<double>(x.g(e, 0));
            r[static_cast<std::size_t>(x.groups.entry(e).row)] += g;
            scale[static_cast<std::size_t>(x.groups.entry(e).row)] += std::abs(g);
            gamma += g;
            gamma_scale += std::abs(g);
          }
          for (std::size_t i = 0; i < r.size(); ++i) {
            ASSERT_TRUE(is_near(r[i], weight * truth.r[i], limit, scale[i] + 1e-12))
                << "example " << j << ", output " << i;
          }
          ASSERT_TRUE(is_near(static_cast<double>(x.gamma(j, 0)), gamma, 4 * tolerance::epsilon<T>, gamma_scale)) << j;
        }
        EXPECT_TRUE(is_near(verdict.L, L, tolerance::double_sum(shape.batch + shape.outputs), L_scale));
        EXPECT_EQ(verdict.largest_a, largest_a);
        EXPECT_TRUE(!verdict.a_is_one || a_is_one) << "the layer would leave a out";
        if (backend.device() == "cpu") {
          EXPECT_EQ(verdict.a_is_one, a_is_one);
        }
        EXPECT_TRUE(x.rims_are_intact());
      }
    }
  });
}

TEST_P(BackendTest, JudgeTwiceIsBitIdentical) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(82);
    const auto minibatch = make_minibatch(dice, {300, 1, 500, 3, true});
    const auto O = dice.matrix<double>(300, 500);
    Case<T> x(backend, minibatch, O), again(backend, minibatch, O);
    const auto verdict = x.judge(backend, SphericalSoftmax{}, 300);
    for (int k = 0; k < 3; ++k) {
      EXPECT_EQ(again.judge(backend, SphericalSoftmax{}, 300).L, verdict.L);
      EXPECT_TRUE(is_identical<T>(again.g.host(), x.g.host()));
      EXPECT_TRUE(is_identical<T>(again.gamma.host(), x.gamma.host()));
    }
  });
}

TEST_P(BackendTest, JudgeLaterKeepsAccountsOfWhatJudgeSays) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(88);
    const auto minibatch = make_minibatch(dice, {40, 1, 300, 2, true});
    const auto O = dice.matrix<double>(40, 300);
    for (const auto& loss : std::vector<Loss>{SquaredError{}, TaylorSoftmax{}, own_loss()}) {
      SCOPED_TRACE(name_of(loss));
      Case<T> x(backend, minibatch, O), later(backend, minibatch, O);
      Both<double> ledger(backend, Matrix<double>(2, 1));
      const auto verdict = x.judge(backend, loss, 40);
      for (int k = 0; k < 3; ++k) later.judge_later(backend, loss, 40, ledger);
      EXPECT_TRUE(is_near(ledger(0, 0), 3 * verdict.L, tolerance::double_sum(3), 3 * std::abs(verdict.L)));
      EXPECT_EQ(ledger(1, 0), 0);
      EXPECT_TRUE(is_identical<T>(later.a.host(), x.a.host()) && is_identical<T>(later.b.host(), x.b.host()));
      EXPECT_TRUE(is_identical<T>(later.g.host(), x.g.host()) && is_identical<T>(later.gamma.host(), x.gamma.host()));
      later.q.host()(299, 0) = std::numeric_limits<double>::infinity();
      later.judge_later(backend, loss, 40, ledger);
      EXPECT_GE(ledger(1, 0), 1);
      EXPECT_TRUE(ledger.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, JudgeNamesTheFirstExampleThatIsNotFinite) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(83);
    const auto minibatch = make_minibatch(dice, {40, 1, 300, 2});
    const auto O = dice.matrix<double>(40, 300);
    for (const auto& loss : std::vector<Loss>{SquaredError{}, TaylorSoftmax{}, own_loss()}) {
      SCOPED_TRACE(name_of(loss));
      Case<T> x(backend, minibatch, O);
      x.q.host()(271, 0) = std::numeric_limits<double>::infinity();
      x.q.host()(33, 0) = std::numeric_limits<double>::quiet_NaN();
      const auto verdict = x.judge(backend, loss, 40);
      EXPECT_EQ(verdict.bad, 33);
      EXPECT_TRUE(std::isnan(verdict.at_bad.L));
      x.q.host()(33, 0) = x.q.host()(271, 0) = 1;
      EXPECT_EQ(x.judge(backend, loss, 40).bad, -1) << "it does not remember";
      const Index entry = x.groups.of_example(5)[0];
      x.o.host()(entry, 0) = std::numeric_limits<double>::quiet_NaN();
      EXPECT_EQ(x.judge(backend, loss, 40).bad, 5);
    }
  });
}

TEST_P(BackendTest, JudgeRefusesADerivativeThatTCannotHold) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(84);
    const auto minibatch = make_minibatch(dice, {10, 1, 4, 1});
    Case<T> x(backend, minibatch, dice.matrix<double>(10, 4));
    const auto verdict = x.judge(backend, WeightedSquaredError{.unobserved = 1e200, .observed = 1}, 10);
    constexpr bool overflows = std::is_same_v<T, float>;
    EXPECT_EQ(verdict.bad, overflows ? 0 : -1);
    if (overflows) {
      EXPECT_EQ(verdict.at_bad.a, 1e200) << "as the loss gave it";
    }
  });
}

TEST_P(BackendTest, JudgeRefusesALossThatUsesTheSumAndSaysItDoesNot) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(85);
    const auto minibatch = make_minibatch(dice, {10, 1, 4, 1});
    Case<T> x(backend, minibatch, dice.matrix<double>(10, 4));
    CustomLoss loss;
    loss.function = [](const LossInput&, std::span<double>) { return LossValue{0, 0, 1}; };
    loss.uses_sum = false;
    EXPECT_EQ(x.judge(backend, loss, 10).bad, 0);
  });
}

TEST_P(BackendTest, CommonFactorsAreThoseOfTheFormula) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(86);
    for (const Size m : {1, 5, 300}) {
      Both<T> a(backend, dice.matrix<T>(m, 1)), b(backend, dice.matrix<T>(m, 1)), gamma(backend, dice.matrix<T>(m, 1));
      Both<double> ts(backend, dice.matrix<double>(m, 2)), factors(backend, m, 2);
      Both<T> v(backend, m, 1);
      constexpr double eta = 0.375, D = 1000;
      backend.common_factors(eta, 1000, a.device(), b.device(), gamma.device(), ts.device(), factors.device(),
                             v.device());
      for (Size j = 0; j < m; ++j) {
        const auto a_j = static_cast<double>(a(j, 0)), b_j = static_cast<double>(b(j, 0));
        const auto gamma_j = static_cast<double>(gamma(j, 0));
        const double t = ts(j, 0), s = ts(j, 1);
        const double scale =
            4 * std::abs(a_j) * (std::abs(t) + std::abs(s)) + D * std::abs(b_j) + 2 * std::abs(gamma_j);
        ASSERT_TRUE(is_near(factors(j, 0), -eta * (2 * a_j * t + b_j), tolerance::double_sum(4), scale));
        ASSERT_TRUE(is_near(factors(j, 1), -eta * (2 * a_j * s + D * b_j + gamma_j), tolerance::double_sum(4), scale));
        ASSERT_TRUE(is_near(static_cast<double>(v(j, 0)), 4 * a_j * s + 2 * gamma_j + D * b_j,
                            2 * tolerance::epsilon<T>, scale));
      }
      EXPECT_TRUE(factors.rim_is_intact() && v.rim_is_intact());
    }
  });
}

/// Calls check(A, by_row): exponentials along the rows of A, or along its columns.
template <class Check>
void for_each_logits(const Check& check) {
  for (const bool by_row : {true, false}) {
    for (const auto& [rows, cols] : {std::pair<Size, Size>{1, 1},
                                     {1, 100},
                                     {100, 1},
                                     {7, 13},
                                     {64, 3},
                                     {65, 9},
                                     {200, 400},
                                     {128, 3000},
                                     {3, 70000}}) {
      SCOPED_TRACE(fmt::format("{} x {}, along {}", rows, cols, by_row ? "rows" : "columns"));
      check(rows, cols, by_row);
    }
  }
}

TEST_P(BackendTest, RowsAndColumnsAreExponentiatedRelativeToTheirLargest) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(87);
    for_each_logits([&](Size rows, Size cols, bool by_row) {
      auto logits = dice.matrix<T>(rows, cols);
      for (Size i = 0; i < logits.size(); ++i) logits.data()[i] *= T(5);
      const Size count = by_row ? rows : cols, length = by_row ? cols : rows;
      Both<T> A(backend, logits), maxima(backend, count, 1);
      Both<double> sums(backend, count, 1);
      maxima.fill(std::numeric_limits<T>::quiet_NaN());
      sums.fill(NAN);
      if (by_row) {
        backend.exponentiate_rows(A.device(), maxima.device(), sums.device());
      } else {
        backend.exponentiate_columns(A.device(), maxima.device(), sums.device());
      }
      for (Size k = 0; k < count; ++k) {
        const auto at = [&](auto& matrix, Size l) { return by_row ? matrix(k, l) : matrix(l, k); };
        T largest = at(logits, 0);
        for (Size l = 0; l < length; ++l) largest = std::max(largest, at(logits, l));
        ASSERT_EQ(maxima(k, 0), largest) << k;
        double sum = 0;
        for (Size l = 0; l < length; ++l) {
          const auto difference = static_cast<double>(at(logits, l) - largest);  // rounded to T, as there
          const auto power = static_cast<double>(at(A, l));
          ASSERT_NEAR(power, std::exp(difference), 4 * tolerance::epsilon<T> * std::exp(difference)) << k << ", " << l;
          sum += power;
        }
        ASSERT_TRUE(is_near(sums(k, 0), sum, tolerance::double_sum(length), sum)) << k;
      }
      EXPECT_TRUE(A.rim_is_intact() && maxima.rim_is_intact() && sums.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, ExponentialsOfWhatIsNotFinite) {
  run([]<class T>(Backend<T>& backend) {
    using Limits = std::numeric_limits<T>;
    for_each_logits([&](Size rows, Size cols, bool by_row) {
      const Size count = by_row ? rows : cols, length = by_row ? cols : rows;
      if (count < 3 || length < 2) return;
      Both<T> A(backend, rows, cols), maxima(backend, count, 1);
      Both<double> sums(backend, count, 1);
      A.fill(T(2));
      const auto set = [&](Size k, Size l, T value) { (by_row ? A.host()(k, l) : A.host()(l, k)) = value; };
      set(0, length / 2, -Limits::infinity());
      set(1, length - 1, Limits::quiet_NaN());
      set(2, 0, Limits::infinity());
      if (by_row) {
        backend.exponentiate_rows(A.device(), maxima.device(), sums.device());
      } else {
        backend.exponentiate_columns(A.device(), maxima.device(), sums.device());
      }
      EXPECT_EQ(maxima(0, 0), T(2));
      EXPECT_NEAR(sums(0, 0), static_cast<double>(length - 1), 1e-9) << "minus infinity counts as 0";
      EXPECT_FALSE(std::isfinite(sums(1, 0)));
      EXPECT_FALSE(std::isfinite(sums(2, 0)));
      if (count > 3) {
        EXPECT_EQ(sums(3, 0), static_cast<double>(length));
      }
    });
  });
}

}  // namespace
}  // namespace widehead::test
