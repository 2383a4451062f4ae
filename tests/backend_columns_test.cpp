/// Backend: columns here and there, by lists of the host's, and passes over the whole of V.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "backend_under_test.h"
#include "compare.h"
#include "oracle.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

WIDEHEAD_ON_ALL_BACKENDS;

/// Some numbers below `end`, each at most once if `distinct`.
std::vector<Index> some_of(Dice& dice, Size end, Size count, bool distinct) {
  std::vector<Index> list(static_cast<std::size_t>(end));
  std::iota(list.begin(), list.end(), 0);
  if (distinct) {
    for (std::size_t k = list.size(); k > 1; --k) {
      std::swap(list[k - 1], list[static_cast<std::size_t>(dice.between(0, static_cast<Size>(k) - 1))]);
    }
    list.resize(static_cast<std::size_t>(count));
    return list;
  }
  list.clear();
  for (Size k = 0; k < count; ++k) list.push_back(static_cast<Index>(dice.between(0, end - 1)));
  return list;
}

TEST_P(BackendTest, MoveColumnsCopiesTheNamedOnesToTheNamedPlaces) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(23);
    for (const auto& [D, d, count] :
         {std::tuple<Size, Size, Size>{1, 1, 0}, {1, 1, 1}, {9, 5, 1}, {50, 7, 30}, {2000, 120, 700}}) {
      for (const bool with_from : {true, false}) {
        for (const bool with_to : {true, false}) {
          SCOPED_TRACE(fmt::format("D = {}, d = {}, {} columns, {} from, {} to", D, d, count, with_from, with_to));
          auto from = some_of(dice, D, with_from ? count : 0, false);  // some twice
          if (from.size() > 2) from[1] = Backend<T>::no_column;
          const auto to = some_of(dice, D, with_to ? count : 0, true);
          const auto source = dice.matrix<T>(d, D), target = dice.matrix<T>(d, D);
          Both<T> A(backend, source), C(backend, target);
          auto truth = Matrix<T>::copy_of(target);
          const Size moved = with_from || with_to ? count : 0;
          for (Size k = 0; k < moved; ++k) {
            const auto at = static_cast<std::size_t>(k);
            const Size here = with_from ? from[at] : k, there = with_to ? to[at] : k;
            for (Size i = 0; i < d; ++i) truth(i, there) = here < 0 ? T(0) : source(i, here);
          }
          backend.move_columns(A.device(), from, to, C.device());
          EXPECT_TRUE(is_identical<T>(C.host(), truth));
          EXPECT_TRUE(C.rim_is_intact());
        }
      }
    }
  });
}

TEST_P(BackendTest, ClearStartsClearsTheFirstElementsOfEachColumn) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(24);
    for (const auto& [rows, cols] : {std::pair<Size, Size>{0, 3}, {1, 1}, {9, 5}, {257, 300}}) {
      auto truth = dice.matrix<T>(rows, cols);
      Both<T> A(backend, truth);
      std::vector<Index> counts;
      for (Size j = 0; j < cols; ++j) {
        counts.push_back(static_cast<Index>(j == 0 ? rows : j == 1 ? 0 : dice.between(0, rows)));
        std::fill_n(truth.view().column(j), counts.back(), T(0));
      }
      backend.clear_starts(counts, A.device());
      EXPECT_TRUE(is_identical<T>(A.host(), truth));
      EXPECT_TRUE(A.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, AddToColumnsAddsToTheNamedOnesOnly) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(25);
    for (const auto& [D, d, count] :
         {std::tuple<Size, Size, Size>{1, 1, 0}, {1, 1, 1}, {9, 5, 1}, {50, 7, 50}, {2000, 120, 700}}) {
      SCOPED_TRACE(fmt::format("D = {}, d = {}, {} columns", D, d, count));
      const auto columns = some_of(dice, D, count, true);
      const auto start = dice.matrix<T>(d, D), gradient = dice.matrix<T>(d, count);
      Both<T> G(backend, gradient), P(backend, start);
      auto truth = to_double(start);
      for (Size k = 0; k < count; ++k) {
        for (Size i = 0; i < d; ++i) {
          truth(i, columns[static_cast<std::size_t>(k)]) += -0.75 * static_cast<double>(gradient(i, k));
        }
      }
      backend.add_to_columns(T(-0.75), G.device(), columns, P.device());
      EXPECT_TRUE(is_near<T>(P.host(), truth, tolerance::elementwise<T>(), norm(start) + norm(gradient)));
      for (Size c = 0; c < D; ++c) {
        if (std::find(columns.begin(), columns.end(), c) != columns.end()) continue;
        ASSERT_TRUE(is_identical<T>(P.host().columns(c, 1), start.view().columns(c, 1))) << "column " << c;
      }
      EXPECT_TRUE(P.rim_is_intact());
    }
  });
}

/// Calls check(minibatch, V) for minibatches of every kind, one of them large enough for threads.
template <class T, class Check>
void for_each_minibatch(const Check& check) {
  Dice dice(21);
  for (const MinibatchShape& shape : std::vector<MinibatchShape>{{1, 1, 1, 0},
                                                                 {1, 1, 1, 1},
                                                                 {1, 3, 4, 5},
                                                                 {9, 1, 5, 1},
                                                                 {12, 7, 10, 0},
                                                                 {8, 16, 20, 5},
                                                                 {2000, 120, 300, 3}}) {
    SCOPED_TRACE(fmt::format("D = {}, d = {}, m = {}, K = {}", shape.outputs, shape.dim, shape.batch, shape.nonzeros));
    check(make_minibatch(dice, shape), dice.matrix<T>(shape.dim, shape.outputs));
  }
}

