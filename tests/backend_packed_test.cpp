/// Backend: matrices as layers have them, packed and aligned, of the sizes of a step, where a device takes other ways
/// than amid larger ones.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <tuple>
#include <vector>

#include "backend_under_test.h"
#include "compare.h"
#include "oracle.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

WIDEHEAD_ON_ALL_BACKENDS;

template <class T>
Matrix<T> there(Backend<T>& backend, ConstView<T> A) {
  Matrix<T> copy(A.rows, A.cols, backend.memory());
  backend.template transfer<T>(A, copy);
  return copy;
}
template <class T>
Matrix<T> here(Backend<T>& backend, ConstView<T> A) {
  Matrix<T> copy(A.rows, A.cols);
  backend.template transfer<T>(A, copy);
  return copy;
}

TEST_P(BackendTest, ProductsOfPackedMatrices) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(111);
    struct Extents {
      Size m, n, k;
    };
    for (const auto& [m, n, k] : {Extents{4, 4, 4},
                                  {32, 32, 64},
                                  {128, 128, 300},
                                  {300, 128, 128},
                                  {600, 128, 300},
                                  {300, 300, 128},
                                  {36, 20, 700},
                                  {33, 17, 65}}) {
      for (const Op op_a : {Op::none, Op::transpose}) {
        for (const Op op_b : {Op::none, Op::transpose}) {
          SCOPED_TRACE(fmt::format("{} x {} x {}, {} {}", m, n, k, op_a == Op::none ? "A" : "Aᵀ",
                                   op_b == Op::none ? "B" : "Bᵀ"));
          const auto A = op_a == Op::none ? dice.matrix<T>(m, k) : dice.matrix<T>(k, m);
          const auto B = op_b == Op::none ? dice.matrix<T>(k, n) : dice.matrix<T>(n, k);
          const auto before = dice.matrix<T>(m, n);
          auto C = there<T>(backend, before);
          backend.gemm(op_a, op_b, T(-0.5), there<T>(backend, A), there<T>(backend, B), T(2), C);
          const auto truth = product(op_a, op_b, -0.5, to_double(A), to_double(B), 2, to_double(before));
          EXPECT_TRUE(
              is_near<T>(here<T>(backend, C), truth, tolerance::product<T>(k), norm(A) * norm(B) + 2 * norm(before)));
        }
      }
    }
  });
}

/// As at the end of a window: AB with many rows or columns, over whatever was there.
TEST_P(BackendTest, LargeProductsOfPackedMatrices) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(117);
    for (const auto& [m, n, k] : {std::tuple<Size, Size, Size>{332, 1300, 68}, {1000, 460, 61}, {264, 1799, 140}}) {
      SCOPED_TRACE(fmt::format("{} x {} x {}", m, n, k));
      const auto A = dice.matrix<T>(m, k), B = dice.matrix<T>(k, n);
      Matrix<T> before(m, n);
      std::fill_n(before.data(), before.size(), std::numeric_limits<T>::quiet_NaN());
      auto C = there<T>(backend, before);
      backend.gemm(Op::none, Op::none, T(-0.5), there<T>(backend, A), there<T>(backend, B), T(0), C);
      const auto truth = product(Op::none, Op::none, -0.5, to_double(A), to_double(B), 0, Matrix<double>(m, n));
      EXPECT_TRUE(is_near<T>(here<T>(backend, C), truth, tolerance::product<T>(k), norm(A) * norm(B)));
    }
  });
}

TEST_P(BackendTest, AddProductsAddsBoth) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(115);
    struct Extents {
      Size m, n, first, second;
    };
    for (const auto& [m, n, first, second] : {Extents{1, 1, 1, 1},
                                              {7, 5, 3, 9},
                                              {32, 16, 64, 64},
                                              {300, 128, 300, 128},
                                              {36, 20, 700, 4},
                                              {64, 64, 900, 900}}) {
      SCOPED_TRACE(fmt::format("{} x {}, {} and {} deep", m, n, first, second));
      const auto A = dice.matrix<T>(m, first), B = dice.matrix<T>(first, n), F = dice.matrix<T>(m, second),
                 G = dice.matrix<T>(second, n), before = dice.matrix<T>(m, n);
      auto C = there<T>(backend, before);
      backend.add_products(T(0.25), there<T>(backend, A), there<T>(backend, B), there<T>(backend, F),
                           there<T>(backend, G), C);
      const auto half = product(Op::none, Op::none, 0.25, to_double(A), to_double(B), 1, to_double(before));
      const auto truth = product(Op::none, Op::none, 0.25, to_double(F), to_double(G), 1, half);
      EXPECT_TRUE(is_near<T>(here<T>(backend, C), truth, tolerance::product<T>(first + second),
                             norm(A) * norm(B) + norm(F) * norm(G) + norm(before)));
    }
  });
}

