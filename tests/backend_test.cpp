/// Backend: dense products, element by element operations and reductions, each against plain loops,
/// on views amid larger matrices. Shapes straddle the stripes (16), the tiles (32) and the sizes
/// from which threads take part (2 Mflop, 65536 elements).

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
#include "errors.h"
#include "tolerance.h"
#include "widehead/errors.h"
#include "widehead/system_info.h"

namespace widehead::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, BackendTest, testing::ValuesIn(backend_cases()), backend_case_name);

template <class T>
void check_gemm(Backend<T>& backend, Dice& dice, const GemmShape& shape, double alpha, double beta) {
  SCOPED_TRACE(fmt::format("{}{} m = {}, n = {}, k = {}, alpha = {}, beta = {}", shape.op_a == Op::none ? 'N' : 'T',
                           shape.op_b == Op::none ? 'N' : 'T', shape.m, shape.n, shape.k, alpha, beta));
  const bool plain_a = shape.op_a == Op::none, plain_b = shape.op_b == Op::none;
  Padded<T> A(plain_a ? shape.m : shape.k, plain_a ? shape.k : shape.m);
  Padded<T> B(plain_b ? shape.k : shape.n, plain_b ? shape.n : shape.k);
  Padded<T> C(shape.m, shape.n);
  dice.fill(A.view()), dice.fill(B.view()), dice.fill(C.view());
  const auto a = to_double<T>(A), b = to_double<T>(B), c = to_double<T>(C);
  const auto truth = product(shape.op_a, shape.op_b, alpha, a, b, beta, c);
  if (beta == 0) {
    for (Size j = 0; j < shape.n; ++j) std::fill_n(C.view().column(j), shape.m, std::numeric_limits<T>::quiet_NaN());
  }
  backend.gemm(shape.op_a, shape.op_b, T(alpha), A, B, T(beta), C);
  const double scale = std::abs(alpha) * norm(a) * norm(b) + std::abs(beta) * norm(c);
  EXPECT_TRUE(is_near<T>(C, truth, tolerance::product<T>(shape.k), scale));
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

TEST_P(BackendTest, GemmTwiceIsBitIdentical) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(3);
    const auto A = dice.matrix<T>(120, 110), B = dice.matrix<T>(110, 100);
    Matrix<T> once(120, 100), again(120, 100);
    backend.gemm(Op::none, Op::none, T(1), A, B, T(0), once);
    for (int i = 0; i < 5; ++i) {
      backend.gemm(Op::none, Op::none, T(1), A, B, T(0), again);
      ASSERT_TRUE(is_identical<T>(once, again));
    }
  });
}

TEST_P(BackendTest, SymmetrizeTakesTheMeanWithTheTranspose) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(4);
    for (const Size n : {1, 2, 31, 32, 33, 65, 260}) {
      SCOPED_TRACE(fmt::format("n = {}", n));
      Padded<T> A(dice.matrix<T>(n, n));
      const auto before = to_double<T>(A);
      backend.symmetrize(A);
      Matrix<double> truth(n, n);
      for (Size j = 0; j < n; ++j) {
        for (Size i = 0; i < n; ++i) truth(i, j) = (before(i, j) + before(j, i)) / 2;
      }
      EXPECT_TRUE(is_near<T>(A, truth, tolerance::elementwise<T>()));
      for (Size j = 0; j < n; ++j) {
        for (Size i = 0; i < j; ++i) ASSERT_EQ(A.view()(i, j), A.view()(j, i)) << i << ", " << j;
      }
      EXPECT_TRUE(A.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, TransposeMovesEveryElement) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(5);
    for (const auto& [rows, cols] : {std::pair<Size, Size>{1, 1}, {1, 40}, {33, 1}, {31, 64}, {65, 32}, {33, 97}}) {
      Padded<T> A(dice.matrix<T>(rows, cols)), C(cols, rows);
      backend.transpose(A, C);
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) ASSERT_EQ(C.view()(j, i), A.view()(i, j));
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
      Padded<T> A(dice.matrix<T>(rows, cols)), B(dice.matrix<T>(rows, cols)), C(rows, cols);
      const auto a = to_double<T>(A), b = to_double<T>(B);
      Matrix<double> sum(rows, cols), half(rows, cols);
      for (Size i = 0; i < sum.size(); ++i) {
        sum.data()[i] = 2 * a.data()[i] - 0.5 * b.data()[i];
        half.data()[i] = 0.5 * a.data()[i];
      }
      const double scale = 2 * norm(a) + 0.5 * norm(b);
      backend.add(T(2), A, T(-0.5), B, C);
      EXPECT_TRUE(is_near<T>(C, sum, tolerance::elementwise<T>(), scale));
      backend.copy(A, C);
      EXPECT_TRUE(is_identical<T>(A, C));
      backend.add(T(2), C, T(-0.5), B, C);  // C may be A
      EXPECT_TRUE(is_near<T>(C, sum, tolerance::elementwise<T>(), scale));
      backend.copy(B, C);
      backend.add(T(2), A, T(-0.5), C, C);  // or B
      EXPECT_TRUE(is_near<T>(C, sum, tolerance::elementwise<T>(), scale));
      backend.scale(T(1), A);
      EXPECT_TRUE(is_identical<double>(to_double<T>(A), a));
      backend.scale(T(0.5), A);
      EXPECT_TRUE(is_identical<double>(to_double<T>(A), half));
      EXPECT_TRUE(A.rim_is_intact() && B.rim_is_intact() && C.rim_is_intact());
    }
  });
}

