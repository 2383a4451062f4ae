/// Backend: sums and searches, each against plain loops, on views amid larger matrices.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "backend_under_test.h"
#include "compare.h"
#include "dice.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

WIDEHEAD_ON_ALL_BACKENDS;

/// None, one, odd ones, and one large enough for threads.
std::vector<std::pair<Size, Size>> column_shapes() {
  return {{5, 0}, {1, 1}, {1, 40}, {17, 3}, {300, 250}, {31, 2200}};
}

TEST_P(BackendTest, DotIsTheTraceAccumulatedInDouble) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(7);
    for (const auto& [rows, cols] : {std::pair<Size, Size>{5, 0},
                                     {1, 1},
                                     {1, 50},
                                     {50, 1},
                                     {37, 5},
                                     {400, 2},
                                     {300, 250},
                                     {70000, 1},
                                     {40000, 2},
                                     {700, 4000}}) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Both<T> A(backend, dice.matrix<T>(rows, cols)), B(backend, dice.matrix<T>(rows, cols));
      double truth = 0;
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) truth += static_cast<double>(A(i, j)) * static_cast<double>(B(i, j));
      }
      const double scale = norm<T>(A.host()) * norm<T>(B.host());
      const double dot = backend.dot(A.device(), B.device());
      EXPECT_TRUE(is_near(dot, truth, tolerance::double_sum(rows * cols), scale));
      EXPECT_EQ(backend.dot(A.device(), B.device()), dot) << "not the same sum again";
    }
  });
}

TEST_P(BackendTest, ColumnDotsAreTheDiagonalAccumulatedInDouble) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(12);
    for (const auto& [rows, cols] : column_shapes()) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Both<T> A(backend, dice.matrix<T>(rows, cols)), B(backend, dice.matrix<T>(rows, cols));
      Both<double> out(backend, cols, 1);
      out.fill(NAN);
      backend.column_dots(A.device(), B.device(), out.device());
      for (Size j = 0; j < cols; ++j) {
        double truth = 0, scale = 0;
        for (Size i = 0; i < rows; ++i) {
          const double term = static_cast<double>(A(i, j)) * static_cast<double>(B(i, j));
          truth += term;
          scale += std::abs(term);
        }
        ASSERT_TRUE(is_near(out(j, 0), truth, tolerance::double_sum(rows), scale)) << j;
      }
      EXPECT_TRUE(out.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, AddRowMomentsAddsSumsAndSquaresAccumulatedInDouble) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(13);
    for (const auto& [rows, cols] :
         {std::pair<Size, Size>{5, 0}, {1, 1}, {1, 300}, {33, 7}, {250, 300}, {17, 4000}, {3, 70000}}) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Both<T> A(backend, dice.matrix<T>(rows, cols));
      const auto sums_before = dice.matrix<double>(rows, 1), squares_before = dice.matrix<double>(rows, 1);
      Both<double> sums(backend, sums_before), squares(backend, squares_before);
      backend.add_row_moments(A.device(), sums.device(), squares.device());
      for (Size i = 0; i < rows; ++i) {
        double sum = sums_before(i, 0), square = squares_before(i, 0);
        double sum_scale = std::abs(sum), scale = std::abs(square);
        for (Size j = 0; j < cols; ++j) {
          const auto value = static_cast<double>(A(i, j));
          sum += value;
          sum_scale += std::abs(value);
          square += value * value;
          scale += value * value;
        }
        ASSERT_TRUE(is_near(sums(i, 0), sum, tolerance::double_sum(cols), sum_scale)) << "sum of row " << i;
        ASSERT_TRUE(is_near(squares(i, 0), square, tolerance::double_sum(cols), scale)) << "squares of row " << i;
      }
      EXPECT_TRUE(sums.rim_is_intact() && squares.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, FindNonFiniteGivesTheFirstPosition) {
  run([]<class T>(Backend<T>& backend) {
    using Limits = std::numeric_limits<T>;
    Dice dice(8);
    Both<T> A(backend, dice.matrix<T>(11, 6));
    A.host()(0, 0) = Limits::max();
    A.host()(1, 0) = Limits::lowest();
    A.host()(2, 0) = Limits::max();
    A.host()(3, 0) = Limits::denorm_min();
    EXPECT_EQ(backend.find_non_finite(A.device()), -1);
    A.host()(4, 5) = Limits::quiet_NaN();
    EXPECT_EQ(backend.find_non_finite(A.device()), 4 + 5 * 11);
    A.host()(10, 3) = -Limits::infinity();
    EXPECT_EQ(backend.find_non_finite(A.device()), 10 + 3 * 11);
    A.host()(2, 3) = Limits::infinity();
    EXPECT_EQ(backend.find_non_finite(A.device()), 2 + 3 * 11);
    A.host()(0, 0) = Limits::quiet_NaN();
    EXPECT_EQ(backend.find_non_finite(A.device()), 0);
    EXPECT_EQ(backend.find_non_finite(A.device().block(0, 1, 2, 5)), -1)
        << "what is outside of the view does not count";
    EXPECT_EQ(backend.find_non_finite(A.device().block(0, 1, 2, 0)), -1) << "nothing is finite";
  });
}