/// ΓᵀΓ by pairs, as where P is made: few examples share a target, or so many that the pairs are too many.
TEST_P(BackendTest, AddWithGramOfPackedMatrices) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(118);
    for (const MinibatchShape& shape :
         std::vector<MinibatchShape>{{500, 300, 128, 1}, {500, 64, 32, 3}, {2, 32, 64, 1}}) {
      SCOPED_TRACE(fmt::format("D = {}, d = {}, m = {}", shape.outputs, shape.dim, shape.batch));
      const TypedMinibatch<T> typed(make_minibatch(dice, shape));
      RowGroups<T> groups;
      groups.assign(typed.targets());
      const Size d = shape.dim, m = shape.batch;
      const auto A = dice.matrix<T>(d, d), B = dice.matrix<T>(d, m), H = dice.matrix<T>(d, m),
                 before = dice.matrix<T>(d, m), values = dice.matrix<T>(groups.nonzeros(), 1);
      Matrix<T> N(m, m, backend.memory());
      auto C = there<T>(backend, before);
      backend.add_with_gram(T(-0.5), there<T>(backend, A), there<T>(backend, B), there<T>(backend, H), groups,
                            there<T>(backend, values), N, C);
      Matrix<double> pairs(m, m);
      for (Size i = 0; i < groups.nonzeros(); ++i) {
        for (Size j = 0; j < groups.nonzeros(); ++j) {
          if (groups.entry(i).row != groups.entry(j).row) continue;
          pairs(groups.entry(i).example, groups.entry(j).example) +=
              static_cast<double>(values(i, 0)) * static_cast<double>(values(j, 0));
        }
      }
      const auto with_product = product(Op::none, Op::none, -0.5, to_double(A), to_double(B), 1, to_double(before));
      const auto truth = product(Op::none, Op::none, -0.5, to_double(H), pairs, 1, with_product);
      EXPECT_TRUE(is_near<T>(here<T>(backend, C), truth, tolerance::product<T>(d + m),
                             norm(A) * norm(B) + norm(H) * norm(pairs) + norm(before)));
    }
  });
}

/// As many terms as a hot output has in a window, and few.
TEST_P(BackendTest, SumsOfPackedColumns) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(119);
    for (const Size d : {Size{4}, Size{300}, Size{1024}}) {
      SCOPED_TRACE(fmt::format("d = {}", d));
      constexpr Size D = 60;
      const auto V = dice.matrix<T>(d, D), values = dice.matrix<T>(400, 1);
      const std::vector<std::int64_t> offsets = {0, 3, 8, 400};
      std::vector<Index> columns, entries;
      Matrix<double> Y(D, 3);
      for (Index e = 0; e < 400; ++e) {
        columns.push_back(static_cast<Index>(dice.between(0, D - 1)));
        entries.push_back(e);
        Y(columns.back(), e < 3 ? 0 : e < 8 ? 1 : 2) += static_cast<double>(values(e, 0));
      }
      Matrix<T> G(d, 3, backend.memory());
      backend.gather(there<T>(backend, V), Selection{offsets, columns, entries}, there<T>(backend, values), G);
      const auto truth = product(Op::none, to_double(V), Op::none, Y);
      EXPECT_TRUE(is_near<T>(here<T>(backend, G), truth, tolerance::product<T>(400), norm(V) * norm(values)));
    }
  });
}

