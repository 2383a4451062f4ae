/// Backend: several operations in one go, each against its definition in plain loops.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "backend_under_test.h"
#include "compare.h"
#include "oracle.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

WIDEHEAD_ON_ALL_BACKENDS;

TEST_P(BackendTest, ExpressColumnsMultipliesEachColumnByItsMatrix) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(91);
    constexpr Index none = Backend<T>::no_column;
    for (const auto& [d, D, matrices, count] : {std::tuple<Size, Size, Size, Size>{1, 1, 1, 1},
                                                {1, 1, 1, 0},
                                                {5, 9, 0, 4},
                                                {7, 30, 3, 40},
                                                {64, 40, 2, 9},
                                                {65, 40, 5, 100},
                                                {300, 20, 3, 37}}) {
      SCOPED_TRACE(fmt::format("d = {}, D = {}, {} matrices, {} columns", d, D, matrices, count));
      const auto V = dice.matrix<T>(d, D), M = dice.matrix<T>(d, d * matrices);
      std::vector<Index> rows, matrix;
      Matrix<double> truth(d, count);
      double scale = 0;
      for (Size k = 0; k < count; ++k) {
        rows.push_back(k % 5 == 3 ? none : static_cast<Index>(dice.between(0, D - 1)));  // some twice
        matrix.push_back(matrices == 0 || k % 4 == 1 ? none : static_cast<Index>(dice.between(0, matrices - 1)));
        if (rows.back() == none) continue;
        for (Size i = 0; i < d; ++i) {
          if (matrix.back() == none) {
            truth(i, k) = static_cast<double>(V(i, rows.back()));
            continue;
          }
          for (Size l = 0; l < d; ++l) {
            truth(i, k) += static_cast<double>(M(i, matrix.back() * d + l)) * static_cast<double>(V(l, rows.back()));
          }
        }
        scale += norm<T>(V.view().columns(rows.back(), 1));
      }
      Both<T> V_there(backend, V), M_there(backend, M), Z(backend, d, count);
      Z.fill(std::numeric_limits<T>::quiet_NaN());
      backend.express_columns(V_there.device(), rows, M_there.device(), matrix, false, Z.device());
      EXPECT_TRUE(is_near<T>(Z.host(), truth, tolerance::product<T>(d), scale * (1 + norm(M))));
      for (Size k = 0; k < count; ++k) {  // what no matrix is for is a copy
        const auto at = static_cast<std::size_t>(k);
        if (rows[at] != none && matrix[at] != none) continue;
        for (Size i = 0; i < d; ++i) ASSERT_EQ(static_cast<double>(Z(i, k)), truth(i, k)) << i << ", " << k;
      }
      EXPECT_TRUE(Z.rim_is_intact());
      // And once more, to what is there.
      backend.express_columns(V_there.device(), rows, M_there.device(), matrix, true, Z.device());
      for (Size k = 0; k < truth.size(); ++k) truth.data()[k] *= 2;
      EXPECT_TRUE(is_near<T>(Z.host(), truth, tolerance::product<T>(d), 2 * scale * (1 + norm(M))));
      EXPECT_TRUE(Z.rim_is_intact());
    }
  });
}

/// Calls check(minibatch, groups, with_sums).
template <class T, class Check>
void for_each_pattern(const Check& check) {
  Dice dice(92);
  for (const MinibatchShape& shape : std::vector<MinibatchShape>{
           {1, 1, 1, 0}, {1, 1, 1, 1}, {9, 1, 5, 1}, {12, 7, 10, 0}, {8, 16, 20, 5}, {2000, 120, 300, 3}}) {
    const auto minibatch = make_minibatch(dice, shape);
    const TypedMinibatch<T> typed(minibatch);
    RowGroups<T> groups;
    groups.assign(typed.targets());
    for (const bool with_sums : {false, true}) {
      SCOPED_TRACE(fmt::format("D = {}, d = {}, m = {}, K = {}, {}", shape.outputs, shape.dim, shape.batch,
                               shape.nonzeros, with_sums ? "with sums" : "without sums"));
      check(minibatch, groups, with_sums);
    }
  }
}

