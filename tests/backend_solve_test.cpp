/// Backend: solving, inverting and singular values.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend_under_test.h"
#include "compare.h"
#include "dice.h"
#include "known_svd.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

WIDEHEAD_ON_ALL_BACKENDS;

template <class T>
constexpr T rcond_limit = 4 * std::numeric_limits<T>::epsilon();

/// X (sI + G)⁻¹ by the backend: checks that X_new (sI + G) = X, and returns the condition.
template <class T>
T check_solve_shifted(Backend<T>& backend, T s, const Matrix<T>& G, const Matrix<T>& X) {
  const Size m = G.rows();
  Both<T> G_there(backend, G), X_there(backend, X);
  const T rcond = backend.solve_shifted(s, G_there.device(), rcond_limit<T>, X_there.device());
  auto A = to_double(G);
  for (Size j = 0; j < m; ++j) A(j, j) += static_cast<double>(s);
  const auto X_new = to_double<T>(X_there.host());
  const auto back = product(Op::none, X_new, Op::none, A);
  EXPECT_TRUE(is_near<double>(back, to_double(X), tolerance::solve<T>(m), norm(X_new) * norm(A)));
  EXPECT_TRUE(G_there.rim_is_intact() && X_there.rim_is_intact());
  return rcond;
}

TEST_P(BackendTest, SolveShiftedUndoesTheProductForMatricesThatNeedRowExchanges) {
  run([]<class T>(Backend<T>& backend) {
    for (const auto seed : seeds(6)) {
      SCOPED_TRACE(fmt::format("seed {}", seed));
      Dice dice(seed);
      const Size m = dice.between(2, 40), rows = dice.between(1, 50);
      auto G = dice.matrix<T>(m, m);
      for (Size j = 0; j < m; ++j) G(j, j) = 1;  // every pivot is 0 at first
      EXPECT_GT(check_solve_shifted<T>(backend, T(-1), G, dice.matrix<T>(rows, m)), rcond_limit<T>);
    }
  });
}

TEST_P(BackendTest, SolveShiftedUndoesTheProductForTheIndefiniteMatrixOfAStep) {
  run([]<class T>(Backend<T>& backend) {
    for (const auto seed : seeds(6)) {
      SCOPED_TRACE(fmt::format("seed {}", seed));
      Dice dice(seed);
      const Size m = dice.between(2, 30), d = dice.between(1, 30);
      const auto H = dice.matrix<double>(d, m);
      const auto HtH = product(Op::transpose, H, Op::none, H);
      Matrix<T> G(m, m);  // λ₁ well above 1, the smallest near 0: sI + G has both signs
      for (Size i = 0; i < G.size(); ++i) G.data()[i] = static_cast<T>(0.3 * HtH.data()[i]);
      EXPECT_GT(check_solve_shifted<T>(backend, T(-1), G, dice.matrix<T>(d, m)), rcond_limit<T>);
    }
  });
}

TEST_P(BackendTest, SolveShiftedIsCutIntoStripesWithoutATrace) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(11);
    for (const Size rows : {15, 17, 49, 230}) {
      SCOPED_TRACE(fmt::format("{} rows", rows));
      const Size m = rows < 100 ? 390 / (1 + rows / 30) : 100;  // more than 2 Mflop
      check_solve_shifted<T>(backend, T(-2), dice.matrix<T>(m, m), dice.matrix<T>(rows, m));
    }
  });
}

TEST_P(BackendTest, SolveShiftedOfOneExampleDivides) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(12);
    Matrix<T> G(1, 1);
    G(0, 0) = T(0.25);
    const T rcond = check_solve_shifted<T>(backend, T(-1), G, dice.matrix<T>(5, 1));
    EXPECT_NEAR(static_cast<double>(rcond), 0.75 / 1.25, 4 * tolerance::epsilon<T>) << "|s + g| at the scale |s| + |g|";
  });
}

