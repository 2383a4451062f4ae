/// Backend: sparse targets against the rows of V, and passes over the whole of V.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "backend_under_test.h"
#include "compare.h"
#include "oracle.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, BackendTest, testing::ValuesIn(backend_cases()), backend_case_name);

/// Small ones of every kind, and one large enough for threads (nonzeros · d > 65536).
std::vector<MinibatchShape> shapes() {
  return {{1, 1, 1, 0},  {1, 1, 1, 1},   {1, 3, 4, 5},   {9, 1, 5, 1},
          {12, 7, 1, 6}, {12, 7, 10, 0}, {8, 16, 20, 5}, {2000, 120, 300, 3}};
}

/// Calls check(minibatch, V) for each shape.
template <class T, class Check>
void for_each_shape(const Check& check) {
  Dice dice(21);
  for (const auto& shape : shapes()) {
    SCOPED_TRACE(fmt::format("D = {}, d = {}, m = {}, K = {}", shape.outputs, shape.dim, shape.batch, shape.nonzeros));
    check(make_minibatch(dice, shape), dice.matrix<T>(shape.dim, shape.outputs));
  }
}

template <class T>
RowGroups<T> groups_of(const TypedMinibatch<T>& minibatch) {
  RowGroups<T> groups;
  groups.assign(minibatch.targets());
  return groups;
}

TEST_P(BackendTest, SelectCopiesTheNamedRowsInTheirOrder) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(23);
    for (const auto& [D, d, count] :
         {std::tuple<Size, Size, Size>{1, 1, 0}, {1, 1, 3}, {9, 5, 1}, {50, 7, 80}, {2000, 120, 700}}) {
      SCOPED_TRACE(fmt::format("D = {}, d = {}, {} rows", D, d, count));
      Padded<T> V(dice.matrix<T>(d, D)), Z(d, count);
      std::vector<Index> rows;
      for (Size k = 0; k < count; ++k) rows.push_back(static_cast<Index>(dice.between(0, D - 1)));  // some twice
      backend.select(V, rows, Z);
      for (Size k = 0; k < count; ++k) {
        const Index row = rows[static_cast<std::size_t>(k)];
        ASSERT_TRUE(is_identical<T>(Z.view().columns(k, 1), V.view().columns(row, 1))) << k << ": row " << row;
      }
      EXPECT_TRUE(Z.rim_is_intact());
    }
  });
}

TEST_P(BackendTest, GatherSumsTheRowsThatEachExampleNames) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>& V) {
      const TypedMinibatch<T> typed(minibatch);
      const auto truth = product(Op::none, to_double(V), Op::none, minibatch.Y());  // held transposed: V Y
      Padded<T> V_view(V), G(V.rows(), minibatch.examples());
      backend.gather(V_view, typed.targets(), G);
      EXPECT_TRUE(is_near<T>(G, truth, tolerance::product<T>(8), norm(V) * norm(minibatch.Y())));
      EXPECT_TRUE(G.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, AddCombinationDoesTheSameFromGatheredRows) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>& V) {
      const TypedMinibatch<T> typed(minibatch);
      const auto groups = groups_of(typed);
      const auto G = Dice(5).matrix<T>(V.rows(), minibatch.examples());
      const auto truth = product(Op::none, Op::none, 1, to_double(V), minibatch.Y(), 1, to_double(G));
      Padded<T> Z(V.rows(), groups.count()), G_view(G);
      for (Size group = 0; group < groups.count(); ++group) {
        std::copy_n(V.view().column(groups.row(group)), V.rows(), Z.view().column(group));
      }
      backend.add_combination(Z, groups, G_view);
      EXPECT_TRUE(is_near<T>(G_view, truth, tolerance::product<T>(8), norm(G) + norm(V) * norm(minibatch.Y())));
      EXPECT_TRUE(G_view.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, DotsAtAreTheProductsWhereYHasValuesAccumulatedInDouble) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>& V) {
      const TypedMinibatch<T> typed(minibatch);
      const auto groups = groups_of(typed);
      Padded<T> Z(V.rows(), groups.count()), X(Dice(6).matrix<T>(V.rows(), minibatch.examples()));
      for (Size group = 0; group < groups.count(); ++group) {
        std::copy_n(V.view().column(groups.row(group)), V.rows(), Z.view().column(group));
      }
      std::vector<double> out(static_cast<std::size_t>(groups.nonzeros()), NAN);
      backend.dots_at(Z, groups, X, out);
      for (Size e = 0; e < groups.nonzeros(); ++e) {
        const auto& entry = groups.entry(e);
        double truth = 0, scale = 0;
        for (Size i = 0; i < V.rows(); ++i) {
          const double term = static_cast<double>(V(i, entry.row)) * static_cast<double>(X.view()(i, entry.example));
          truth += term;
          scale += std::abs(term);
        }
        ASSERT_TRUE(is_near(out[static_cast<std::size_t>(e)], truth, tolerance::double_sum(V.rows()), scale)) << e;
      }
    });
  });
}

