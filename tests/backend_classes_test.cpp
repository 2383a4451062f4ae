/// Backend: the parts of a two-level softmax against their definition.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend_under_test.h"
#include "compare.h"
#include "dice.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

WIDEHEAD_ON_ALL_BACKENDS;

struct PartSize {
  Size rows, pairs;
};

/// Parts with rows between them that belong to none, in double and with both sides' matrices.
template <class T>
struct Case {
  Case(Backend<T>& on, Dice& dice, Size d, const std::vector<PartSize>& sizes)
      : backend(on),
        W(backend, dice.matrix<T>(d, make_parts(dice, sizes))),
        H(backend, dice.matrix<T>(d, parts.pair_count())),
        G(backend, d, parts.pair_count()),
        E(backend, parts.logits(), 1),
        o(backend, parts.entry_count(), 1),
        sums(backend, parts.pair_count(), 1),
        log_Z(backend, parts.pair_count(), 1),
        maxima(backend, parts.pair_count(), 1) {
    for (Size j = 0; j < parts.pair_count(); ++j) {  // ‖h‖ ≈ 1
      for (Size k = 0; k < d; ++k) H.host()(k, j) /= static_cast<T>(std::sqrt(static_cast<double>(d)));
    }
    for (auto* result : {&G, &E, &maxima}) result->fill(std::numeric_limits<T>::quiet_NaN());
    for (auto* result : {&o, &sums, &log_Z}) result->fill(std::numeric_limits<double>::quiet_NaN());
  }

  /// Returns the number of rows.
  Size make_parts(Dice& dice, const std::vector<PartSize>& sizes) {
    Size row = 2;
    parts.clear();
    for (const auto& size : sizes) {
      parts.begin_part(row, size.rows);
      row += size.rows + 3;
      for (Size p = 0; p < size.pairs; ++p) {
        const Index pair = parts.add_pair(static_cast<Index>(p), dice.uniform(0.5, 2));
        Index last = -1;
        for (Size k = dice.between(0, 3); k > 0 && last + 1 < size.rows; --k) {
          last = static_cast<Index>(dice.between(last + 1, size.rows - 1));
          parts.add_entry(last, pair, static_cast<T>(dice.uniform(0.1, 1)));
        }
      }
    }
    return row;
  }
  PartRange all() const { return {0, static_cast<Size>(parts.parts().size())}; }

  void pass(PartRange range, T eta, bool wants_gradient = true) {
    backend.part_logits(parts, range, W.device(), H.device(), E.device());
    backend.part_softmax(parts, range, E.device(), {o.device(), maxima.device(), sums.device(), log_Z.device()});
    backend.part_backward(parts, range, E.device(), sums.device(), H.device(), eta, W.device(),
                          wants_gradient ? G.device() : MatrixView<T>());
  }
  bool rims_are_intact() {
    const auto intact = [](auto& matrix) { return static_cast<bool>(matrix.rim_is_intact()); };
    return intact(W) && intact(H) && intact(G) && intact(E) && intact(o) && intact(sums) && intact(log_Z) &&
           intact(maxima);
  }

  Backend<T>& backend;
  SoftmaxParts<T> parts;
  Both<T> W, H, G, E;
  Both<double> o, sums, log_Z;
  Both<T> maxima;
};

/// The same by the definition, in double.
struct Truth {
  Matrix<double> W, G, R, o, log_Z;