TEST_P(BackendTest, SolveShiftedLeavesXAloneWhenSingular) {
  run([]<class T>(Backend<T>& backend) {
    constexpr T epsilon = std::numeric_limits<T>::epsilon();
    Dice dice(13);
    const auto check = [&](const char* what, T s, const Matrix<T>& G) {
      SCOPED_TRACE(what);
      Both<T> G_there(backend, G), X(backend, dice.matrix<T>(7, G.rows()));
      const auto before = Matrix<T>::copy_of(X.host());
      EXPECT_FALSE(backend.solve_shifted(s, G_there.device(), rcond_limit<T>, X.device()) >= rcond_limit<T>);
      EXPECT_TRUE(is_identical<T>(X.host(), before));
    };
    Matrix<T> one(1, 1);
    one(0, 0) = 1;
    check("m = 1, exactly", T(-1), one);
    one(0, 0) = 1 + epsilon;
    check("m = 1, but for a rounding", T(-1), one);
    Matrix<T> two(2, 2);  // v vᵀ with ‖v‖ = 1 but for roundings
    const T v[2] = {T(0.6), T(0.8)};
    for (Size i = 0; i < 2; ++i) {
      for (Size j = 0; j < 2; ++j) two(i, j) = v[i] * v[j];
    }
    check("m = 2, but for a rounding", T(-1), two);
    check("a zero matrix", T(0), Matrix<T>(3, 3));
    Matrix<T> poisoned(3, 3);
    poisoned(1, 2) = std::numeric_limits<T>::quiet_NaN();
    check("a NaN", T(-1), poisoned);
    Matrix<T> overflowed(3, 3);
    std::fill_n(overflowed.data(), 9, std::numeric_limits<T>::infinity());
    check("infinities", T(-1), overflowed);
  });
}

TEST_P(BackendTest, SolveShiftedFollowsAChangingM) {
  run([]<class T>(Backend<T>& backend) {  // pivots and work space of the largest m so far
    Dice dice(14);
    for (const Size m : {9, 2, 30, 1, 12}) {
      SCOPED_TRACE(fmt::format("m = {}", m));
      check_solve_shifted<T>(backend, T(3), dice.matrix<T>(m, m), dice.matrix<T>(6, m));
    }
  });
}

