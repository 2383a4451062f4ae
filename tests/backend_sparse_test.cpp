/// Backend: sparse targets against the rows of V.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "backend_under_test.h"
#include "compare.h"
#include "oracle.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

WIDEHEAD_ON_ALL_BACKENDS;

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

/// Z: the rows of V that the groups name.
template <class T>
Matrix<T> rows_of_groups(const Matrix<T>& V, const RowGroups<T>& groups) {
  Matrix<T> Z(V.rows(), groups.count());
  for (Size group = 0; group < groups.count(); ++group) {
    std::copy_n(V.view().column(groups.row(group)), V.rows(), Z.view().column(group));
  }
  return Z;
}

TEST_P(BackendTest, AddCombinationSumsTheRowsThatEachExampleNames) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>& V) {
      const TypedMinibatch<T> typed(minibatch);
      const auto groups = groups_of(typed);
      const auto start = Dice(5).matrix<T>(V.rows(), minibatch.examples());
      const auto truth = product(Op::none, Op::none, 1, to_double(V), minibatch.Y(), 1, to_double(start));
      Both<T> Z(backend, rows_of_groups(V, groups)), G(backend, start), values(backend, groups.values());
      backend.add_combination(Z.device(), groups, values.device(), G.device());
      EXPECT_TRUE(is_near<T>(G.host(), truth, tolerance::product<T>(8), norm(start) + norm(V) * norm(minibatch.Y())));
      EXPECT_TRUE(G.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, DotsAtAreTheProductsWhereYHasValuesAccumulatedInDouble) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>& V) {
      const TypedMinibatch<T> typed(minibatch);
      const auto groups = groups_of(typed);
      Both<T> Z(backend, rows_of_groups(V, groups)), X(backend, Dice(6).matrix<T>(V.rows(), minibatch.examples()));
      const auto before = Dice(7).matrix<double>(groups.nonzeros(), 1);
      for (const double beta : {0.0, -0.5}) {
        Both<double> out(backend, before);
        if (beta == 0) out.fill(NAN);
        backend.dots_at(Z.device(), groups, X.device(), beta, out.device());
        for (Size e = 0; e < groups.nonzeros(); ++e) {
          const auto& entry = groups.entry(e);
          double truth = beta * before(e, 0), scale = std::abs(truth);
          for (Size i = 0; i < V.rows(); ++i) {
            const double term = static_cast<double>(V(i, entry.row)) * static_cast<double>(X(i, entry.example));
            truth += term;
            scale += std::abs(term);
          }
          ASSERT_TRUE(is_near(out(e, 0), truth, tolerance::double_sum(V.rows()), scale)) << e;
        }
        EXPECT_TRUE(out.rim_is_intact());
      }
    });
  });
}

TEST_P(BackendTest, AddByExampleAddsToEveryEntryOfAnExample) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>&) {
      const auto groups = groups_of(TypedMinibatch<T>(minibatch));
      const auto before = Dice(8).matrix<double>(groups.nonzeros(), 1);
      Both<double> t(backend, Dice(9).matrix<double>(minibatch.examples(), 1)), out(backend, before);
      backend.add_by_example(t.device(), groups, out.device());
      for (Size e = 0; e < groups.nonzeros(); ++e) {
        ASSERT_EQ(out(e, 0), before(e, 0) + t(groups.entry(e).example, 0)) << e;
      }
      EXPECT_TRUE(out.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, ScatterAddsToTheNamedRowsOnlyAndAddsRepeatedOnesUp) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>& start) {
      const TypedMinibatch<T> typed(minibatch);
      const auto groups = groups_of(typed);
      const auto Y = minibatch.Y();
      Both<T> V(backend, start), X(backend, Dice(3).matrix<T>(start.rows(), minibatch.examples()));
      Both<T> values(backend, groups.values());
      const auto x = to_double<T>(X.host());
      const auto truth = product(Op::none, Op::transpose, -0.5, x, Y, 1, to_double(start));
      backend.scatter(T(-0.5), groups, values.device(), X.device(), V.device());
      EXPECT_TRUE(is_near<T>(V.host(), truth, tolerance::product<T>(8), norm(start) + norm(x) * norm(Y)));
      for (Size i = 0; i < minibatch.outputs; ++i) {
        const bool named = std::find(minibatch.indices.begin(), minibatch.indices.end(), i) != minibatch.indices.end();
        if (named) continue;
        ASSERT_TRUE(is_identical<T>(V.host().columns(i, 1), start.view().columns(i, 1))) << "row " << i;
      }
      EXPECT_TRUE(V.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, ScatterIsBitIdenticalEveryTimeAndOnTheCpuWhateverTheNumberOfThreads) {
  run([&]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>& V) {
      const auto groups = groups_of(TypedMinibatch<T>(minibatch));
      const auto X = Dice(3).matrix<T>(V.rows(), minibatch.examples());
      const auto scattered = [&](Backend<T>& by) {
        Both<T> values(by, groups.values()), X_there(by, X), V_there(by, V);
        by.scatter(T(2), groups, values.device(), X_there.device(), V_there.device());
        return Matrix<T>::copy_of(V_there.host());
      };
      const auto A = scattered(backend), B = scattered(on_gpu() ? backend : *make_cpu_backend<T>(1));
      EXPECT_TRUE(is_identical<T>(A, B));
    });
  });
}

