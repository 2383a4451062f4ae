/// The timeline against the plain way: all rows moved at every transition.

#include "widehead/timeline.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "compare.h"
#include "dice.h"
#include "errors.h"
#include "known_svd.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

struct TimelineCase {
  Size D, d;
  bool zero;
  TimelineOptions options;
};
void PrintTo(const TimelineCase& param, std::ostream* out) { *out << "D = " << param.D << ", d = " << param.d; }

/// A timeline in double beside Z, the rows as columns, expressed now.
class Pair {
 public:
  Pair(const TimelineCase& param, std::uint64_t seed)
      : dice(seed),
        Z(param.d, param.D),
        store(*backend, param.D, param.d),
        timeline(*backend, store, param.zero, param.options) {
    if (param.zero) return;
    dice.fill(Z.view());
    backend->copy(Z, store.view_to_fill());
  }

  std::vector<Index> some_rows() {
    std::vector<Index> rows(static_cast<std::size_t>(Z.cols()));
    std::iota(rows.begin(), rows.end(), 0);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::swap(rows[i], rows[static_cast<std::size_t>(dice.between(static_cast<Size>(i), Z.cols() - 1))]);
    }
    // mostly the same few, as frequent words are
    rows.resize(static_cast<std::size_t>(dice.between(0, std::min<Size>(Z.cols(), 8))));
    return rows;
  }
  Matrix<double> columns(const std::vector<Index>& rows) const {
    Matrix<double> part(Z.rows(), static_cast<Size>(rows.size()));
    for (std::size_t k = 0; k < rows.size(); ++k) {
      std::copy_n(Z.view().column(rows[k]), Z.rows(), part.view().column(static_cast<Size>(k)));
    }
    return part;
  }
  /// Other values for some rows, in Z; returns them.
  std::vector<Index> change_some_rows() {
    auto rows = some_rows();
    for (const Index row : rows) dice.fill(Z.view().columns(row, 1));
    return rows;
  }

  void expect_same(const std::vector<Index>& rows) {
    const auto truth = columns(rows);
    Matrix<double> out(Z.rows(), truth.cols());
    timeline.gather(rows, out);
    ASSERT_TRUE(is_near<double>(out, truth, 1e-11, 1 + norm(Z)));
  }
  void expect_same() {
    std::vector<Index> all(static_cast<std::size_t>(Z.cols()));
    std::iota(all.begin(), all.end(), 0);
    expect_same(all);
  }

  void catch_up() {
    const auto rows = some_rows();
    Matrix<double> out(Z.rows(), static_cast<Size>(rows.size()));
    timeline.gather(rows, out);
    timeline.catch_up(rows, out);
  }
  void store_some() {
    const auto rows = change_some_rows();
    timeline.store(rows, columns(rows));
  }
  /// What is added to current rows is added; how many there were.
  Size add_to_some() {
    auto rows = some_rows();
    std::erase_if(rows, [&](Index row) { return !timeline.is_current(std::span(&row, 1)); });
    EXPECT_TRUE(timeline.is_current(rows) || timeline.options().keeps_products);
    const auto change = dice.matrix<double>(Z.rows(), static_cast<Size>(rows.size()));
    timeline.add(rows, change);
    for (std::size_t k = 0; k < rows.size(); ++k) {
      const auto z = Z.view().columns(rows[k], 1);
      backend->add(1, z, 1, change.view().columns(static_cast<Size>(k), 1), z);
    }
    return static_cast<Size>(rows.size());
  }
  /// z ← (I + b aᵀ) z with rows that are stored ahead of it.
  void advance(Size r) {
    auto a = dice.matrix<double>(Z.rows(), r), b = dice.matrix<double>(Z.rows(), r);
    const double shrink = 0.3 / (norm(a) * norm(b));
    for (Size i = 0; i < b.size(); ++i) b.data()[i] *= shrink;
    if (!timeline.has_room(r)) advance_dense();
    for (Size i = 0; i < Z.cols(); ++i) {
      std::vector<double> projections;
      for (Size k = 0; k < r; ++k) {
        projections.push_back(
            std::inner_product(a.view().column(k), a.view().column(k) + Z.rows(), Z.view().column(i), 0.0));
      }
      for (Size k = 0; k < r; ++k) {
        for (Size l = 0; l < Z.rows(); ++l) Z(l, i) += b(l, k) * projections[static_cast<std::size_t>(k)];
      }
    }
    const auto rows = change_some_rows();
    timeline.store_ahead(rows, columns(rows));
    timeline.advance(a, b);
  }
  /// z ← F z, likewise.
  void advance_dense() {
    std::vector<double> sigma;
    for (Size k = 0; k < Z.rows(); ++k) sigma.push_back(dice.uniform(0.7, 1.2));
    const KnownSvd svd(dice, sigma);
    Matrix<double> next(Z.rows(), Z.cols());
    for (Size i = 0; i < Z.cols(); ++i) {
      for (Size k = 0; k < Z.rows(); ++k) {
        for (Size l = 0; l < Z.rows(); ++l) next(l, i) += svd.A(l, k) * Z(k, i);
      }
    }
    Z = std::move(next);
    const auto rows = change_some_rows();
    timeline.store_ahead(rows, columns(rows));
    timeline.advance_dense(svd.A);
  }

  Dice dice;
  Matrix<double> Z;  // d x D
  std::shared_ptr<Backend<double>> backend = make_cpu_backend<double>(1);
  RowStore<double> store;
  Timeline<double> timeline;
};