TEST_P(BackendTest, LuSolveUndoesTheProductAndTheTransposedOne) {
  run([]<class T>(Backend<T>& backend) {
    for (const auto seed : seeds(6)) {
      SCOPED_TRACE(fmt::format("seed {}", seed));
      Dice dice(seed);
      // the last one is large enough for threads (n² columns > 2 Mflop)
      const Size n = seed == seeds(1).front() ? 1
                     : seed % 6 == 0          ? 120
                                              : dice.between(2, 40),
                 columns = n == 120 ? 150 : dice.between(1, 30);
      const auto A = dice.matrix<T>(n, n), X = dice.matrix<T>(n, columns);
      Both<T> factors(backend, A);
      Both<int> pivots(backend, n, 1);
      ASSERT_TRUE(backend.lu_factorize(factors.device(), pivots.device()));
      for (const Op op : {Op::none, Op::transpose}) {
        Both<T> X_there(backend, X);
        backend.lu_solve(op, factors.device(), pivots.device(), X_there.device());
        const auto X_new = to_double<T>(X_there.host());
        const auto back = product(op, to_double(A), Op::none, X_new);
        EXPECT_TRUE(is_near<double>(back, to_double(X), tolerance::solve<T>(n), norm(X_new) * norm(A)));
        EXPECT_TRUE(X_there.rim_is_intact());
      }
      EXPECT_TRUE(factors.rim_is_intact() && pivots.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, LuAndItsSolvesAreRightWhereverTheirBlocksEnd) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(18);
    for (const Size n : {47, 48, 49, 64, 96, 97, 250}) {
      const auto A = dice.matrix<T>(n, n);
      Both<T> factors(backend, A);
      Both<int> pivots(backend, n, 1);
      ASSERT_TRUE(backend.lu_factorize(factors.device(), pivots.device()));
      for (const auto& [op, columns] : {std::pair<Op, Size>{Op::none, 3},
                                        {Op::none, 17},
                                        {Op::none, 60},
                                        {Op::transpose, 16},
                                        {Op::transpose, 60}}) {
        SCOPED_TRACE(fmt::format("n = {}, {} columns{}", n, columns, op == Op::transpose ? ", transposed" : ""));
        const auto X = dice.matrix<T>(n, columns);
        Both<T> X_there(backend, X);
        backend.lu_solve(op, factors.device(), pivots.device(), X_there.device());
        const auto X_new = to_double<T>(X_there.host());
        const auto back = product(op, to_double(A), Op::none, X_new);
        EXPECT_TRUE(is_near<double>(back, to_double(X), tolerance::solve<T>(n), norm(X_new) * norm(A)));
        EXPECT_TRUE(X_there.rim_is_intact());
      }
      EXPECT_TRUE(factors.rim_is_intact() && pivots.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, LuSeesASingularMatrixInItsLastPanel) {
  run([]<class T>(Backend<T>& backend) {
    auto A = Matrix<T>::identity(120);
    A(110, 110) = 0;
    Both<T> factors(backend, A);
    Both<int> pivots(backend, 120, 1);
    EXPECT_FALSE(backend.lu_factorize(factors.device(), pivots.device()));
  });
}

TEST_P(BackendTest, InvertGivesTheInverse) {
  run([]<class T>(Backend<T>& backend) {
    for (const auto seed : seeds(5)) {
      SCOPED_TRACE(fmt::format("seed {}", seed));
      Dice dice(seed);
      const Size n = seed == 1 ? 1 : dice.between(2, 70);
      const auto A = dice.matrix<T>(n, n);
      Both<T> inverse(backend, A);
      EXPECT_TRUE(backend.invert(inverse.device()));
      const auto A_inv = to_double<T>(inverse.host());
      const auto I = Matrix<double>::identity(n);
      EXPECT_TRUE(is_near<double>(product(Op::none, A_inv, Op::none, to_double(A)), I, tolerance::solve<T>(n),
                                  norm(A) * norm(A_inv)));
      EXPECT_TRUE(inverse.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, ExactlySingularMatricesAreToldApart) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(15);
    auto A = dice.matrix<T>(5, 5);
    for (Size i = 0; i < 5; ++i) A(i, 3) = 0;
    Both<T> first(backend, A), second(backend, A), identity(backend, Matrix<T>::identity(5));
    Both<int> pivots(backend, 5, 1);
    EXPECT_FALSE(backend.invert(first.device()));
    EXPECT_FALSE(backend.lu_factorize(second.device(), pivots.device()));
    EXPECT_TRUE(backend.lu_factorize(identity.device(), pivots.device()));
  });
}

TEST_P(BackendTest, QrGivesOrthonormalColumnsAndTheTriangle) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(17);
    for (const auto& [n, r] : {std::pair<Size, Size>{1, 1}, {7, 1}, {7, 7}, {40, 8}, {100, 33}}) {
      SCOPED_TRACE(fmt::format("{} x {}", n, r));
      const auto X = dice.matrix<T>(n, r);
      Both<T> Q(backend, X), R(backend, r, r), without_R(backend, X);
      backend.qr(Q.device(), R.device());
      backend.qr(without_R.device(), {});
      EXPECT_TRUE(is_identical<T>(Q.host(), without_R.host()));
      const auto q = to_double<T>(Q.host());
      EXPECT_TRUE(
          is_near<double>(product(Op::transpose, q, Op::none, q), Matrix<double>::identity(r), tolerance::svd<T>(n)));
      EXPECT_TRUE(
          is_near<double>(product(Op::none, q, Op::none, to_double<T>(R.host())), to_double(X), tolerance::svd<T>(n)));
      for (Size j = 0; j < r; ++j) {
        for (Size i = j + 1; i < r; ++i) EXPECT_EQ(R(i, j), T(0));
      }
      EXPECT_TRUE(Q.rim_is_intact() && R.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, SvdFindsKnownSingularValuesAndLeftVectors) {
  run([]<class T>(Backend<T>& backend) {
    for (const Size n : {1, 2, 7, 33}) {
      SCOPED_TRACE(fmt::format("n = {}", n));
      Dice dice(16);
      std::vector<double> known;
      for (Size k = 0; k < n; ++k) known.push_back(3 * std::pow(0.8, k));
      const KnownSvd svd(dice, known);
      Both<T> A(backend, n, n), left(backend, n, n);
      for (Size j = 0; j < n; ++j) {
        for (Size i = 0; i < n; ++i) A.host()(i, j) = static_cast<T>(svd.A(i, j));
      }
      const auto a = to_double<T>(A.host());
      std::vector<T> sigma(static_cast<std::size_t>(n)), values_only(static_cast<std::size_t>(n));
      Both<T> copy(backend, A.host());
      backend.svd(copy.device(), values_only, {});
      backend.svd(A.device(), sigma, left.device());
      for (std::size_t k = 0; k < known.size(); ++k) {
        EXPECT_NEAR(static_cast<double>(sigma[k]), known[k], tolerance::svd<T>(n) * known[0]);
        EXPECT_NEAR(static_cast<double>(values_only[k]), known[k], tolerance::svd<T>(n) * known[0]);
      }
      const auto u = to_double<T>(left.host());
      const auto I = Matrix<double>::identity(n);
      EXPECT_TRUE(is_near<double>(product(Op::transpose, u, Op::none, u), I, tolerance::svd<T>(n)));
      // A Aᵀ u = σ² u
      auto residual = product(Op::none, a, Op::none, product(Op::transpose, a, Op::none, u));
      for (Size k = 0; k < n; ++k) {
        for (Size i = 0; i < n; ++i)
          residual(i, k) -= std::pow(static_cast<double>(sigma[static_cast<std::size_t>(k)]), 2) * u(i, k);
      }
      EXPECT_LE(norm(residual), tolerance::svd<T>(n) * known[0] * known[0]);
      EXPECT_TRUE(A.rim_is_intact() && left.rim_is_intact());
    }
  });
}

}  // namespace
}  // namespace widehead::test