TEST_P(BackendTest, CombineIsWhatScatterAddsToEachRow) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>&) {
      const TypedMinibatch<T> typed(minibatch);
      const auto groups = groups_of(typed);
      const Size dim = minibatch.H.rows();
      const auto all = product(Op::none, minibatch.H, Op::transpose, minibatch.Y());  // d x D
      Matrix<double> truth(dim, groups.count());
      for (Size g = 0; g < groups.count(); ++g) {
        std::copy_n(all.view().column(groups.row(g)), dim, truth.view().column(g));
      }
      Both<T> X(backend, typed.H), Z(backend, dim, groups.count()), values(backend, groups.values());
      Z.fill(std::numeric_limits<T>::quiet_NaN());
      backend.combine(groups, values.device(), X.device(), Z.device());
      EXPECT_TRUE(is_near<T>(Z.host(), truth, tolerance::product<T>(minibatch.examples()),
                             norm(minibatch.H) * norm(minibatch.Y())));
      EXPECT_TRUE(Z.rim_is_intact());
      Both<T> own(backend, dim, groups.count());
      own.fill(std::numeric_limits<T>::quiet_NaN());
      backend.combine_own(groups, X.device(), own.device());
      EXPECT_TRUE(is_identical<T>(own.host(), Z.host()));
      EXPECT_TRUE(own.rim_is_intact());
    });
  });
}

TEST_P(BackendTest, GramIsTheProductsOfExamplesThatShareAnOutput) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>&) {
      const auto groups = groups_of(TypedMinibatch<T>(minibatch));
      const auto Y = minibatch.Y();
      Both<T> M(backend, minibatch.examples(), minibatch.examples()), values(backend, groups.values());
      M.fill(std::numeric_limits<T>::quiet_NaN());
      backend.gram(groups, values.device(), M.device());
      EXPECT_TRUE(
          is_near<T>(M.host(), product(Op::transpose, Y, Op::none, Y), tolerance::product<T>(40), norm(Y) * norm(Y)));
      EXPECT_TRUE(M.rim_is_intact());
    });
  });
}

/// Γ is a matrix of the same pattern, and its values are the backend's own.
TEST_P(BackendTest, OperationsOnAPatternTakeOtherValues) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>& V) {
      const auto groups = groups_of(TypedMinibatch<T>(minibatch));
      const Size m = minibatch.examples();
      Both<T> values(backend, Dice(10).matrix<T>(groups.nonzeros(), 1));
      Matrix<double> Gamma(minibatch.outputs, m);
      for (Size e = 0; e < groups.nonzeros(); ++e) {
        Gamma(groups.entry(e).row, groups.entry(e).example) = static_cast<double>(values(e, 0));
      }
      Both<T> Z(backend, rows_of_groups(V, groups)), G(backend, Matrix<T>(V.rows(), m)), M(backend, Matrix<T>(m, m));
      backend.add_combination(Z.device(), groups, values.device(), G.device());
      backend.gram(groups, values.device(), M.device());
      EXPECT_TRUE(is_near<T>(G.host(), product(Op::none, to_double(V), Op::none, Gamma), tolerance::product<T>(8),
                             norm(V) * norm(Gamma)));
      EXPECT_TRUE(is_near<T>(M.host(), product(Op::transpose, Gamma, Op::none, Gamma), tolerance::product<T>(40),
                             norm(Gamma) * norm(Gamma)));
    });
  });
}

/// A pattern that is assigned again is another one, smaller or larger than before.
TEST_P(BackendTest, PatternsMayChange) {
  run([]<class T>(Backend<T>& backend) {
    RowGroups<T> groups;
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>& V) {
      const TypedMinibatch<T> typed(minibatch);
      groups.assign(typed.targets());
      Both<T> Z(backend, rows_of_groups(V, groups)), values(backend, groups.values());
      Both<T> G(backend, Matrix<T>(V.rows(), minibatch.examples()));
      backend.add_combination(Z.device(), groups, values.device(), G.device());
      const auto truth = product(Op::none, to_double(V), Op::none, minibatch.Y());
      EXPECT_TRUE(is_near<T>(G.host(), truth, tolerance::product<T>(8), norm(V) * norm(minibatch.Y())));
    });
  });
}

TEST_P(BackendTest, ReadAtAndAddAtMeetTheEntriesWithinABlockOfOutputs) {
  run([]<class T>(Backend<T>& backend) {
    for_each_shape<T>([&](const Minibatch& minibatch, const Matrix<T>&) {
      const auto groups = groups_of(TypedMinibatch<T>(minibatch));
      const Size D = minibatch.outputs, m = minibatch.examples();
      const auto added = Dice(12).matrix<T>(groups.nonzeros(), 1);
      for (const auto& [first, count] : {std::pair<Size, Size>{0, D}, {0, (D + 1) / 2}, {D / 3, D / 2}, {D - 1, 1}}) {
        SCOPED_TRACE(fmt::format("outputs from {} on, {} of them", first, count));
        const auto before = Dice(11).matrix<T>(m, count);
        Both<T> O(backend, before), values(backend, added);
        Both<double> out(backend, groups.nonzeros(), 1);
        out.fill(-3);
        backend.read_at(O.device(), first, groups, out.device());
        backend.add_at(groups, values.device(), first, O.device());
        auto truth = Matrix<T>::copy_of(before);
        for (Size e = 0; e < groups.nonzeros(); ++e) {
          const auto& entry = groups.entry(e);
          const bool inside = entry.row >= first && entry.row < first + count;
          ASSERT_EQ(out(e, 0), inside ? static_cast<double>(before(entry.example, entry.row - first)) : -3) << e;
          if (inside) truth(entry.example, entry.row - first) += added(e, 0);
        }
        EXPECT_TRUE(is_identical<T>(O.host(), truth));
        EXPECT_TRUE(O.rim_is_intact() && out.rim_is_intact());
      }
    });
  });
}

}  // namespace
}  // namespace widehead::test