  template <class T>
  Truth(Case<T>& given, double eta)
      : W(to_double<T>(given.W.host())),
        G(W.rows(), given.parts.pair_count()),
        R(given.parts.logits(), 1),
        o(given.parts.entry_count(), 1),
        log_Z(given.parts.pair_count(), 1) {
    const auto H = to_double<T>(given.H.host());
    const auto before = Matrix<double>::copy_of(W);
    const Size d = W.rows();
    for (const auto& part : given.parts.parts()) {
      const auto entries = given.parts.entries_of(part);
      for (Size p = 0; p < part.pairs; ++p) {
        const Size pair = part.first_pair + p;
        double* r = R.data() + part.offset + p * part.rows;
        double Z = 0;
        for (Size i = 0; i < part.rows; ++i) {
          for (Size k = 0; k < d; ++k) r[i] += before(k, part.first_row + i) * H(k, pair);
          Z += std::exp(r[i]);
        }
        log_Z(pair, 0) = std::log(Z);
        for (std::size_t e = 0; e < entries.size(); ++e) {
          if (entries[e].pair == pair) o(part.first_entry + static_cast<Size>(e), 0) = r[entries[e].row];
        }
        const double mass = given.parts.pairs()[static_cast<std::size_t>(pair)].mass;
        for (Size i = 0; i < part.rows; ++i) r[i] = mass * std::exp(r[i]) / Z;
        for (const auto& entry : entries) {
          if (entry.pair == pair) r[entry.row] -= static_cast<double>(entry.value);
        }
        for (Size i = 0; i < part.rows; ++i) {
          for (Size k = 0; k < d; ++k) {
            G(k, pair) += before(k, part.first_row + i) * r[i];
            W(k, part.first_row + i) -= eta * r[i] * H(k, pair);
          }
        }
      }
    }
  }
};

template <class T>
double largest_column(MatrixView<const T> A) {
  double largest = 0;
  for (Size j = 0; j < A.cols; ++j) largest = std::max(largest, norm<T>(A.columns(j, 1)));
  return largest;
}

const std::vector<std::vector<PartSize>> shapes = {
    {{1, 1}},
    {{5, 3}, {16, 1}, {17, 2}, {1, 9}, {70, 13}},
    {{33, 8}, {2, 4}, {2100, 5}, {40, 31}},  // 2100: a device takes its rows in turns
};

TEST_P(BackendTest, PartsFollowTheirDefinition) {
  run([&]<class T>(Backend<T>& backend) {
    Dice dice(71);
    for (const Size d : {1, 5, 33, 130}) {
      for (const auto& sizes : shapes) {
        Case<T> c(backend, dice, d, sizes);
        const double eta = 0.25, norm_W = norm<T>(c.W.host()), norm_H = norm<T>(c.H.host());
        const Truth truth(c, eta);
        c.pass(c.all(), static_cast<T>(eta));
        // A logit is off by `logit` at most, and hence log Z; p by twice that, relatively, and by its own roundings.
        const double logit = tolerance::product<T>(d) * largest_column<T>(c.W.host()) * largest_column<T>(c.H.host());
        const double p = 2 * logit + 8 * tolerance::epsilon<T>;
        EXPECT_TRUE(is_near<double>(c.o.host(), truth.o, logit, std::sqrt(1.0 + static_cast<double>(truth.o.rows()))));
        EXPECT_TRUE(is_near<double>(c.log_Z.host(), truth.log_Z, logit + 8 * tolerance::epsilon<T>,
                                    std::sqrt(static_cast<double>(truth.log_Z.rows()))));
        const double norm_R = norm(truth.R) + std::sqrt(static_cast<double>(truth.G.cols())) * 2;
        EXPECT_TRUE(is_near<T>(c.E.host(), truth.R, p, norm_R));
        EXPECT_TRUE(is_near<T>(c.G.host(), truth.G, p + tolerance::product<T>(2100), norm_W * norm_R));
        EXPECT_TRUE(is_near<T>(c.W.host(), truth.W, p + tolerance::product<T>(31), norm_W + eta * norm_R * norm_H));
        EXPECT_TRUE(c.rims_are_intact());
        Both<double> total(backend, 1, 1);
        total.fill(1000);
        backend.add_part_loss(c.parts, {c.o.device(), c.maxima.device(), c.sums.device(), c.log_Z.device()},
                              total.device());
        double L = 0, scale = 1000;
        for (Size k = 0; k < truth.log_Z.rows(); ++k) {
          L += c.parts.pairs()[static_cast<std::size_t>(k)].mass * truth.log_Z(k, 0);
          scale += 2 * (std::abs(truth.log_Z(k, 0)) + 1);
        }
        for (Size e = 0; e < truth.o.rows(); ++e) {
          L -= static_cast<double>(c.parts.entries()[static_cast<std::size_t>(e)].value) * truth.o(e, 0);
          scale += std::abs(truth.o(e, 0)) + 1;
        }
        EXPECT_NEAR(total(0, 0), 1000 + L, (logit + 8 * tolerance::epsilon<T>)*scale);
      }
    }
  });
}