/// Shapes for what goes column by column: none, one, odd ones, and one large enough for threads.
std::vector<std::pair<Size, Size>> column_shapes() {
  return {{5, 0}, {1, 1}, {1, 40}, {17, 3}, {300, 250}, {31, 2200}};
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
      Padded<T> A(dice.matrix<T>(rows, cols)), B(dice.matrix<T>(rows, cols)), C(rows, cols);
      const auto factors = numbers<T>(dice, cols);
      const auto a = to_double<T>(A), b = to_double<T>(B);
      Matrix<double> sum(rows, cols), scaled(rows, cols);
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) {
          scaled(i, j) = a(i, j) * static_cast<double>(factors[static_cast<std::size_t>(j)]);
          sum(i, j) = 2.5 * scaled(i, j) - 0.75 * b(i, j);
        }
      }
      const double scale = 2.5 * norm(scaled) + 0.75 * norm(b);
      backend.add_columns(T(2.5), A, factors, T(-0.75), B, C);
      EXPECT_TRUE(is_near<T>(C, sum, tolerance::elementwise<T>(), scale));
      backend.copy(A, C);
      backend.add_columns(T(2.5), C, factors, T(-0.75), B, C);  // C may be A
      EXPECT_TRUE(is_near<T>(C, sum, tolerance::elementwise<T>(), scale));
      backend.copy(B, C);
      backend.add_columns(T(2.5), A, factors, T(-0.75), C, C);  // or B
      EXPECT_TRUE(is_near<T>(C, sum, tolerance::elementwise<T>(), scale));
      EXPECT_TRUE(is_identical<double>(to_double<T>(A), a) && is_identical<double>(to_double<T>(B), b));
      backend.scale_columns(factors, A);
      EXPECT_TRUE(is_near<T>(A, scaled, tolerance::elementwise<T>()));
      EXPECT_TRUE(A.rim_is_intact() && B.rim_is_intact() && C.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, AddToRowsAddsTheVectorToEveryColumn) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(10);
    for (const auto& [rows, cols] : column_shapes()) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Padded<T> A(dice.matrix<T>(rows, cols));
      const auto b = numbers<T>(dice, rows);
      auto truth = to_double<T>(A);
      double squares = 0;
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) {
          const auto value = static_cast<double>(b[static_cast<std::size_t>(i)]);
          squares += truth(i, j) * truth(i, j) + value * value;
          truth(i, j) += value;
        }
      }
      backend.add_to_rows(b, A);
      EXPECT_TRUE(is_near<T>(A, truth, tolerance::elementwise<T>(), std::sqrt(squares)));
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
      Padded<T> S(rows, cols), high(rows, cols), low(rows, cols);
      Matrix<Wide> sums(rows, cols);
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) {
          const Size kind = dice.between(0, 11);
          const T h = kind == 0 ? T(0) : number(), l = kind == 1 ? T(0) : kind == 2 ? -h : number();
          high.view()(i, j) = h;
          low.view()(i, j) = l;
          sums(i, j) = static_cast<Wide>(h) + static_cast<Wide>(l);
          S.view()(i, j) = static_cast<T>(sums(i, j));
        }
      }
      const auto before = Matrix<T>::copy_of(S);
      backend.carry(S, high, low);
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) {
          ASSERT_EQ(high.view()(i, j), before(i, j));
          ASSERT_EQ(static_cast<Wide>(high.view()(i, j)) + static_cast<Wide>(low.view()(i, j)), sums(i, j));
        }
      }
      EXPECT_TRUE(is_identical<T>(S, before));
      EXPECT_TRUE(S.rim_is_intact() && high.rim_is_intact() && low.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, DotIsTheTraceAccumulatedInDouble) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(7);
    for (const auto& [rows, cols] :
         {std::pair<Size, Size>{1, 1}, {1, 50}, {50, 1}, {37, 5}, {400, 2}, {300, 250}, {70000, 1}, {40000, 2}}) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Padded<T> A(dice.matrix<T>(rows, cols)), B(dice.matrix<T>(rows, cols));
      double truth = 0;
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) {
          truth += static_cast<double>(A.view()(i, j)) * static_cast<double>(B.view()(i, j));
        }
      }
      const double scale = norm<T>(A) * norm<T>(B);
      const double dot = backend.dot(A, B);
      EXPECT_TRUE(is_near(dot, truth, tolerance::double_sum(rows * cols), scale));
      EXPECT_EQ(backend.dot(A, B), dot) << "not the same sum again";
    }
  });
}