TEST_P(BackendTest, ObserveTargetsGivesNormsAndOutputsInDouble) {
  run([]<class T>(Backend<T>& backend) {
    for_each_pattern<T>([&](const Minibatch& minibatch, const RowGroups<T>& groups, bool with_sums) {
      Dice dice(93);
      const Size d = minibatch.H.rows(), m = minibatch.examples();
      Both<T> H(backend, dice.matrix<T>(d, m)), H_hat(backend, dice.matrix<T>(d, m)), UH(backend, dice.matrix<T>(d, m));
      Both<T> Z(backend, dice.matrix<T>(d, groups.count())), sums(backend, dice.matrix<T>(d, groups.count()));
      Both<double> q(backend, m, 1), o(backend, groups.nonzeros(), 1);
      q.fill(NAN);
      o.fill(NAN);
      backend.observe_targets(H.device(), H_hat.device(), UH.device(), Z.device(),
                              with_sums ? sums.device() : MatrixView<T>(), groups, q.device(), o.device());
      const auto check = [&](double value, std::vector<std::pair<Both<T>*, Size>> columns) {  // pairs to multiply
        double truth = 0, scale = 0;
        for (std::size_t k = 0; k < columns.size(); k += 2) {
          for (Size i = 0; i < d; ++i) {
            const double term = static_cast<double>((*columns[k].first)(i, columns[k].second)) *
                                static_cast<double>((*columns[k + 1].first)(i, columns[k + 1].second));
            truth += term;
            scale += std::abs(term);
          }
        }
        return is_near(value, truth, tolerance::double_sum(2 * d), scale);
      };
      for (Size j = 0; j < m; ++j) ASSERT_TRUE(check(q(j, 0), {{&H, j}, {&H_hat, j}})) << "q of example " << j;
      for (Size g = 0; g < groups.count(); ++g) {
        for (Size e = groups.first_entry(g); e < groups.first_entry(g + 1); ++e) {
          const Size j = groups.entry(e).example;
          std::vector<std::pair<Both<T>*, Size>> pairs = {{&Z, g}, {&UH, j}};
          if (with_sums) pairs.insert(pairs.end(), {{&sums, g}, {&H, j}});
          ASSERT_TRUE(check(o(e, 0), pairs)) << "o of entry " << e;
        }
      }
      EXPECT_TRUE(q.rim_is_intact() && o.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, CombineTargetsOverwritesWithTheSums) {
  run([]<class T>(Backend<T>& backend) {
    for_each_pattern<T>([&](const Minibatch& minibatch, const RowGroups<T>& groups, bool with_sums) {
      Dice dice(94);
      const Size d = minibatch.H.rows(), m = minibatch.examples();
      Both<T> Z(backend, dice.matrix<T>(d, groups.count())), sums(backend, dice.matrix<T>(d, groups.count()));
      Both<T> values(backend, dice.matrix<T>(groups.nonzeros(), 1)), G(backend, d, m), F(backend, d, m);
      Matrix<double> Y(groups.count(), m);
      for (Size g = 0; g < groups.count(); ++g) {
        for (Size e = groups.first_entry(g); e < groups.first_entry(g + 1); ++e) {
          Y(g, groups.entry(e).example) = static_cast<double>(values(e, 0));
        }
      }
      G.fill(std::numeric_limits<T>::quiet_NaN());
      F.fill(T(5));
      backend.combine_targets(Z.device(), with_sums ? sums.device() : MatrixView<T>(), groups, values.device(),
                              G.device(), with_sums ? F.device() : MatrixView<T>());
      const auto z = to_double<T>(Z.host()), s = to_double<T>(sums.host());
      EXPECT_TRUE(is_near<T>(G.host(), product(Op::none, z, Op::none, Y), tolerance::product<T>(8), norm(z) * norm(Y)));
      if (with_sums) {
        EXPECT_TRUE(
            is_near<T>(F.host(), product(Op::none, s, Op::none, Y), tolerance::product<T>(8), norm(s) * norm(Y)));
        G.fill(std::numeric_limits<T>::quiet_NaN());
        backend.combine_targets(Z.device(), sums.device(), groups, values.device(), G.device(), {});
        EXPECT_TRUE(is_near<T>(G.host(), product(Op::none, Op::none, 1, s, Y, 1, product(Op::none, z, Op::none, Y)),
                               tolerance::product<T>(16), (norm(z) + norm(s)) * norm(Y)));
      }
      EXPECT_TRUE(G.rim_is_intact() && F.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, SplitGradientIsItsThreeFormulas) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(95);
    for (const auto& [d, m] : {std::pair<Size, Size>{1, 1}, {7, 3}, {300, 250}}) {
      for (const bool with_a : {true, false}) {
        SCOPED_TRACE(fmt::format("{} x {}, {} a", d, m, with_a ? "with" : "without"));
        Both<T> a(backend, dice.matrix<T>(m, 1)), Gamma_hat(backend, dice.matrix<T>(d, m));
        Both<T> H_hat(backend, dice.matrix<T>(d, m)), grad(backend, d, m), C(backend, d, m);
        Matrix<double> new_H_hat(d, m), gradient(d, m), sum(d, m);
        double squares = 0;
        for (Size j = 0; j < m; ++j) {
          for (Size i = 0; i < d; ++i) {
            const double h = static_cast<double>(H_hat(i, j)) * (with_a ? static_cast<double>(a(j, 0)) : 1);
            const auto gamma = static_cast<double>(Gamma_hat(i, j));
            gradient(i, j) = 2 * h + gamma;
            sum(i, j) = h + gamma;
            new_H_hat(i, j) = -0.375 * gradient(i, j);
            squares += 4 * h * h + gamma * gamma;
          }
        }
        backend.split_gradient(with_a ? a.device() : MatrixView<T>(), Gamma_hat.device(), T(-0.375), H_hat.device(),
                               grad.device(), C.device());
        const double scale = std::sqrt(squares);
        EXPECT_TRUE(is_near<T>(grad.host(), gradient, tolerance::elementwise<T>(), scale));
        EXPECT_TRUE(is_near<T>(C.host(), sum, tolerance::elementwise<T>(), scale));
        EXPECT_TRUE(is_near<T>(H_hat.host(), new_H_hat, tolerance::elementwise<T>(), scale));
        EXPECT_TRUE(grad.rim_is_intact() && C.rim_is_intact() && H_hat.rim_is_intact());
      }
    }
  });
}

/// What a step of a head asks for one after the other, which a device may do together: observe, judge, Γ̂ and the
/// gradient, each of them against what was before it. `changes` something between two of them, which then counts.
template <class T>
void check_from_targets_to_gradient(Backend<T>& backend, const Minibatch& minibatch, const RowGroups<T>& groups,
                                    bool with_sums, const Loss& loss, bool changes) {
  Dice dice(97);
  const Size d = minibatch.H.rows(), m = minibatch.examples(), entries = groups.nonzeros();
  const auto H_hat_before = dice.matrix<T>(d, m);
  Both<T> H(backend, dice.matrix<T>(d, m)), H_hat(backend, H_hat_before), Z(backend, dice.matrix<T>(d, groups.count()));
  Both<T> sums(backend, dice.matrix<T>(d, groups.count())), Gamma_hat(backend, d, m), grad(backend, d, m),
      C(backend, d, m);
  Both<T> a(backend, m, 1), b(backend, m, 1), gamma(backend, m, 1), g(backend, entries, 1);
  Both<double> q(backend, m, 1), s(backend, m, 1), o(backend, entries, 1), ledger(backend, 2, 1);
  ledger.fill(0);
  for (auto* result : {&Gamma_hat, &grad, &C, &a, &g}) result->fill(std::numeric_limits<T>::quiet_NaN());
  const bool is_squared = std::holds_alternative<SquaredError>(loss);
  const auto h = H.device(), h_hat = H_hat.device(), z = Z.device(), gradient = grad.device(), c = C.device();
  const auto sum = with_sums ? sums.device() : MatrixView<T>(), hat = Gamma_hat.device(), values = g.device();
  const Judged<T> judged{q.device(), s.device(), o.device(), a.device(), b.device(), gamma.device(), values};
  const auto book = ledger.device();
  backend.wait();
  backend.observe_targets(h, h_hat, h, z, sum, groups, q.device(), o.device());
  backend.judge_later(loss, minibatch.outputs, groups, {}, judged, book);
  if (changes) backend.scale(T(2), z);
  backend.combine_targets(z, sum, groups, values, hat, {});
  if (changes) backend.scale(T(-1), hat);
  backend.split_gradient(is_squared ? MatrixView<T>() : a.device(), hat, T(0.75), h_hat, gradient, c);

  const auto W = to_double<T>(Z.host()), window = to_double<T>(sums.host());
  Matrix<double> truth_hat(d, m), truth_grad(d, m), truth_C(d, m), truth_H_hat(d, m);
  double scale = 0;
  for (Size j = 0; j < m; ++j) {
    for (Size i = 0; i < d; ++i) {
      for (const Index e : groups.of_example(j)) {
        const Size group = groups.first_group(groups.entry(e).row);
        const double w = W(i, group) + (with_sums ? window(i, group) : 0);
        truth_hat(i, j) += (changes ? -1 : 1) * static_cast<double>(g(e, 0)) * w;
      }
      const double scaled = static_cast<double>(a(j, 0)) * static_cast<double>(H_hat_before(i, j));
      truth_grad(i, j) = 2 * scaled + truth_hat(i, j);
      truth_C(i, j) = scaled + truth_hat(i, j);
      truth_H_hat(i, j) = 0.75 * truth_grad(i, j);
      scale += 4 * scaled * scaled + truth_hat(i, j) * truth_hat(i, j);
    }
  }
  scale = std::sqrt(scale) + norm<T>(g.host()) * (norm(W) + norm(window));
  EXPECT_TRUE(is_near<T>(Gamma_hat.host(), truth_hat, tolerance::product<T>(16), scale));
  EXPECT_TRUE(is_near<T>(grad.host(), truth_grad, tolerance::product<T>(16), scale));
  EXPECT_TRUE(is_near<T>(C.host(), truth_C, tolerance::product<T>(16), scale));
  EXPECT_TRUE(is_near<T>(H_hat.host(), truth_H_hat, tolerance::product<T>(16), scale));
  EXPECT_TRUE(Gamma_hat.rim_is_intact() && grad.rim_is_intact() && C.rim_is_intact() && H_hat.rim_is_intact());
}

TEST_P(BackendTest, FromTargetsToTheGradientAsOneAfterTheOther) {
  run([]<class T>(Backend<T>& backend) {
    for_each_pattern<T>([&](const Minibatch& minibatch, const RowGroups<T>& groups, bool with_sums) {
      for (const Loss& loss : {Loss(SquaredError{}), Loss(WeightedSquaredError{})}) {
        for (const bool changes : {false, true}) {
          SCOPED_TRACE(fmt::format("{}{}", name_of(loss), changes ? ", with changes between" : ""));
          check_from_targets_to_gradient<T>(backend, minibatch, groups, with_sums, loss, changes);
        }
      }
    });
  });
}

TEST_P(BackendTest, SplitGradientAtTargetsMakesTheSumsThatItSplits) {
  run([]<class T>(Backend<T>& backend) {
    for_each_pattern<T>([&](const Minibatch& minibatch, const RowGroups<T>& groups, bool with_sums) {
      Dice dice(100);
      const Size d = minibatch.H.rows(), m = minibatch.examples();
      const bool with_a = d % 2 == 0;
      Both<T> Z(backend, dice.matrix<T>(d, groups.count())), sums(backend, dice.matrix<T>(d, groups.count()));
      Both<T> values(backend, dice.matrix<T>(groups.nonzeros(), 1)), a(backend, dice.matrix<T>(m, 1));
      const auto before = dice.matrix<T>(d, m);
      Both<T> H_hat(backend, before), grad(backend, d, m), C(backend, d, m), Gamma_hat(backend, d, m);
      Gamma_hat.fill(std::numeric_limits<T>::quiet_NaN());
      Matrix<double> Y(groups.count(), m);
      for (Size e = 0; e < groups.nonzeros(); ++e) {
        ASSERT_EQ(groups.row(groups.group_of(e)), groups.entry(e).row) << e;
        Y(groups.group_of(e), groups.entry(e).example) = static_cast<double>(values(e, 0));
      }
      backend.split_gradient_at_targets(with_a ? a.device() : MatrixView<T>(), Z.device(),
                                        with_sums ? sums.device() : MatrixView<T>(), groups, values.device(),
                                        Gamma_hat.device(), T(-0.375), H_hat.device(), grad.device(), C.device());
      const auto z = to_double<T>(Z.host()), z_apart = to_double<T>(sums.host());
      auto truth = product(Op::none, z, Op::none, Y);
      if (with_sums) truth = product(Op::none, Op::none, 1, z_apart, Y, 1, std::move(truth));
      Matrix<double> new_H_hat(d, m), gradient(d, m), sum(d, m);
      for (Size j = 0; j < m; ++j) {
        for (Size i = 0; i < d; ++i) {
          const double h = static_cast<double>(before(i, j)) * (with_a ? static_cast<double>(a(j, 0)) : 1);
          gradient(i, j) = 2 * h + truth(i, j);
          sum(i, j) = h + truth(i, j);
          new_H_hat(i, j) = -0.375 * gradient(i, j);
        }
      }
      const double scale = (norm(z) + norm(z_apart)) * norm(Y) + 2 * norm(before) * (1 + norm<T>(a.host()));
      EXPECT_TRUE(is_near<T>(grad.host(), gradient, tolerance::product<T>(16), scale));
      EXPECT_TRUE(is_near<T>(C.host(), sum, tolerance::product<T>(16), scale));
      EXPECT_TRUE(is_near<T>(H_hat.host(), new_H_hat, tolerance::product<T>(16), scale));
      EXPECT_TRUE(grad.rim_is_intact() && C.rim_is_intact() && H_hat.rim_is_intact() && Gamma_hat.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, AddCombinedAddsToWhatIsKnownAndBeginsWhatIsNot) {
  run([]<class T>(Backend<T>& backend) {
    for_each_pattern<T>([&](const Minibatch& minibatch, const RowGroups<T>& groups, bool some_known) {
      Dice dice(101);
      const Size d = minibatch.H.rows(), m = minibatch.examples();
      // Of the groups' columns every other one is known where some are, in front of the new ones and among others.
      const Size known = some_known ? groups.count() + 3 : 0;
      std::vector<Index> columns;
      Size columns_in_all = known;
      for (Size g = 0; g < groups.count(); ++g) {
        columns.push_back(static_cast<Index>(some_known && g % 2 == 0 ? g + 1 : columns_in_all++));
      }
      auto before = dice.matrix<T>(d, columns_in_all);
      auto truth = to_double(before);
      for (Size k = known; k < columns_in_all; ++k) {
        std::fill_n(before.view().column(k), d, std::numeric_limits<T>::quiet_NaN());
        std::fill_n(truth.view().column(k), d, 0.0);
      }
      Both<T> X(backend, dice.matrix<T>(d, m)), values(backend, dice.matrix<T>(groups.nonzeros(), 1));
      Both<T> P(backend, before), Z(backend, d, groups.count());
      for (Size e = 0; e < groups.nonzeros(); ++e) {
        const Size column = columns[static_cast<std::size_t>(groups.group_of(e))];
        for (Size i = 0; i < d; ++i) {
          truth(i, column) +=
              -0.75 * static_cast<double>(values(e, 0)) * static_cast<double>(X(i, groups.entry(e).example));
        }
      }
      backend.add_combined(T(-0.75), groups, values.device(), X.device(), columns, known, Z.device(), P.device());
      EXPECT_TRUE(is_near<T>(P.host(), truth, tolerance::product<T>(m),
                             norm(truth) + norm<T>(values.host()) * norm<T>(X.host())));
      EXPECT_TRUE(P.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, CommitRowsCarriesOverWhatTheProductAddsUp) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(102);
    for (const auto& [d, rows, m] :
         {std::tuple<Size, Size, Size>{1, 1, 1}, {7, 5, 3}, {120, 77, 40}, {300, 300, 128}}) {
      SCOPED_TRACE(fmt::format("d = {}, {} rows, m = {}", d, rows, m));
      const auto low_before = dice.matrix<T>(d, rows), S_before = dice.matrix<T>(d, rows);
      Both<T> H(backend, dice.matrix<T>(d, m)), UH_T(backend, dice.matrix<T>(m, rows));
      Both<T> low(backend, low_before), S(backend, S_before);
      backend.commit_rows(T(0.25), H.device(), UH_T.device(), low.device(), S.device());
      const auto h = to_double<T>(H.host()), uh_T = to_double<T>(UH_T.host());
      const auto changed = product(Op::none, Op::none, -0.5, h, uh_T, 1, to_double(low_before));
      Matrix<double> sum(d, rows), held(d, rows);
      for (Size j = 0; j < rows; ++j) {
        for (Size i = 0; i < d; ++i) {
          sum(i, j) = static_cast<double>(S_before(i, j)) + changed(i, j);
          held(i, j) = static_cast<double>(S(i, j)) + static_cast<double>(low(i, j));
        }
      }
      const double scale = norm(h) * norm(uh_T) + norm(low_before) + norm(S_before);
      EXPECT_TRUE(is_near<T>(S.host(), sum, tolerance::product<T>(m), scale));
      EXPECT_TRUE(is_near<double>(held.view(), sum, tolerance::product<T>(m), scale));
      for (Size j = 0; j < rows; ++j) {  // what low keeps is below the last bit of the sum
        for (Size i = 0; i < d; ++i) ASSERT_EQ(S(i, j), S(i, j) + low(i, j)) << i << ", " << j;
      }
      EXPECT_TRUE(low.rim_is_intact() && S.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, AddWithGramAddsTheProductAndThePairs) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(98);
    // The last two have targets that many examples share: one of few pairs, one of many.
    for (const MinibatchShape& shape : std::vector<MinibatchShape>{
             {1, 1, 1, 0}, {9, 1, 5, 1}, {12, 7, 10, 2}, {2000, 120, 64, 3}, {300, 300, 128, 1}, {3, 36, 40, 1}}) {
      SCOPED_TRACE(
          fmt::format("D = {}, d = {}, m = {}, K = {}", shape.outputs, shape.dim, shape.batch, shape.nonzeros));
      const TypedMinibatch<T> typed(make_minibatch(dice, shape));
      RowGroups<T> groups;
      groups.assign(typed.targets());
      const Size d = shape.dim, m = shape.batch;
      const auto before = dice.matrix<T>(d, m);
      Both<T> A(backend, dice.matrix<T>(d, d)), B(backend, dice.matrix<T>(d, m)), H(backend, dice.matrix<T>(d, m));
      Both<T> values(backend, dice.matrix<T>(groups.nonzeros(), 1)), N(backend, m, m), C(backend, before);
      backend.add_with_gram(T(-0.5), A.device(), B.device(), H.device(), groups, values.device(), N.device(),
                            C.device());
      Matrix<double> Y(groups.count(), m);
      for (Size e = 0; e < groups.nonzeros(); ++e) {
        Y(groups.first_group(groups.entry(e).row), groups.entry(e).example) = static_cast<double>(values(e, 0));
      }
      const auto a = to_double<T>(A.host()), b = to_double<T>(B.host()), h = to_double<T>(H.host());
      const auto with_product = product(Op::none, Op::none, -0.5, a, b, 1, to_double(before));
      const auto truth = product(Op::none, Op::none, -0.5, h, product(Op::transpose, Y, Op::none, Y), 1, with_product);
      EXPECT_TRUE(is_near<T>(C.host(), truth, tolerance::product<T>(d + m),
                             norm(a) * norm(b) + norm(h) * norm(Y) * norm(Y) + norm(before)));
      EXPECT_TRUE(C.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, FinishStackIsItsThreeFormulas) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(96);
    for (const auto& [d, stack, m] :
         {std::tuple<Size, Size, Size>{1, 1, 1}, {7, 7, 3}, {33, 90, 5}, {150, 400, 64}, {202, 404, 64}}) {
      SCOPED_TRACE(fmt::format("d = {}, {} columns, m = {}", d, stack, m));
      const auto before = dice.matrix<T>(d, stack);
      Both<T> H(backend, dice.matrix<T>(d, m)), high(backend, dice.matrix<T>(d, stack)), low(backend, before);
      Both<T> S(backend, d, stack), E(backend, d, m);
      backend.finish_stack(T(0.25), H.device(), high.device(), low.device(), S.device(), E.device());
      Matrix<double> new_low = to_double(before), sum(d, stack);
      for (Size j = 0; j < stack; ++j) {
        for (Size i = 0; i < d; ++i) {
          if (j < d) new_low(i, j) = (static_cast<double>(before(i, j)) + static_cast<double>(before(j, i))) / 2;
          sum(i, j) = static_cast<double>(high(i, j)) + new_low(i, j);
        }
      }
      EXPECT_TRUE(is_near<T>(low.host(), new_low, tolerance::elementwise<T>()));
      EXPECT_TRUE(is_near<T>(S.host(), sum, 2 * tolerance::elementwise<T>(), norm<T>(high.host()) + norm(before)));
      for (Size j = 0; j < d; ++j) {
        for (Size i = 0; i < j; ++i) ASSERT_EQ(low(i, j), low(j, i)) << i << ", " << j;
      }
      for (Size j = 0; j < m; ++j) {
        for (Size i = 0; i < d; ++i) ASSERT_EQ(E(i, j), T(-0.25) * H(i, j));
      }
      EXPECT_TRUE(low.rim_is_intact() && S.rim_is_intact() && E.rim_is_intact());
      if (!backend.memory().is_host()) continue;
      // Where the high part is S itself, the sum is carried over: to the bit what the two give one after the other.
      Both<T> S_itself(backend, Matrix<T>::copy_of(high.host())), carried(backend, before);
      backend.finish_stack(T(0.25), H.device(), S_itself.device(), carried.device(), S_itself.device(), E.device());
      backend.carry(S.device(), high.device(), low.device());
      EXPECT_TRUE(is_identical<T>(S_itself.host(), S.host()) && is_identical<T>(carried.host(), low.host()));
      EXPECT_TRUE(S_itself.rim_is_intact() && carried.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, SideBySideDoesBothAndPassesOnWhatEitherThrows) {
  run([]<class T>(Backend<T>& backend) {
    int first = 0, second = 0;
    backend.side_by_side([&] { ++first; }, [&] { ++second; });
    EXPECT_EQ(first, 1);
    EXPECT_EQ(second, 1);
    const auto fail = [] { throw std::runtime_error("half of it"); };
    EXPECT_THROW(backend.side_by_side(fail, [] {}), std::runtime_error);
    EXPECT_THROW(backend.side_by_side([] {}, fail), std::runtime_error);
  });
}

TEST_P(BackendTest, ShareDoesEveryPieceAndTheTaskOnce) {
  run([]<class T>(Backend<T>& backend) {
    std::vector<std::pair<Size, Size>> before;
    for (const Size extent : {0, 1, 31, 32, 33, 600, 728}) {
      for (int run = 0; run < 20; ++run) {
        std::vector<std::atomic<int>> done(static_cast<std::size_t>(extent));
        std::vector<std::pair<Size, Size>> pieces;
        std::mutex mutex;
        std::atomic<int> tasks = 0;
        backend.share(
            extent, 32, 1e9,
            [&](Size first, Size count) {
              for (Size i = first; i < first + count; ++i) ++done[static_cast<std::size_t>(i)];
              const std::lock_guard lock(mutex);
              pieces.emplace_back(first, count);
            },
            [&] { ++tasks; });
        EXPECT_EQ(tasks, 1);
        for (const auto& times : done) ASSERT_EQ(times, 1);
        for (const auto& [first, count] : pieces) EXPECT_EQ(first % 32, 0);
        std::sort(pieces.begin(), pieces.end());
        if (run > 0) {
          EXPECT_EQ(pieces, before) << "pieces depend on who was faster";
        }
        before = pieces;
      }
    }
    const auto fail = [] { throw std::runtime_error("part of it"); };
    EXPECT_THROW(backend.share(
                     100, 32, 1e9, [&](Size, Size) { fail(); }, [] {}),
                 std::runtime_error);
    EXPECT_THROW(backend.share(
                     100, 32, 1e9, [](Size, Size) {}, fail),
                 std::runtime_error);
  });
}

}  // namespace
}  // namespace widehead::test
