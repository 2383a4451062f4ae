/// Algorithms 1, 2 and 3 as the paper prints them: the first link of the chain, against the definition.

#include "widehead/reference.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "compare.h"
#include "errors.h"
#include "known_svd.h"
#include "oracle.h"
#include "tolerance.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

using Vector = Reference::Vector;
using Table = Reference::Table;

Table to_table(const Matrix<double>& A) {
  Table B(static_cast<std::size_t>(A.rows()), Vector(static_cast<std::size_t>(A.cols())));
  for (Size i = 0; i < A.rows(); ++i) {
    for (Size j = 0; j < A.cols(); ++j) B[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] = A(i, j);
  }
  return B;
}
Matrix<double> to_matrix(const Table& A) {
  Matrix<double> B(static_cast<Size>(A.size()), static_cast<Size>(A[0].size()));
  for (Size i = 0; i < B.rows(); ++i) {
    for (Size j = 0; j < B.cols(); ++j) B(i, j) = A[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
  }
  return B;
}
Matrix<double> transposed(const Matrix<double>& A) {
  Matrix<double> B(A.cols(), A.rows());
  for (Size i = 0; i < A.rows(); ++i) {
    for (Size j = 0; j < A.cols(); ++j) B(j, i) = A(i, j);
  }
  return B;
}
Matrix<double> product(const Matrix<double>& A, const Matrix<double>& B) {
  Matrix<double> C(A.rows(), B.cols());
  for (Size i = 0; i < C.rows(); ++i) {
    for (Size j = 0; j < C.cols(); ++j) {
      for (Size k = 0; k < A.cols(); ++k) C(i, j) += A(i, k) * B(k, j);
    }
  }
  return C;
}
Vector column(const Matrix<double>& A, Size j) { return Vector(A.view().column(j), A.view().column(j) + A.rows()); }

/// W as the oracle holds it.
Matrix<double> W_of(const Reference& reference) { return transposed(to_matrix(reference.W())); }

/// A reference with W = V U for a random V, which the oracle starts from too.
Reference random_reference(Dice& dice, Size D, Size d) {
  Reference reference(D, d);
  const auto V = dice.matrix<double>(D, d);
  reference.V = to_table(V);
  reference.Q = to_table(product(transposed(V), V));
  return reference;
}

void expect_consistent(const Reference& reference, const Oracle& oracle, double limit) {
  EXPECT_TRUE(is_near<double>(W_of(reference), oracle.W, limit, oracle.W_scale)) << "W = VU";
  EXPECT_TRUE(is_near<double>(to_matrix(reference.Q), oracle.Q(), limit, oracle.W_scale * oracle.W_scale)) << "Q = WᵀW";
  const auto U = to_matrix(reference.U), U_inv_T = to_matrix(reference.U_inv_T);
  EXPECT_TRUE(is_near<double>(product(transposed(U), U_inv_T), Matrix<double>::identity(U.rows()), limit,
                              norm(U) * norm(U_inv_T)))
      << "U⁻ᵀ";
}

double limit_after(int steps) { return tolerance::layer<double>(steps, std::pow(0.85, -steps)); }

TEST(Reference, OnlineStepsAreGradientDescent) {
  for (const auto seed : seeds(6)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Dice dice(seed);
    const Size D = dice.between(1, 20), d = dice.between(1, 8);
    auto reference = random_reference(dice, D, d);
    Oracle oracle(W_of(reference));
    for (int t = 1; t <= 12; ++t) {
      const auto minibatch = make_minibatch(dice, {D, d, 1, dice.between(0, 5)});
      const double eta = eta_for(minibatch, 0.15);
      Vector grad_h, evaluated;
      const auto h = column(minibatch.H, 0), y = column(minibatch.Y(), 0);
      const double loss = reference.loss(h, y, evaluated);
      EXPECT_EQ(reference.online_step(h, y, eta, grad_h), loss);
      EXPECT_EQ(grad_h, evaluated);
      const auto truth = oracle.step(minibatch, eta);
      EXPECT_TRUE(is_near(loss, truth.loss, limit_after(t), truth.loss_scale));
      EXPECT_TRUE(is_near<double>(to_matrix({grad_h}), transposed(truth.grad_H), limit_after(t), truth.grad_scale));
      expect_consistent(reference, oracle, limit_after(t));
    }
  }
}

TEST(Reference, MinibatchStepsAreGradientDescent) {
  for (const auto seed : seeds(6)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Dice dice(seed);
    const Size D = dice.between(1, 20), d = dice.between(1, 8);
    auto reference = random_reference(dice, D, d);
    Oracle oracle(W_of(reference));
    for (int t = 1; t <= 12; ++t) {
      const auto minibatch = make_minibatch(dice, {D, d, dice.between(1, 2 * d), dice.between(0, 5)});
      const double eta = t == 5 ? 0 : eta_for(minibatch, 0.15);
      Table grad_H;
      const double loss = reference.minibatch_step(to_table(minibatch.H), to_table(minibatch.Y()), eta, grad_H);
      const auto truth = oracle.step(minibatch, eta);
      EXPECT_TRUE(is_near(loss, truth.loss, limit_after(t), truth.loss_scale));
      EXPECT_TRUE(is_near<double>(to_matrix(grad_H), truth.grad_H, limit_after(t), truth.grad_scale));
      expect_consistent(reference, oracle, limit_after(t));
    }
  }
}

TEST(Reference, Algorithm1IsAlgorithm2WithOneExample) {
  Dice dice(71);
  constexpr Size D = 15, d = 5;
  auto online = random_reference(dice, D, d);
  auto minibatch_wise = online;
  for (int t = 1; t <= 15; ++t) {
    const auto minibatch = make_minibatch(dice, {D, d, 1, 3});
    const double eta = eta_for(minibatch, 0.15);
    Vector grad_h;
    Table grad_H;
    const double a = online.online_step(column(minibatch.H, 0), column(minibatch.Y(), 0), eta, grad_h);
    const double b = minibatch_wise.minibatch_step(to_table(minibatch.H), to_table(minibatch.Y()), eta, grad_H);
    EXPECT_TRUE(is_near(a, b, limit_after(t), 10 + std::abs(b)));
    EXPECT_TRUE(is_near<double>(to_matrix({grad_h}), transposed(to_matrix(grad_H)), limit_after(t),
                                10 + norm(to_matrix(grad_H))));
    for (const auto& [x, y, what] : {std::tuple{&online.V, &minibatch_wise.V, "V"},
                                     {&online.U, &minibatch_wise.U, "U"},
                                     {&online.U_inv_T, &minibatch_wise.U_inv_T, "U⁻ᵀ"},
                                     {&online.Q, &minibatch_wise.Q, "Q"}}) {
      EXPECT_TRUE(is_near<double>(to_matrix(*x), to_matrix(*y), limit_after(t))) << what;
    }
  }
}

TEST(Reference, RefusesSingularStepsAndIsAsBefore) {
  Dice dice(72);
  auto reference = random_reference(dice, 6, 2);
  const auto before = reference;
  Vector grad_h;
  Table grad_H;
  // 2η‖h‖² = 1 for η = 1/2
  expect_throw<NumericalError>([&] { reference.online_step({1, 0}, Vector(6), 0.5, grad_h); }, {"eta = 0.5"});
  expect_throw<NumericalError>(
      [&] {
        reference.minibatch_step({{1}, {0}}, Table(6, Vector(1)), 0.5, grad_H);
      },
      {"singular"});
  EXPECT_EQ(reference.V, before.V);
  EXPECT_EQ(reference.U, before.U);
  EXPECT_EQ(reference.U_inv_T, before.U_inv_T);
  EXPECT_EQ(reference.Q, before.Q);
}

// ── Algorithm 3 ─────────────────────────────────────────────────────────────────────────────────

/// A reference whose U has the given singular values; returns its left vectors by `svd`.
Reference reference_with(const KnownSvd& svd, Dice& dice, Size D) {
  Reference reference(D, svd.A.rows());
  reference.V = to_table(dice.matrix<double>(D, svd.A.rows()));
  reference.U = to_table(svd.A);
  reference.U_inv_T = to_table(svd.inverse_transposed());
  return reference;
}

Vector singular_values(const Table& U) {
  auto copy = to_matrix(U);
  Vector sigma(U.size());
  make_cpu_backend<double>(1)->svd(copy, sigma, {});
  return sigma;
}

/// @param condition  of U before the fixes: they rescale its inverse, errors and all
void expect_inverse(const Reference& reference, double condition) {
  const auto U = to_matrix(reference.U), U_inv_T = to_matrix(reference.U_inv_T);
  const auto I = Matrix<double>::identity(U.rows());
  EXPECT_TRUE(is_near<double>(product(transposed(U), U_inv_T), I, condition * tolerance::solve<double>(U.rows())));
}

TEST(Reference, FixingASingularValueMovesItAloneAndLeavesWUnchanged) {
  for (const double sigma_star : {1.0, 0.25}) {
    for (std::size_t k = 0; k < 4; ++k) {
      SCOPED_TRACE(fmt::format("σ{} becomes {}", k, sigma_star));
      Dice dice(73);
      const KnownSvd svd(dice, {50, 2, 0.5, 0.003});
      auto reference = reference_with(svd, dice, 9);
      const auto W = W_of(reference);
      reference.fix_singular_value(svd.sigma[k], column(svd.left, static_cast<Size>(k)), sigma_star);
      EXPECT_TRUE(is_near<double>(W_of(reference), W, tolerance::product<double>(4) * 50 / 0.003));
      auto expected = svd.sigma;
      expected[k] = sigma_star;
      std::sort(expected.rbegin(), expected.rend());
      const auto sigma = singular_values(reference.U);
      for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(sigma[i], expected[i], tolerance::svd<double>(4) * 50);
      expect_inverse(reference, 50 / 0.003);
    }
  }
}

TEST(Reference, StabilizingBringsAllSingularValuesIntoTheRange) {
  for (const auto seed : seeds(5)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Dice dice(seed);
    std::vector<double> known;
    for (Size k = dice.between(1, 10); k > 0; --k) known.push_back(std::exp(3 * dice.normal()));
    const KnownSvd svd(dice, known);
    auto reference = reference_with(svd, dice, 9);
    const auto W = W_of(reference);
    for (auto& row : reference.U_inv_T) std::fill(row.begin(), row.end(), 99);  // it takes a fresh inverse
    reference.singular_stabilize(0.4, 2.5);
    const double condition =
        *std::max_element(known.begin(), known.end()) / *std::min_element(known.begin(), known.end());
    EXPECT_TRUE(is_near<double>(W_of(reference), W, 10 * condition * tolerance::product<double>(10)));
    for (const double sigma : singular_values(reference.U)) {
      EXPECT_GE(sigma, 0.4 * (1 - 1e-9));
      EXPECT_LE(sigma, 2.5 * (1 + 1e-9));
    }
    expect_inverse(reference, condition);
  }
}

TEST(Reference, StabilizingLeavesASafeUAlone) {
  Dice dice(74);
  const KnownSvd svd(dice, {2, 1.5, 0.7});
  auto reference = reference_with(svd, dice, 4);
  const auto before = reference;
  reference.singular_stabilize(0.5, 3);
  EXPECT_EQ(reference.U, before.U);
  EXPECT_EQ(reference.V, before.V);
}

TEST(Reference, RestoringThePristineStateLeavesWUnchanged) {
  Dice dice(75);
  const KnownSvd svd(dice, {3, 1, 0.2});
  auto reference = reference_with(svd, dice, 7);
  const auto W = W_of(reference);
  reference.restore_pristine();
  EXPECT_TRUE(is_identical<double>(W_of(reference), W));
  EXPECT_EQ(reference.U, to_table(Matrix<double>::identity(3)));
  EXPECT_EQ(reference.U_inv_T, reference.U);
  EXPECT_EQ(reference.V, to_table(transposed(W)));
}

TEST(Reference, LayerStabilizesAtItsChecks) {
  StabilizerOptions stabilizer{.kind = Stabilize::svd, .sigma_low = 0.5, .sigma_high = 2, .n_check = 3};
  for (const Stabilize kind : {Stabilize::svd, Stabilize::never}) {
    stabilizer.kind = kind;
    ReferenceLayer layer({.outputs = 8, .dim = 3}, stabilizer, make_cpu_backend<double>(1));
    Matrix<double> h(3, 1);
    h(1, 0) = 1;
    const std::vector<std::int64_t> offsets{0, 0};
    for (int t = 1; t <= 4; ++t) {
      layer.step(h, SparseBatch<double>(8, offsets, {}, {}), 0.2);  // σ ← 0.6 σ
      const double sigma = singular_values(layer.state().U).back();
      const bool fixed = kind == Stabilize::svd && t >= 3;
      EXPECT_NEAR(sigma, fixed ? std::pow(0.6, t - 3) : std::pow(0.6, t), 1e-14) << "step " << t;
    }
  }
}

}  // namespace
}  // namespace widehead::test