TEST_P(BackendTest, ColumnDotsAreTheDiagonalAccumulatedInDouble) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(12);
    for (const auto& [rows, cols] : column_shapes()) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Padded<T> A(dice.matrix<T>(rows, cols)), B(dice.matrix<T>(rows, cols));
      std::vector<double> out(static_cast<std::size_t>(cols), NAN);
      backend.column_dots(A, B, out);
      for (Size j = 0; j < cols; ++j) {
        double truth = 0, scale = 0;
        for (Size i = 0; i < rows; ++i) {
          const double term = static_cast<double>(A.view()(i, j)) * static_cast<double>(B.view()(i, j));
          truth += term;
          scale += std::abs(term);
        }
        ASSERT_TRUE(is_near(out[static_cast<std::size_t>(j)], truth, tolerance::double_sum(rows), scale)) << j;
      }
    }
  });
}

TEST_P(BackendTest, AddRowMomentsAddsSumsAndSquaresAccumulatedInDouble) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(13);
    for (const auto& [rows, cols] : {std::pair<Size, Size>{5, 0}, {1, 1}, {1, 300}, {33, 7}, {250, 300}, {17, 4000}}) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Padded<T> A(dice.matrix<T>(rows, cols));
      const auto sums_before = numbers<double>(dice, rows), squares_before = numbers<double>(dice, rows);
      auto sums = sums_before, squares = squares_before;
      backend.add_row_moments(A, sums, squares);
      for (Size i = 0; i < rows; ++i) {
        const auto k = static_cast<std::size_t>(i);
        double sum = sums_before[k], square = squares_before[k], sum_scale = std::abs(sum), scale = std::abs(square);
        for (Size j = 0; j < cols; ++j) {
          const auto value = static_cast<double>(A.view()(i, j));
          sum += value;
          sum_scale += std::abs(value);
          square += value * value;
          scale += value * value;
        }
        ASSERT_TRUE(is_near(sums[k], sum, tolerance::double_sum(cols), sum_scale)) << "sum of row " << i;
        ASSERT_TRUE(is_near(squares[k], square, tolerance::double_sum(cols), scale)) << "squares of row " << i;
      }
    }
  });
}