template <class T>
bool equal(Both<T>& a, Both<T>& b) {
  const auto A = a.host(), B = b.host();
  for (Size j = 0; j < A.cols; ++j) {
    if (!std::equal(A.column(j), A.column(j) + A.rows, B.column(j))) return false;
  }
  return true;
}

TEST_P(BackendTest, PartsGiveTheSameAloneAndTogether) {
  run([&]<class T>(Backend<T>& backend) {
    Dice dice(72), same(72);
    Case<T> together(backend, dice, 37, shapes[1]), alone(backend, same, 37, shapes[1]);
    together.pass(together.all(), T(0.5));
    for (const Size part : {3, 0, 4, 2, 1}) alone.pass({part, 1}, T(0.5));
    EXPECT_TRUE(equal(together.W, alone.W));
    EXPECT_TRUE(equal(together.G, alone.G));
    EXPECT_TRUE(equal(together.o, alone.o));
    EXPECT_TRUE(equal(together.log_Z, alone.log_Z));
  });
}

TEST_P(BackendTest, PartsLeaveAloneWhatTheyAreNotAskedFor) {
  run([&]<class T>(Backend<T>& backend) {
    Dice dice(73), same(73);
    Case<T> c(backend, dice, 20, shapes[1]), before(backend, same, 20, shapes[1]);
    c.pass({0, 0}, T(1));
    EXPECT_TRUE(equal(c.W, before.W));
    c.pass(c.all(), T(0));  // the gradient alone
    EXPECT_TRUE(equal(c.W, before.W));
    const Truth truth(before, 0);
    EXPECT_TRUE(is_near<T>(c.G.host(), truth.G, 1e5 * tolerance::epsilon<T>));
    c.pass({1, 1}, T(1), false);  // the update of one part alone
    EXPECT_TRUE(is_near<T>(c.G.host(), truth.G, 1e5 * tolerance::epsilon<T>));
    const auto& part = c.parts.parts()[1];
    const auto now = c.W.host(), then = before.W.host();
    for (Size i = 0; i < now.cols; ++i) {
      const bool same_row = std::equal(now.column(i), now.column(i) + now.rows, then.column(i));
      EXPECT_EQ(same_row, i < part.first_row || i >= part.first_row + part.rows) << i;
    }
  });
}

TEST_P(BackendTest, LogSoftmaxOfColumnsIsLogP) {
  run([&]<class T>(Backend<T>& backend) {
    Dice dice(74);
    for (const Size rows : {1, 7, 300, 1000}) {
      const auto given = dice.matrix<T>(rows, 6), added = dice.matrix<T>(1, 6);
      for (const bool adds : {false, true}) {
        Both<T> A(backend, given), b(backend, added);
        backend.log_softmax_columns(adds ? b.device() : MatrixView<T>(), A.device());
        Matrix<double> truth(rows, 6);
        for (Size j = 0; j < 6; ++j) {
          double Z = 0;
          for (Size i = 0; i < rows; ++i) Z += std::exp(static_cast<double>(given(i, j)));
          for (Size i = 0; i < rows; ++i) {
            truth(i, j) =
                static_cast<double>(given(i, j)) - std::log(Z) + (adds ? static_cast<double>(added(0, j)) : 0);
          }
        }
        EXPECT_TRUE(is_near<T>(A.host(), truth, 8 * tolerance::epsilon<T>, norm(truth) + norm(given)));
        EXPECT_TRUE(A.rim_is_intact());
      }
    }
  });
}

}  // namespace
}  // namespace widehead::test