class TimelineTest : public testing::TestWithParam<TimelineCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, TimelineTest,
                         testing::Values(TimelineCase{1, 1, false, {1, 2}}, TimelineCase{40, 5, true, {2, 2}},
                                         TimelineCase{40, 5, false, {3, 2}}, TimelineCase{300, 8, true, {4, 3}},
                                         TimelineCase{300, 8, false, {0, 3}}, TimelineCase{700, 3, false, {3, 2}},
                                         TimelineCase{40, 5, true, {0, 2, true}},
                                         TimelineCase{300, 8, false, {0, 3, true}}));

TEST_P(TimelineTest, RowsAreWhatTheyWouldBeHadAllMovedAtOnce) {
  for (const auto seed : seeds(3)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Pair pair(GetParam(), seed);
    const Size most = pair.timeline.options().panel_rank;
    Size added = 0;
    for (int t = 0; t < 120; ++t) {
      SCOPED_TRACE(fmt::format("operation {}", t));
      const auto before = pair.timeline.now();
      switch (pair.dice.between(0, 5)) {
        case 0: pair.catch_up(); break;
        case 1: pair.store_some(); break;
        case 2:
          pair.advance_dense();
          EXPECT_GT(pair.timeline.now(), before);
          break;
        default:
          if (GetParam().options.keeps_products) {
            pair.advance_dense();
          } else {
            pair.advance(pair.dice.between(1, most));
          }
          EXPECT_GT(pair.timeline.now(), before);
          break;
      }
      added += pair.add_to_some();
      pair.expect_same(pair.some_rows());
      if (t % 20 == 19) pair.expect_same();
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(pair.timeline.account().merges, 0) << "the test has no power";
    EXPECT_EQ(added > 0, !GetParam().options.keeps_products) << "who keeps products expresses no row at the present";
    EXPECT_EQ(pair.timeline.account().low_rank > 0, !GetParam().options.keeps_products);
    EXPECT_LE(pair.timeline.panel_rank(), most);
    EXPECT_LE(pair.timeline.alive_blocks(), 30) << "logarithmic in the number of transitions";
    EXPECT_GT(pair.timeline.bytes(), 0U);
  }
}

TEST(Timeline, GatherChangesNothing) {
  Pair pair({40, 5, false, {2, 2}}, 1);
  for (int t = 0; t < 10; ++t) pair.advance(1);
  EXPECT_TRUE(pair.timeline.has_room(2 - pair.timeline.panel_rank()));
  EXPECT_FALSE(pair.timeline.has_room(3 - pair.timeline.panel_rank()));
  const auto written = pair.store.rows_written();
  const auto rows = Matrix<double>::copy_of(pair.store.view());
  pair.expect_same();
  EXPECT_EQ(pair.store.rows_written(), written);
  EXPECT_TRUE(is_identical<double>(pair.store.view(), rows));
}

TEST(Timeline, RowsThatStayAwayAreNeverWritten) {
  Pair pair({500, 4, false, {2, 2}}, 1);
  const auto start = Matrix<double>::copy_of(pair.store.view());
  for (int t = 0; t < 60; ++t) {
    if (t % 3 == 0) {
      pair.timeline.advance_dense(Matrix<double>::identity(4));
    } else {
      ASSERT_TRUE(pair.timeline.has_room(1));
      pair.timeline.advance(Matrix<double>(4, 1), Matrix<double>(4, 1));
    }
  }
  EXPECT_EQ(pair.store.rows_written(), 0) << "no merge is O(D)";
  pair.expect_same();
}

TEST(Timeline, AnOldRowIsOneProductAwayWhereManyWere) {
  constexpr Size d = 8;
  Pair pair({200, d, false, {0, 8}}, 1);
  for (int flip = 0; flip < 6; ++flip) pair.advance_dense();
  ASSERT_EQ(pair.timeline.alive_blocks(), 6);
  const Index old = 199;
  const auto products = [&] {
    const double before = pair.timeline.account().products;
    Matrix<double> out(d, 1);
    pair.timeline.gather(std::span(&old, 1), out);
    return (pair.timeline.account().products - before) / GemmShape{Op::none, Op::none, d, 1, d}.flops();
  };
  EXPECT_EQ(products(), 6) << "from block to block";
  Index next = 0;
  const auto catch_up_until = [&](std::int64_t rows_in_all) {
    for (; pair.timeline.account().rows_caught_up < rows_in_all; ++next) {
      ASSERT_LT(next, old);
      Matrix<double> out(d, 1);
      pair.timeline.gather(std::span(&next, 1), out);
      pair.timeline.catch_up(std::span(&next, 1), out);
    }
  };
  catch_up_until(4 * d - 1);
  EXPECT_EQ(products(), 6);
  catch_up_until(4 * d);
  EXPECT_EQ(products(), 1);
  pair.expect_same();
  pair.advance_dense();
  EXPECT_EQ(products(), 7);
  pair.expect_same();
}

TEST(Timeline, TellsRowsThatWereNeverTouchedFromOthers) {
  std::vector<Index> found, positions;
  const std::vector<Index> rows = {7, 2, 9, 4}, some = {9, 2};
  Pair zero({40, 5, true, {2, 2}}, 1);
  zero.timeline.find_nonzero(rows, found, positions);
  EXPECT_TRUE(found.empty() && positions.empty());
  zero.timeline.store(some, zero.columns(some));
  zero.timeline.find_nonzero(rows, found, positions);
  EXPECT_EQ(found, (std::vector<Index>{2, 9}));
  EXPECT_EQ(positions, (std::vector<Index>{1, 2}));
  Pair random({40, 5, false, {2, 2}}, 1);
  random.timeline.find_nonzero(rows, found, positions);
  EXPECT_EQ(found, rows) << "rows that start as anything else are always there";
  EXPECT_EQ(positions, (std::vector<Index>{0, 1, 2, 3}));
}

TEST(Timeline, RefusesBadOptions) {
  const auto backend = make_cpu_backend<float>(1);
  RowStore<float> store(*backend, 5, 2);
  expect_throw<std::invalid_argument>([&] { Timeline<float>(*backend, store, true, {.panel_rank = -1}); },
                                      {"panel_rank = -1"});
  expect_throw<std::invalid_argument>([&] { Timeline<float>(*backend, store, true, {.radix = 1}); }, {"radix = 1"});
}

}  // namespace
}  // namespace widehead::test