TEST_P(BackendTest, CommitStackIsItsFormulas) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(112);
    for (const auto& [d, m, n] : {std::tuple<Size, Size, Size>{1, 1, 0},
                                  {4, 4, 0},
                                  {7, 3, 2},
                                  {32, 16, 8},
                                  {36, 20, 40},
                                  {100, 32, 64},
                                  {300, 128, 256}}) {
      SCOPED_TRACE(fmt::format("d = {}, m = {}, n = {}", d, m, n));
      const double eta = 0.25;
      const Size height = 2 * d + n;
      const auto H = dice.matrix<T>(d, m), SH = dice.matrix<T>(height, m);
      auto high = dice.matrix<T>(d, 2 * d), low = dice.matrix<T>(d, 2 * d);
      for (Size j = 0; j < d; ++j) {  // Q's part is symmetric from the start
        for (Size i = 0; i < j; ++i) {
          high(i, j) = high(j, i);
          low(i, j) = low(j, i);
        }
      }
      const auto S = dice.matrix<T>(d, height + m);
      auto low_there = there<T>(backend, low), S_there = there<T>(backend, S);
      backend.commit_stack(T(eta), there<T>(backend, H), there<T>(backend, SH), there<T>(backend, high), low_there,
                           S_there);

      const auto change =
          product(Op::none, Op::transpose, -2 * eta, to_double(H), to_double(SH), 0, Matrix<double>(d, height));
      Matrix<double> new_low(d, 2 * d), new_S(d, height + m);
      for (Size i = 0; i < d; ++i) {
        for (Size j = 0; j < 2 * d; ++j) {
          new_low(i, j) = static_cast<double>(low(i, j)) + (j < d ? (change(i, j) + change(j, i)) / 2 : change(i, j));
          new_S(i, j) = static_cast<double>(high(i, j)) + new_low(i, j);
        }
        for (Size j = 2 * d; j < height; ++j) new_S(i, j) = static_cast<double>(S(i, j)) + change(i, j);
        for (Size j = 0; j < m; ++j) new_S(i, height + j) = -eta * static_cast<double>(H(i, j));
      }
      const double scale = norm(low) + norm(high) + norm(S) + 2 * eta * norm(H) * norm(SH);
      const auto low_here = here<T>(backend, low_there);
      EXPECT_TRUE(is_near<T>(low_here, new_low, tolerance::product<T>(m), scale));
      EXPECT_TRUE(is_near<T>(here<T>(backend, S_there), new_S, tolerance::product<T>(m), scale));
      for (Size j = 0; j < d; ++j) {
        for (Size i = 0; i < j; ++i) ASSERT_EQ(low_here(i, j), low_here(j, i)) << i << ", " << j;
      }
      if (!backend.memory().is_host()) continue;
      // Where the high part is S itself, the same sums, carried over: what low keeps is below the last bit of the sum.
      auto S_itself = Matrix<T>::copy_of(S), carried = Matrix<T>::copy_of(low);
      std::copy_n(high.data(), high.size(), S_itself.data());
      Matrix<T> H_T(m, d), UEH_T(m, d + n);
      backend.transpose(H, H_T);
      backend.transpose(SH.view().block(d, 0, d + n, m), UEH_T);
      backend.commit_stack_by_rows(T(eta), H, H_T, SH.view().block(0, 0, d, m), UEH_T, carried, S_itself);
      EXPECT_TRUE(is_near<T>(S_itself, new_S, tolerance::product<T>(m), scale));
      Matrix<double> held(d, 2 * d), sum(d, 2 * d);
      std::copy_n(new_S.data(), sum.size(), sum.data());
      for (Size j = 0; j < 2 * d; ++j) {
        for (Size i = 0; i < d; ++i) {
          ASSERT_EQ(S_itself(i, j), S_itself(i, j) + carried(i, j)) << i << ", " << j;
          held(i, j) = static_cast<double>(S_itself(i, j)) + static_cast<double>(carried(i, j));
        }
      }
      EXPECT_TRUE(is_near<double>(held, sum, tolerance::product<T>(m), scale));
      for (Size j = 0; j < d; ++j) {
        for (Size i = 0; i < j; ++i) {
          ASSERT_EQ(S_itself(i, j), S_itself(j, i)) << i << ", " << j;
          ASSERT_EQ(carried(i, j), carried(j, i)) << i << ", " << j;
        }
      }
    }
  });
}

/// Of one matrix few columns, of the other more than a bundle has.
TEST_P(BackendTest, ManyColumnsOfAFewMatrices) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(113);
    for (const Size d : {Size{4}, Size{64}, Size{300}, Size{520}}) {
      SCOPED_TRACE(fmt::format("d = {}", d));
      constexpr Size D = 60, count = 100;
      const auto V = dice.matrix<T>(d, D), M = dice.matrix<T>(d, 2 * d);
      std::vector<Index> rows, matrix;
      Matrix<double> truth(d, count);
      for (Size k = 0; k < count; ++k) {
        rows.push_back(static_cast<Index>(dice.between(0, D - 1)));
        matrix.push_back(k % 20 == 3 ? 1 : 0);
        double* z = truth.view().column(k);
        for (Size l = 0; l < d; ++l) {
          const T* m = M.view().column(matrix.back() * d + l);
          const auto v = static_cast<double>(V(l, rows.back()));
          for (Size i = 0; i < d; ++i) z[i] += static_cast<double>(m[i]) * v;
        }
      }
      Matrix<T> Z(d, count, backend.memory());
      backend.express_columns(there<T>(backend, V), rows, there<T>(backend, M), matrix, false, Z);
      EXPECT_TRUE(is_near<T>(here<T>(backend, Z), truth, tolerance::product<T>(d), norm(M) * norm(V)));
      for (Size k = 0; k < truth.size(); ++k) truth.data()[k] *= 2;
      backend.express_columns(there<T>(backend, V), rows, there<T>(backend, M), matrix, true, Z);
      EXPECT_TRUE(is_near<T>(here<T>(backend, Z), truth, tolerance::product<T>(d), norm(M) * norm(V)));
    }
  });
}

}  // namespace
}  // namespace widehead::test
