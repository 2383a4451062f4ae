#include "widehead/window.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "compare.h"
#include "oracle.h"

namespace widehead::test {
namespace {

/// Y_w (D x n) with its zeros.
Matrix<double> to_dense(const Window<double>& window, Size D) {
  Matrix<double> Y(D, window.columns());
  for (std::size_t slot = 0; slot < window.rows().size(); ++slot) {
    for (auto e = window.first_entry(slot); e != Window<double>::none; e = window.entry(e).next) {
      Y(window.rows()[slot], window.entry(e).column) += window.values()(e, 0);
    }
  }
  return Y;
}

/// Whether column k of Y_w belongs to the k-th of the window's outputs alone, with a 1.
bool is_plain(const Window<double>& window, const Matrix<double>& Y) {
  for (std::size_t slot = 0; slot < window.rows().size(); ++slot) {
    for (Size column = 0; column < Y.cols(); ++column) {
      if (Y(window.rows()[slot], column) != (column == static_cast<Size>(slot) ? 1 : 0)) return false;
    }
  }
  return true;
}

TEST(Window, HoldsTheMinibatchesSideBySide) {
  const auto backend = make_cpu_backend<double>(1);
  Window<double> window(*backend);
  RowGroups<double> groups;
  for (const auto seed : seeds(5)) {  // one window after another: clear() must forget everything
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Dice dice(seed);
    const Size D = dice.between(1, 400);
    Matrix<double> truth(D, 0);
    for (int t = 0; t < 6; ++t) {  // more outputs than the table starts with
      const auto minibatch = make_minibatch(dice, {D, 1, dice.between(1, 20), dice.between(0, 5)});
      const TypedMinibatch<double> typed(minibatch);
      groups.assign(typed.targets());
      window.append(groups, MatrixView<const double>(groups.values().data(), groups.nonzeros(), 1),
                    minibatch.examples());
      Matrix<double> wider(D, truth.cols() + minibatch.examples());
      std::copy_n(truth.data(), truth.size(), wider.data());
      std::copy_n(minibatch.Y().data(), D * minibatch.examples(), wider.data() + truth.size());
      truth = std::move(wider);
    }
    EXPECT_EQ(window.columns(), truth.cols());
    EXPECT_TRUE(is_near<double>(to_dense(window, D), truth, 1e-15));
    std::vector<Index> rows(window.rows().begin(), window.rows().end());
    std::sort(rows.begin(), rows.end());
    EXPECT_EQ(std::adjacent_find(rows.begin(), rows.end()), rows.end()) << "an output is listed twice";
    for (Index i = 0; i < D; ++i) {
      const auto slot = window.find(i);
      const bool listed = std::binary_search(rows.begin(), rows.end(), i);
      ASSERT_EQ(slot != Window<double>::none, listed) << i;
      if (listed) {
        EXPECT_EQ(window.rows()[static_cast<std::size_t>(slot)], i);
      }
    }
    window.clear();
    EXPECT_EQ(window.columns(), 0);
    EXPECT_TRUE(window.rows().empty());
    EXPECT_EQ(window.find(0), Window<double>::none);
  }
}

TEST(Window, GivesAnOutputOneColumnOfItsOwnHoweverOftenItComes) {
  const auto backend = make_cpu_backend<double>(1);
  Window<double> window(*backend);
  RowGroups<double> groups;
  for (const auto seed : seeds(5)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Dice dice(seed);
    const Size D = dice.between(1, 40);
    Matrix<double> truth(D, 0);
    std::map<Index, Index> own;
    Size examples = 0;
    for (int t = 0; t < 8; ++t) {  // now and then a minibatch that is appended by examples
      const auto minibatch = make_minibatch(dice, {D, 1, dice.between(1, 20), dice.between(0, 5)});
      const TypedMinibatch<double> typed(minibatch);
      groups.assign(typed.targets());
      examples += minibatch.examples();
      Size wider_by = minibatch.examples();
      if (t % 3 == 2) {
        window.append(groups, MatrixView<const double>(groups.values().data(), groups.nonzeros(), 1), wider_by);
      } else {
        const auto columns = window.append_by_output(groups, minibatch.examples());
        ASSERT_EQ(static_cast<Size>(columns.size()), groups.count());
        wider_by = 0;
        for (Size group = 0; group < groups.count(); ++group) {
          const auto [known, is_new] = own.try_emplace(groups.row(group), static_cast<Index>(truth.cols() + wider_by));
          if (is_new) ++wider_by;
          EXPECT_EQ(columns[static_cast<std::size_t>(group)], known->second);
        }
      }
      Matrix<double> wider(D, truth.cols() + wider_by);
      std::copy_n(truth.data(), truth.size(), wider.data());
      if (t % 3 == 2) std::copy_n(minibatch.Y().data(), D * wider_by, wider.data() + truth.size());
      truth = std::move(wider);
      for (const auto& [row, column] : own) truth(row, column) = 1;
      EXPECT_EQ(window.is_plain(), is_plain(window, truth)) << "after " << t;
    }
    EXPECT_EQ(window.columns(), truth.cols());
    EXPECT_EQ(window.examples(), examples);
    EXPECT_TRUE(is_near<double>(to_dense(window, D), truth, 1e-15));
    window.clear();
    EXPECT_EQ(window.examples(), 0);
  }
}

}  // namespace
}  // namespace widehead::test
