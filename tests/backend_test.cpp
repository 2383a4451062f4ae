/// Backend: dense products and element by element operations, each against plain loops, on views amid
/// larger matrices. Shapes straddle the stripes (16), the tiles (32) and the sizes from which threads
/// take part (2 Mflop, 65536 elements).

#include "widehead/backend.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

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

/// Shapes for what goes column by column: none, one, odd ones, and one large enough for threads.
std::vector<std::pair<Size, Size>> column_shapes() {
  return {{5, 0}, {1, 1}, {1, 40}, {17, 3}, {300, 250}, {31, 2200}};
}

template <class T>
void check_gemm(Backend<T>& backend, Dice& dice, const GemmShape& shape, double alpha, double beta) {
  SCOPED_TRACE(fmt::format("{}{} m = {}, n = {}, k = {}, alpha = {}, beta = {}", shape.op_a == Op::none ? 'N' : 'T',
                           shape.op_b == Op::none ? 'N' : 'T', shape.m, shape.n, shape.k, alpha, beta));
  const bool plain_a = shape.op_a == Op::none, plain_b = shape.op_b == Op::none;
  Both<T> A(backend, dice.matrix<T>(plain_a ? shape.m : shape.k, plain_a ? shape.k : shape.m));
  Both<T> B(backend, dice.matrix<T>(plain_b ? shape.k : shape.n, plain_b ? shape.n : shape.k));
  Both<T> C(backend, dice.matrix<T>(shape.m, shape.n));
  const auto a = to_double<T>(A.host()), b = to_double<T>(B.host()), c = to_double<T>(C.host());
  const auto truth = product(shape.op_a, shape.op_b, alpha, a, b, beta, c);
  if (beta == 0) C.fill(std::numeric_limits<T>::quiet_NaN());
  backend.gemm(shape.op_a, shape.op_b, T(alpha), A.device(), B.device(), T(beta), C.device());
  const double scale = std::abs(alpha) * norm(a) * norm(b) + std::abs(beta) * norm(c);
  EXPECT_TRUE(is_near<T>(C.host(), truth, tolerance::product<T>(shape.k), scale));
  EXPECT_TRUE(C.rim_is_intact());
}

TEST_P(BackendTest, GemmIsTheProductForAllOperationsShapesAndStrides) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(1);
    struct Extents {
      Size m, n, k;
    };
    for (const auto& [m, n, k] : {Extents{1, 1, 1}, {1, 1, 700}, {7, 1, 3}, {1, 9, 4}, {16, 17, 15}, {33, 5, 1}}) {
      for (const Op op_a : {Op::none, Op::transpose}) {
        for (const Op op_b : {Op::none, Op::transpose}) {
          check_gemm<T>(backend, dice, {op_a, op_b, m, n, k}, 1, 0);
          check_gemm<T>(backend, dice, {op_a, op_b, m, n, k}, -2.5, 1);
        }
      }
    }
  });
}

TEST_P(BackendTest, GemmIsTheProductWhenItIsCutIntoStripes) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(2);
    struct Extents {
      Size m, n, k;
    };
    // more and fewer stripes than threads, stripes that are cut short, either direction of cutting
    for (const auto& [m, n, k] :
         {Extents{15, 9, 7500}, {17, 16, 3700}, {31, 33, 1000}, {49, 47, 450}, {48, 200, 105}, {1, 1000, 1001}}) {
      for (const Op op_a : {Op::none, Op::transpose}) {
        for (const Op op_b : {Op::none, Op::transpose}) check_gemm<T>(backend, dice, {op_a, op_b, m, n, k}, 0.75, 0.5);
      }
    }
    check_gemm<T>(backend, dice, {Op::none, Op::transpose, 130, 129, 64}, 1, 0);
  });
}

TEST_P(BackendTest, GemmOfNothingIsZeroOrWhatWasThere) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(30);
    const auto before = dice.matrix<T>(4, 3);
    Both<T> A(backend, 4, 0), B(backend, 0, 3), C(backend, before);
    backend.gemm(Op::none, Op::none, T(1), A.device(), B.device(), T(1), C.device());
    EXPECT_TRUE(is_identical<T>(C.host(), before));
    backend.gemm(Op::none, Op::none, T(1), A.device(), B.device(), T(-2), C.device());
    for (Size j = 0; j < 3; ++j) {
      for (Size i = 0; i < 4; ++i) EXPECT_EQ(C(i, j), -2 * before(i, j));
    }
    C.fill(std::numeric_limits<T>::quiet_NaN());
    backend.gemm(Op::none, Op::none, T(1), A.device(), B.device(), T(0), C.device());
    EXPECT_TRUE(is_identical<T>(C.host(), Matrix<T>(4, 3)));
    Both<T> D(backend, 4, 5), empty(backend, 5, 0), none(backend, 4, 0);
    backend.gemm(Op::none, Op::none, T(1), D.device(), empty.device(), T(0), none.device());
    EXPECT_TRUE(C.rim_is_intact() && none.rim_is_intact());
  });
}