TEST_P(BackendTest, ScatterAddsToTheNamedRowsOnlyAndAddsRepeatedOnesUp) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>& V) {
      const TypedMinibatch<T> typed(minibatch);
      const auto Y = minibatch.Y();
      const auto X = Dice(3).matrix<T>(V.rows(), minibatch.examples());
      const auto truth = product(Op::none, Op::transpose, -0.5, to_double(X), Y, 1, to_double(V));
      Padded<T> V_view(V), X_view(X);
      backend.scatter(T(-0.5), groups_of(typed), X_view, V_view);
      EXPECT_TRUE(is_near<T>(V_view, truth, tolerance::product<T>(8), norm(V) + norm(X) * norm(Y)));
      for (Size i = 0; i < minibatch.outputs; ++i) {
        const bool named = std::find(minibatch.indices.begin(), minibatch.indices.end(), i) != minibatch.indices.end();
        if (named) continue;
        ASSERT_TRUE(is_identical<T>(V_view.view().columns(i, 1), V.view().columns(i, 1))) << "row " << i;
      }
      EXPECT_TRUE(V_view.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, ScatterIsBitIdenticalWhateverTheNumberOfThreads) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>& V) {
      const TypedMinibatch<T> typed(minibatch);
      const auto X = Dice(3).matrix<T>(V.rows(), minibatch.examples());
      auto A = Matrix<T>::copy_of(V), B = Matrix<T>::copy_of(V);
      backend.scatter(T(2), groups_of(typed), X, A);
      make_cpu_backend<T>(1)->scatter(T(2), groups_of(typed), X, B);
      EXPECT_TRUE(is_identical<T>(A, B));
    });
  });
}

TEST_P(BackendTest, AddGramAddsTheProductsOfExamplesThatShareAnOutput) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>&) {
      const TypedMinibatch<T> typed(minibatch);
      const auto Y = minibatch.Y();
      const Size m = minibatch.examples();
      const auto M = Dice(4).matrix<T>(m, m);
      const auto truth = product(Op::transpose, Op::none, 1, Y, Y, 1, to_double(M));
      Padded<T> M_view(M);
      backend.add_gram(groups_of(typed), M_view);
      EXPECT_TRUE(is_near<T>(M_view, truth, tolerance::product<T>(40), norm(M) + norm(Y) * norm(Y)));
      EXPECT_TRUE(M_view.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, ApplyRankOnesMultipliesVByAllFactorsInTheirOrder) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(22);
    for (const auto& [D, d, fixes] : {std::tuple<Size, Size, Size>{1, 1, 1}, {50, 7, 0}, {50, 7, 3}, {301, 33, 5}}) {
      SCOPED_TRACE(fmt::format("D = {}, d = {}, {} factors", D, d, fixes));
      const auto V = dice.matrix<T>(d, D);
      Padded<T> u(d, fixes), V_view(V);
      std::vector<T> beta;
      auto truth = to_double(V);
      double growth = 1;
      for (Size k = 0; k < fixes; ++k) {  // unit vectors that are not orthogonal: the order matters
        const auto x = dice.matrix<T>(d, 1);
        for (Size i = 0; i < d; ++i) u.view()(i, k) = static_cast<T>(static_cast<double>(x(i, 0)) / norm(x));
        beta.push_back(static_cast<T>(dice.uniform(-0.9, 3)));
        const auto b = static_cast<double>(beta.back());
        growth *= 1 + std::abs(b);
        for (Size i = 0; i < D; ++i) {
          double projection = 0;
          for (Size l = 0; l < d; ++l) projection += truth(l, i) * static_cast<double>(u.view()(l, k));
          for (Size l = 0; l < d; ++l) truth(l, i) += b * projection * static_cast<double>(u.view()(l, k));
        }
      }
      backend.apply_rank_ones(u, beta, V_view);
      EXPECT_TRUE(
          is_near<T>(V_view, truth, tolerance::product<T>((d + 2) * std::max<Size>(fixes, 1)), growth * norm(V)));
      EXPECT_TRUE(V_view.rim_is_intact());
    }
  });
}

}  // namespace
}  // namespace widehead::test