TEST_P(BackendTest, GatherSumsTheRowsThatEachExampleNames) {
  run([]<class T>(Backend<T>& backend) {
    for_each_minibatch<T>([&](const Minibatch& minibatch, const Matrix<T>& rows) {
      const TypedMinibatch<T> typed(minibatch);
      const auto truth = product(Op::none, to_double(rows), Op::none, minibatch.Y());  // held transposed: V Y
      Both<T> V(backend, rows), G(backend, rows.rows(), minibatch.examples());
      G.fill(std::numeric_limits<T>::quiet_NaN());
      backend.gather(V.device(), typed.targets(), G.device());
      EXPECT_TRUE(is_near<T>(G.host(), truth, tolerance::product<T>(8), norm(rows) * norm(minibatch.Y())));
      EXPECT_TRUE(G.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, GatherWithValuesThatAreAResultTakesThemByEntry) {
  run([]<class T>(Backend<T>& backend) {
    for_each_minibatch<T>([&](const Minibatch& minibatch, const Matrix<T>& rows) {
      Dice dice(26);
      const Size m = minibatch.examples(), entries = static_cast<Size>(minibatch.indices.size());
      const Size results = entries + 3;  // some that nobody takes
      Both<T> V(backend, rows), G(backend, rows.rows(), m), values(backend, dice.matrix<T>(results, 1));
      const auto taken = some_of(dice, results, entries, false);
      Matrix<double> Y(minibatch.outputs, m);
      double scale = 0;
      for (Size j = 0; j < m; ++j) {
        for (auto e = minibatch.offsets[static_cast<std::size_t>(j)];
             e < minibatch.offsets[static_cast<std::size_t>(j) + 1]; ++e) {
          const auto at = static_cast<std::size_t>(e);
          const auto value = static_cast<double>(values(taken[at], 0));
          Y(minibatch.indices[at], j) += value;
          scale += value * value;
        }
      }
      G.fill(std::numeric_limits<T>::quiet_NaN());
      backend.gather(V.device(), Selection{minibatch.offsets, minibatch.indices, taken}, values.device(), G.device());
      const auto truth = product(Op::none, to_double(rows), Op::none, Y);
      EXPECT_TRUE(is_near<T>(G.host(), truth, tolerance::product<T>(8), norm(rows) * std::sqrt(scale)));
      EXPECT_TRUE(G.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, GatherAddsUpAnyNumberOfColumns) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(27);
    for (const Size d : {1, 7, 300, 1100}) {
      SCOPED_TRACE(fmt::format("d = {}", d));
      constexpr Size D = 40;
      const auto rows = dice.matrix<T>(d, D);
      std::vector<std::int64_t> offsets = {0};
      std::vector<Index> columns, entries;
      for (const int terms : {0, 1, 4, 5, 70, 300, 1000}) {
        for (int k = 0; k < terms; ++k) {
          columns.push_back(static_cast<Index>(dice.between(0, D - 1)));
          entries.push_back(static_cast<Index>(entries.size()));
        }
        offsets.push_back(static_cast<std::int64_t>(columns.size()));
      }
      const Size m = static_cast<Size>(offsets.size()) - 1;
      Both<T> V(backend, rows), G(backend, d, m), values(backend, dice.matrix<T>(static_cast<Size>(entries.size()), 1));
      Matrix<double> Y(D, m);
      for (Size j = 0; j < m; ++j) {
        for (auto e = offsets[static_cast<std::size_t>(j)]; e < offsets[static_cast<std::size_t>(j) + 1]; ++e) {
          Y(columns[static_cast<std::size_t>(e)], j) += static_cast<double>(values(e, 0));
        }
      }
      G.fill(std::numeric_limits<T>::quiet_NaN());
      backend.gather(V.device(), Selection{offsets, columns, entries}, values.device(), G.device());
      const auto truth = product(Op::none, to_double(rows), Op::none, Y);
      EXPECT_TRUE(is_near<T>(G.host(), truth, tolerance::product<T>(1000), norm(rows) * norm<T>(values.host())));
      EXPECT_TRUE(G.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, ApplyRankOnesMultipliesVByAllFactorsInTheirOrder) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(22);
    for (const auto& [D, d, fixes] : {std::tuple<Size, Size, Size>{1, 1, 1}, {50, 7, 0}, {50, 7, 3}, {301, 33, 5}}) {
      SCOPED_TRACE(fmt::format("D = {}, d = {}, {} factors", D, d, fixes));
      const auto start = dice.matrix<T>(d, D);
      Both<T> u(backend, d, fixes), beta(backend, fixes, 1), V(backend, start);
      auto truth = to_double(start);
      double growth = 1;
      for (Size k = 0; k < fixes; ++k) {  // unit vectors that are not orthogonal: the order matters
        const auto x = dice.matrix<T>(d, 1);
        for (Size i = 0; i < d; ++i) u.host()(i, k) = static_cast<T>(static_cast<double>(x(i, 0)) / norm(x));
        beta.host()(k, 0) = static_cast<T>(dice.uniform(-0.9, 3));
        const auto b = static_cast<double>(beta(k, 0));
        growth *= 1 + std::abs(b);
        for (Size i = 0; i < D; ++i) {
          double projection = 0;
          for (Size l = 0; l < d; ++l) projection += truth(l, i) * static_cast<double>(u(l, k));
          for (Size l = 0; l < d; ++l) truth(l, i) += b * projection * static_cast<double>(u(l, k));
        }
      }
      backend.apply_rank_ones(u.device(), beta.device(), V.device());
      EXPECT_TRUE(
          is_near<T>(V.host(), truth, tolerance::product<T>((d + 2) * std::max<Size>(fixes, 1)), growth * norm(start)));
      EXPECT_TRUE(V.rim_is_intact());
    }
  });
}

}  // namespace
}  // namespace widehead::test