TEST_P(BackendTest, GemmTwiceIsBitIdentical) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(3);
    Both<T> A(backend, dice.matrix<T>(120, 110)), B(backend, dice.matrix<T>(110, 100));
    Both<T> once(backend, 120, 100), again(backend, 120, 100);
    backend.gemm(Op::none, Op::none, T(1), A.device(), B.device(), T(0), once.device());
    for (int i = 0; i < 5; ++i) {
      backend.gemm(Op::none, Op::none, T(1), A.device(), B.device(), T(0), again.device());
      ASSERT_TRUE(is_identical<T>(once.host(), again.host()));
    }
  });
}

TEST_P(BackendTest, SymmetrizeTakesTheMeanWithTheTranspose) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(4);
    for (const Size n : {1, 2, 31, 32, 33, 65, 260}) {
      SCOPED_TRACE(fmt::format("n = {}", n));
      Both<T> A(backend, dice.matrix<T>(n, n));
      const auto before = to_double<T>(A.host());
      backend.symmetrize(A.device());
      Matrix<double> truth(n, n);
      for (Size j = 0; j < n; ++j) {
        for (Size i = 0; i < n; ++i) truth(i, j) = (before(i, j) + before(j, i)) / 2;
      }
      EXPECT_TRUE(is_near<T>(A.host(), truth, tolerance::elementwise<T>()));
      for (Size j = 0; j < n; ++j) {
        for (Size i = 0; i < j; ++i) ASSERT_EQ(A(i, j), A(j, i)) << i << ", " << j;
      }
      EXPECT_TRUE(A.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, TransposeMovesEveryElement) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(5);
    for (const auto& [rows, cols] : {std::pair<Size, Size>{1, 1},
                                     {1, 40},
                                     {33, 1},
                                     {31, 64},
                                     {65, 32},
                                     {33, 97},
                                     {16, 16},
                                     {300, 128},
                                     {333, 250}}) {
      Both<T> A(backend, dice.matrix<T>(rows, cols)), C(backend, cols, rows);
      backend.transpose(A.device(), C.device());
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) ASSERT_EQ(C(j, i), A(i, j));
      }
      EXPECT_TRUE(C.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, AddCopyAndScaleWorkElementByElement) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(6);
    for (const auto& [rows, cols] : {std::pair<Size, Size>{1, 1}, {17, 3}, {300, 250}}) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Both<T> A(backend, dice.matrix<T>(rows, cols)), B(backend, dice.matrix<T>(rows, cols)), C(backend, rows, cols);
      const auto a = to_double<T>(A.host()), b = to_double<T>(B.host());
      Matrix<double> sum(rows, cols), half(rows, cols);
      for (Size i = 0; i < sum.size(); ++i) {
        sum.data()[i] = 2 * a.data()[i] - 0.5 * b.data()[i];
        half.data()[i] = 0.5 * a.data()[i];
      }
      const double scale = 2 * norm(a) + 0.5 * norm(b);
      backend.add(T(2), A.device(), T(-0.5), B.device(), C.device());
      EXPECT_TRUE(is_near<T>(C.host(), sum, tolerance::elementwise<T>(), scale));
      backend.copy(A.device(), C.device());
      EXPECT_TRUE(is_identical<T>(A.host(), C.host()));
      backend.add(T(2), C.device(), T(-0.5), B.device(), C.device());  // C may be A
      EXPECT_TRUE(is_near<T>(C.host(), sum, tolerance::elementwise<T>(), scale));
      backend.copy(B.device(), C.device());
      backend.add(T(2), A.device(), T(-0.5), C.device(), C.device());  // or B
      EXPECT_TRUE(is_near<T>(C.host(), sum, tolerance::elementwise<T>(), scale));
      backend.scale(T(1), A.device());
      EXPECT_TRUE(is_identical<double>(to_double<T>(A.host()), a));
      backend.scale(T(0.5), A.device());
      EXPECT_TRUE(is_identical<double>(to_double<T>(A.host()), half));
      EXPECT_TRUE(A.rim_is_intact() && B.rim_is_intact() && C.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, ClearAndSetIdentityForgetWhatWasThere) {
  run([]<class T>(Backend<T>& backend) {
    for (const Size n : {1, 7, 300}) {
      Both<T> A(backend, n, n);
      Both<double> B(backend, n, 3);
      A.fill(std::numeric_limits<T>::quiet_NaN());
      B.fill(std::numeric_limits<double>::quiet_NaN());
      backend.set_identity(A.device());
      EXPECT_TRUE(is_identical<T>(A.host(), Matrix<T>::identity(n)));
      A.fill(std::numeric_limits<T>::infinity());
      backend.clear(A.device());
      EXPECT_TRUE(is_identical<T>(A.host(), Matrix<T>(n, n)));
      backend.clear_in_double(B.device());
      EXPECT_TRUE(is_identical<double>(B.host(), Matrix<double>(n, 3)));
      EXPECT_TRUE(A.rim_is_intact() && B.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, RoundGivesTheNearestNumbers) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(31);
    for (const auto& [rows, cols] : column_shapes()) {
      auto exact = dice.matrix<double>(rows, cols);
      for (Size i = 0; i < exact.size(); ++i) exact.data()[i] = std::exp(exact.data()[i]);  // all bits in use
      Both<double> A(backend, exact);
      Both<T> C(backend, rows, cols);
      backend.round(A.device(), C.device());
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) ASSERT_EQ(C(i, j), static_cast<T>(exact(i, j)));
      }
      EXPECT_TRUE(C.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, MultiplyInDoubleDoesNotRoundToT) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(32);
    struct Extents {
      Size rows, cols, columns;
    };
    for (const auto& [rows, cols, columns] : {Extents{1, 1, 1}, {5, 0, 2}, {33, 9, 2}, {300, 128, 2}, {31, 700, 3}}) {
      for (const Op op : {Op::none, Op::transpose}) {
        for (const double beta : {0.0, 0.75}) {
          SCOPED_TRACE(
              fmt::format("{} x {}, {} columns, {}, beta = {}", rows, cols, columns, op == Op::none ? 'N' : 'T', beta));
          const auto a = dice.matrix<T>(rows, cols);
          auto b = dice.matrix<double>(op == Op::none ? cols : rows, columns);
          for (Size i = 0; i < b.size(); ++i) b.data()[i] = std::exp(b.data()[i]);  // all bits in use
          const auto x = dice.matrix<double>(op == Op::none ? rows : cols, columns);
          const auto truth = product(op, Op::none, 1, to_double(a), b, beta, x);
          Both<T> A(backend, a);
          Both<double> B(backend, b), X(backend, x), C(backend, x.rows(), columns);
          if (beta == 0) X.fill(std::numeric_limits<double>::quiet_NaN());
          backend.multiply_in_double(op, A.device(), B.device(), beta, X.device(), C.device());
          EXPECT_TRUE(
              is_near<double>(C.host(), truth, tolerance::double_sum(b.rows()), norm(a) * norm(b) + beta * norm(x)));
          EXPECT_TRUE(C.rim_is_intact());
        }
      }
    }
  });
}