TEST_P(BackendTest, FindNonFiniteGivesTheFirstOfManyInALargeMatrix) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(14);
    constexpr Size rows = 1000, cols = 3000;
    Both<T> A(backend, rows, cols);
    A.fill(T(1));
    Size first = rows * cols;
    for (int k = 0; k < 50; ++k) {
      const Size i = dice.between(0, rows - 1), j = dice.between(cols / 2, cols - 1);
      A.host()(i, j) = k % 2 == 0 ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::infinity();
      first = std::min(first, i + j * rows);
    }
    EXPECT_EQ(backend.find_non_finite(A.device()), first);
  });
}

TEST_P(BackendTest, RoughSquaredNormIsRoughlyThatAndTellsOverflow) {
  run([]<class T>(Backend<T>& backend) {
    using Limits = std::numeric_limits<T>;
    Dice dice(15);
    for (const auto& [rows, cols] : {std::pair<Size, Size>{5, 0}, {1, 1}, {37, 5}, {300, 250}, {700, 4000}}) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Both<T> A(backend, dice.matrix<T>(rows, cols));
      const double truth = norm<T>(A.host()) * norm<T>(A.host());
      const auto rough = static_cast<double>(backend.rough_squared_norm(A.device()));
      EXPECT_TRUE(is_near(rough, truth, tolerance::product<T>(rows * cols), truth));
    }
    Both<T> A(backend, dice.matrix<T>(20, 30));
    for (const T bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity(), Limits::max()}) {
      A.host()(7, 11) = bad;
      EXPECT_FALSE(std::isfinite(backend.rough_squared_norm(A.device()))) << bad;
    }
  });
}

TEST_P(BackendTest, SquaredNormAddsWithoutAnAnswer) {
  run([]<class T>(Backend<T>& backend) {
    using Limits = std::numeric_limits<T>;
    Dice dice(16);
    for (const auto& [rows, cols] : {std::pair<Size, Size>{5, 0}, {0, 5}, {1, 1}, {37, 5}, {300, 250}, {700, 4000}}) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Both<T> A(backend, dice.matrix<T>(rows, cols));
      const double truth = norm<T>(A.host()) * norm<T>(A.host());
      Both<double> sum(backend, 1, 1);
      sum.fill(std::numeric_limits<double>::quiet_NaN());
      backend.squared_norm(A.device(), 0, sum.device());
      EXPECT_TRUE(is_near(sum(0, 0), truth, tolerance::product<double>(rows * cols), truth));
      backend.squared_norm(A.device(), 0.5, sum.device());
      EXPECT_TRUE(is_near(sum(0, 0), 1.5 * truth, tolerance::product<double>(rows * cols), truth));
      EXPECT_TRUE(sum.rim_is_intact());
    }
    Both<double> sum(backend, 1, 1);
    for (const T bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
      Both<T> A(backend, dice.matrix<T>(20, 30));
      A.host()(7, 11) = bad;
      backend.squared_norm(A.device(), 0, sum.device());
      EXPECT_FALSE(std::isfinite(sum(0, 0))) << bad;
    }
  });
}

}  // namespace
}  // namespace widehead::test