TEST_P(BackendTest, FindNonFiniteGivesTheFirstPosition) {
  run([]<class T>(Backend<T>& backend) {
    using Limits = std::numeric_limits<T>;
    Dice dice(8);
    Padded<T> padded(dice.matrix<T>(11, 6));
    const auto A = padded.view();
    A(0, 0) = Limits::max();
    A(1, 0) = Limits::lowest();
    A(2, 0) = Limits::max();
    A(3, 0) = Limits::denorm_min();
    EXPECT_EQ(backend.find_non_finite(A), -1);
    A(4, 5) = Limits::quiet_NaN();
    EXPECT_EQ(backend.find_non_finite(A), 4 + 5 * 11);
    A(10, 3) = -Limits::infinity();
    EXPECT_EQ(backend.find_non_finite(A), 10 + 3 * 11);
    A(2, 3) = Limits::infinity();
    EXPECT_EQ(backend.find_non_finite(A), 2 + 3 * 11);
    A(0, 0) = Limits::quiet_NaN();
    EXPECT_EQ(backend.find_non_finite(A), 0);
    EXPECT_EQ(backend.find_non_finite(A.block(0, 1, 2, 5)), -1) << "what is outside of the view does not count";
  });
}

TEST_P(BackendTest, KnowsItsDeviceAndThreads) {
  run([&]<class T>(Backend<T>& backend) {
    EXPECT_EQ(backend.device(), "cpu");
    EXPECT_EQ(backend.threads(), GetParam().threads);
    for (const Size dim : {1, 100, 65536}) EXPECT_GE(backend.rows_per_block(dim), 1);
  });
}

TEST(Backend, WithZeroThreadsTakesAllCores) { EXPECT_EQ(make_cpu_backend<float>(0)->threads(), system_info().cores); }

TEST(Backend, RefusesANegativeNumberOfThreads) {
  expect_throw<std::invalid_argument>([] { make_cpu_backend<float>(-2); }, {"threads = -2"});
  expect_throw<std::invalid_argument>([] { make_cpu_backend<double>(-1); }, {"threads = -1"});
}

TEST(Backend, ReportsExtentsBeyondTheIntegersOfBlasAlsoFromItsThreads) {
  // Nothing is read: the extent is refused first.
  double nothing = 0;
  const Size huge = 3000000000;
  const MatrixView<double> A(&nothing, 100, 1000, huge), C(&nothing, 100, 100, huge);
  for (const int threads : {1, 3}) {
    expect_throw<BackendError>([&] { make_cpu_backend<double>(threads)->gemm(Op::none, Op::transpose, 1, A, A, 0, C); },
                               {"3000000000"});
  }
}

TEST(Backend, ReportsAProductThatOneDnnRefuses) {
  if (system_info().sgemm_library.find("oneDNN") == std::string::npos) {
    GTEST_SKIP() << "float products are not oneDNN's here";
  }
  Matrix<float> A(4, 4), C(4, 4);
  const MatrixView<float> overlapping(A.data(), 4, 4, 1);
  expect_throw<BackendError>([&] { make_cpu_backend<float>(1)->gemm(Op::none, Op::none, 1, overlapping, A, 0, C); },
                             {"dnnl_sgemm(4 x 4 x 4)"});
}

TEST(Backend, ReportsAnSvdThatFails) {
  Matrix<double> A(3, 3);
  A(1, 1) = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> sigma(3);
  expect_throw<BackendError>([&] { make_cpu_backend<double>(1)->svd(A, sigma, {}); }, {"gesdd(3 x 3)"});
}

TEST(SystemInfo, NamesTheLibrariesAndTimesAProduct) {
  const auto info = system_info();
  EXPECT_FALSE(info.version.empty());
  EXPECT_FALSE(info.sgemm_library.empty());
  EXPECT_FALSE(info.blas_library.empty());
  EXPECT_GE(info.cores, 1);
  const GemmShape shape{Op::transpose, Op::none, 20, 30, 40};
  EXPECT_EQ(shape.flops(), 2.0 * 20 * 30 * 40);
  EXPECT_GT(time_gemm(*make_cpu_backend<float>(1), shape, 0), 0);
}

}  // namespace
}  // namespace widehead::test