template <class T>
std::vector<T> numbers(Dice& dice, Size count) {
  std::vector<T> values;
  for (Size i = 0; i < count; ++i) values.push_back(static_cast<T>(dice.normal()));
  return values;
}

TEST_P(BackendTest, AddColumnsAndScaleColumnsMultiplyByADiagonalMatrix) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(9);
    for (const auto& [rows, cols] : column_shapes()) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Both<T> A(backend, dice.matrix<T>(rows, cols)), B(backend, dice.matrix<T>(rows, cols)), C(backend, rows, cols);
      const auto factors = numbers<T>(dice, cols);
      Both<T> diagonal(backend, std::span<const T>(factors));
      const auto a = to_double<T>(A.host()), b = to_double<T>(B.host());
      Matrix<double> sum(rows, cols), scaled(rows, cols);
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) {
          scaled(i, j) = a(i, j) * static_cast<double>(factors[static_cast<std::size_t>(j)]);
          sum(i, j) = 2.5 * scaled(i, j) - 0.75 * b(i, j);
        }
      }
      const double scale = 2.5 * norm(scaled) + 0.75 * norm(b);
      backend.add_columns(T(2.5), A.device(), diagonal.device(), T(-0.75), B.device(), C.device());
      EXPECT_TRUE(is_near<T>(C.host(), sum, tolerance::elementwise<T>(), scale));
      backend.copy(A.device(), C.device());
      backend.add_columns(T(2.5), C.device(), diagonal.device(), T(-0.75), B.device(), C.device());  // C may be A
      EXPECT_TRUE(is_near<T>(C.host(), sum, tolerance::elementwise<T>(), scale));
      backend.copy(B.device(), C.device());
      backend.add_columns(T(2.5), A.device(), diagonal.device(), T(-0.75), C.device(), C.device());  // or B
      EXPECT_TRUE(is_near<T>(C.host(), sum, tolerance::elementwise<T>(), scale));
      EXPECT_TRUE(is_identical<double>(to_double<T>(A.host()), a));
      EXPECT_TRUE(is_identical<double>(to_double<T>(B.host()), b));
      backend.scale_columns(diagonal.device(), A.device());
      EXPECT_TRUE(is_near<T>(A.host(), scaled, tolerance::elementwise<T>()));
      EXPECT_TRUE(A.rim_is_intact() && B.rim_is_intact() && C.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, AddToRowsAddsTheVectorToEveryColumn) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(10);
    for (const auto& [rows, cols] : column_shapes()) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Both<T> A(backend, dice.matrix<T>(rows, cols));
      const auto b = numbers<T>(dice, rows);
      Both<T> vector(backend, std::span<const T>(b));
      auto truth = to_double<T>(A.host());
      double squares = 0;
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) {
          const auto value = static_cast<double>(b[static_cast<std::size_t>(i)]);
          squares += truth(i, j) * truth(i, j) + value * value;
          truth(i, j) += value;
        }
      }
      backend.add_to_rows(vector.device(), A.device());
      EXPECT_TRUE(is_near<T>(A.host(), truth, tolerance::elementwise<T>(), std::sqrt(squares)));
      EXPECT_TRUE(A.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, ScaleRowsMultipliesByADiagonalMatrixFromTheLeft) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(33);
    for (const auto& [rows, cols] : column_shapes()) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Both<T> A(backend, dice.matrix<T>(rows, cols)), a(backend, dice.matrix<T>(rows, 1));
      auto truth = to_double<T>(A.host());
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) truth(i, j) *= static_cast<double>(a(i, 0));
      }
      backend.scale_rows(a.device(), A.device());
      EXPECT_TRUE(is_near<T>(A.host(), truth, tolerance::elementwise<T>()));
      EXPECT_TRUE(A.rim_is_intact());
    }
  });
}

/// A type in which high + low below has no rounding, and how far the exponents of the two may be apart.
template <class T>
struct Wider {
  using Type = double;
  static constexpr int apart = 28;  // 24 + 28 bits
};
template <>
struct Wider<double> {
  using Type = long double;
  static constexpr int apart = 10;  // 53 + 10
};

TEST_P(BackendTest, CarryMovesWhatIsLargeToTheHighPartAndLosesNothing) {
  run([]<class T>(Backend<T>& backend) {
    using Wide = typename Wider<T>::Type;
    static_assert(std::numeric_limits<Wide>::digits > std::numeric_limits<T>::digits + Wider<T>::apart);
    Dice dice(11);
    const Size most = (Size{1} << std::numeric_limits<T>::digits) - 1;
    const auto number = [&] {  // all bits in use, of either sign, larger or smaller than the next
      const int exponent = static_cast<int>(dice.between(-Wider<T>::apart, 0)) - 30;
      return std::ldexp(static_cast<T>(dice.between(-most, most)), exponent);
    };
    for (const auto& [rows, cols] : column_shapes()) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Both<T> S(backend, rows, cols), high(backend, rows, cols), low(backend, rows, cols);
      Matrix<Wide> sums(rows, cols);
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) {
          const Size kind = dice.between(0, 11);
          const T h = kind == 0 ? T(0) : number(), l = kind == 1 ? T(0) : kind == 2 ? -h : number();
          high.host()(i, j) = h;
          low.host()(i, j) = l;
          sums(i, j) = static_cast<Wide>(h) + static_cast<Wide>(l);
          S.host()(i, j) = static_cast<T>(sums(i, j));
        }
      }
      const auto before = Matrix<T>::copy_of(S.host());
      const auto parts = std::pair(Matrix<T>::copy_of(high.host()), Matrix<T>::copy_of(low.host()));
      backend.carry(S.device(), high.device(), low.device());
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) {
          ASSERT_EQ(high(i, j), before(i, j));
          ASSERT_EQ(static_cast<Wide>(high(i, j)) + static_cast<Wide>(low(i, j)), sums(i, j));
        }
      }
      EXPECT_TRUE(is_identical<T>(S.host(), before));
      EXPECT_TRUE(S.rim_is_intact() && high.rim_is_intact() && low.rim_is_intact());
      // The sum itself, too.
      Both<T> sum(backend, parts.first), rest(backend, parts.second);
      backend.carry_over(rest.device(), sum.device());
      EXPECT_TRUE(is_identical<T>(sum.host(), high.host()) && is_identical<T>(rest.host(), low.host()));
      EXPECT_TRUE(sum.rim_is_intact() && rest.rim_is_intact());
    }
  });
}

}  // namespace
}  // namespace widehead::test
