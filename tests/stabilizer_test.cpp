/// Algorithm 3 on the factors of a layer: W stays, the singular values of U come into the range.

#include "widehead/stabilizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend_under_test.h"
#include "compare.h"
#include "errors.h"
#include "known_svd.h"
#include "tolerance.h"
#include "widehead/reference.h"

namespace widehead::test {
namespace {

constexpr double low = 0.4, high = 2.5;

struct StabilizerCase {
  Stabilize kind;
  Dtype dtype;
};
void PrintTo(const StabilizerCase& param, std::ostream* out) { *out << name_of(param.dtype); }

class StabilizerTest : public testing::TestWithParam<StabilizerCase> {
 protected:
  template <class Body>
  void run(const Body& body) {
    with_dtype(GetParam().dtype, body);
  }
  StabilizerOptions options() const {
    return {.kind = GetParam().kind, .sigma_low = low, .sigma_high = high, .n_check = 1};
  }
};
std::vector<StabilizerCase> stabilizer_cases() {
  std::vector<StabilizerCase> cases;
  for (const Stabilize kind : {Stabilize::pristine, Stabilize::svd, Stabilize::power}) {
    for (const Dtype dtype : {Dtype::f32, Dtype::f64}) cases.push_back({kind, dtype});
  }
  return cases;
}
std::string stabilizer_case_name(const testing::TestParamInfo<StabilizerCase>& info) {
  const auto names = stabilize_names();
  const auto named =
      std::find_if(names.begin(), names.end(), [&](const auto& name) { return name.second == info.param.kind; });
  return std::string(named->first) + "_" + name_of(info.param.dtype);
}
INSTANTIATE_TEST_SUITE_P(Kinds, StabilizerTest, testing::ValuesIn(stabilizer_cases()), stabilizer_case_name);

/// V (d x D), U and a useless U⁻ᵀ, U with known singular values.
template <class T>
struct State {
  State(Dice& dice, const std::vector<double>& sigma, Size D) : svd(dice, sigma), V(dice.matrix<T>(svd.A.rows(), D)) {
    const Size d = svd.A.rows();
    U = Matrix<T>(d, d);
    U_inv_T = Matrix<T>(d, d);
    for (Size i = 0; i < U.size(); ++i) U.data()[i] = static_cast<T>(svd.A.data()[i]);
    std::fill_n(U_inv_T.data(), U_inv_T.size(), T(99));
  }
  Factors<T> factors() { return {V, U, U_inv_T}; }
  /// (V U)ᵀ, d x D.
  Matrix<double> W() const { return product(Op::transpose, to_double(U), Op::none, to_double(V)); }
  std::vector<double> sigma() const {
    auto copy = to_double(U);
    std::vector<double> values(static_cast<std::size_t>(U.rows()));
    make_cpu_backend<double>(1)->svd(copy, values, {});
    return values;
  }
  testing::AssertionResult inverse_is_fresh() const {
    return is_near<double>(product(Op::transpose, to_double(U), Op::none, to_double(U_inv_T)),
                           Matrix<double>::identity(U.rows()), tolerance::solve<T>(U.rows()), norm(U) * norm(U_inv_T));
  }

  KnownSvd svd;
  Matrix<T> V, U, U_inv_T;
};

template <class T>
void check_once(const StabilizerOptions& options, State<T>& state) {
  const auto backend = make_cpu_backend<T>(1);
  Stabilizer<T>(*backend, options, state.U.rows()).check(*backend, state.factors());
}

/// The error of a check in W: a few products, each amplified by the condition it mends.
template <class T>
double limit(Size d, double condition) {
  return 10 * condition * tolerance::product<T>(d);
}

TEST_P(StabilizerTest, CheckBringsSingularValuesIntoTheRangeAndLeavesWUnchanged) {
  run([&]<class T>() {
    for (const auto seed : seeds(5)) {
      SCOPED_TRACE(fmt::format("seed {}", seed));
      Dice dice(seed);
      std::vector<double> known;
      // well apart, so that a hundred power iterations converge
      for (Size k = 0, d = dice.between(2, 9); k < d; ++k) known.push_back(30 * std::pow(0.35, k));
      State<T> state(dice, known, 20);
      const auto W = state.W();
      const double condition = known.front() / known.back();
      const auto backend = make_cpu_backend<T>(2);
      Stabilizer<T> stabilizer(*backend, options(), state.U.rows());
      stabilizer.check(*backend, state.factors());
      EXPECT_TRUE(is_near<double>(state.W(), W, limit<T>(state.U.rows(), condition)));
      EXPECT_TRUE(state.inverse_is_fresh());
      const double slack = GetParam().kind == Stabilize::power ? 1e-3 : 1e-5;
      for (const double sigma : state.sigma()) {
        EXPECT_GE(sigma, low * (1 - slack));
        EXPECT_LE(sigma, high * (1 + slack));
      }
      const auto unsafe = std::count_if(known.begin(), known.end(), [](double s) { return s < low || s > high; });
      const auto& account = stabilizer.account();
      EXPECT_EQ(account.checks, 1);
      EXPECT_EQ(account.fixes, GetParam().kind == Stabilize::pristine ? 0 : unsafe);
      EXPECT_EQ(account.restores, GetParam().kind == Stabilize::pristine ? 1 : 0);
      EXPECT_GT(account.seconds, 0);
    }
  });
}

TEST_P(StabilizerTest, CheckAgreesWithTheReference) {
  run([&]<class T>() {
    Dice dice(81);
    State<T> state(dice, {20, 2, 0.9, 0.2, 0.03}, 12);
    Reference reference(12, 5);
    for (Size i = 0; i < 12; ++i) {
      for (Size k = 0; k < 5; ++k)
        reference.V[static_cast<std::size_t>(i)][static_cast<std::size_t>(k)] = static_cast<double>(state.V(k, i));
    }
    for (Size i = 0; i < 5; ++i) {
      for (Size k = 0; k < 5; ++k)
        reference.U[static_cast<std::size_t>(i)][static_cast<std::size_t>(k)] = static_cast<double>(state.U(i, k));
    }
    check_once<T>(options(), state);
    if (GetParam().kind == Stabilize::pristine) {
      reference.restore_pristine();
    } else {
      reference.singular_stabilize(low, high);
    }
    Matrix<double> U(5, 5), W(5, 12);
    const auto W_rows = reference.W();
    for (Size k = 0; k < 5; ++k) {
      for (Size i = 0; i < 5; ++i) U(i, k) = reference.U[static_cast<std::size_t>(i)][static_cast<std::size_t>(k)];
      for (Size i = 0; i < 12; ++i) W(k, i) = W_rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(k)];
    }
    EXPECT_TRUE(is_near<double>(state.W(), W, limit<T>(5, 20 / 0.03)));
    // The singular vectors stay, so U is determined; those of float are known to about ε times the condition.
    EXPECT_TRUE(is_near<T>(state.U, U, limit<T>(5, 20 / 0.03)));
  });
}

TEST_P(StabilizerTest, SafeUIsLeftAloneButForItsFreshInverse) {
  run([&]<class T>() {
    Dice dice(82);
    State<T> state(dice, {2.4, 1, 0.5}, 12);
    const auto U = Matrix<T>::copy_of(state.U), V = Matrix<T>::copy_of(state.V);
    const auto backend = make_cpu_backend<T>(1);
    Stabilizer<T> stabilizer(*backend, options(), 3);
    stabilizer.check(*backend, state.factors());
    EXPECT_TRUE(is_identical<T>(state.U, U));
    EXPECT_TRUE(is_identical<T>(state.V, V));
    EXPECT_TRUE(state.inverse_is_fresh());
    EXPECT_EQ(stabilizer.account().checks, 1);
    EXPECT_EQ(stabilizer.account().fixes + stabilizer.account().restores, 0);
  });
}

TEST_P(StabilizerTest, ChecksInSuccessionMendWhatComesUpEachTime) {
  run([&]<class T>() {  // also that nothing of one check is applied to V again in the next
    Dice dice(83);
    State<T> state(dice, {1, 0.9, 0.8, 0.7}, 30);
    const auto backend = make_cpu_backend<T>(1);
    Stabilizer<T> stabilizer(*backend, options(), 4);
    for (int round = 0; round < 3; ++round) {
      for (Size k = 0; k < 4; ++k) state.U(k, 1) *= T(0.2), state.U(2, k) *= T(4);
      const auto W = state.W();
      stabilizer.check(*backend, state.factors());
      EXPECT_TRUE(is_near<double>(state.W(), W, limit<T>(4, 30)));
      for (const double sigma : state.sigma()) EXPECT_TRUE(sigma > low * 0.99 && sigma < high * 1.01) << sigma;
    }
    EXPECT_EQ(stabilizer.account().checks, 3);
    EXPECT_GE(stabilizer.account().fixes + stabilizer.account().restores, 3);
  });
}

TEST_P(StabilizerTest, HugeSingularValueIsMendedWithoutHarmToW) {
  run([&]<class T>() {
    // Beyond 1/ε a rank-one fix is lost in rounding (α = 1/σ − 1 is −1), and W with it.
    Dice dice(84);
    State<T> state(dice, {1, 1, 1}, 10);
    state.U = Matrix<T>::identity(3);
    state.U(1, 1) = T(0x1p60);
    const auto W = state.W();
    check_once<T>(options(), state);
    EXPECT_TRUE(is_near<double>(state.W(), W, limit<T>(3, 1)));
    for (const double sigma : state.sigma()) EXPECT_TRUE(sigma > low && sigma < high) << sigma;
  });
}

TEST_P(StabilizerTest, WorksInOneDimension) {
  run([&]<class T>() {
    for (const double sigma : {0.01, 1.0, 50.0}) {
      Dice dice(85);
      State<T> state(dice, {sigma}, 5);
      const auto W = state.W();
      check_once<T>(options(), state);
      EXPECT_TRUE(is_near<double>(state.W(), W, limit<T>(1, 1)));
      EXPECT_NEAR(state.sigma()[0], 1, 10 * tolerance::epsilon<T>);
    }
  });
}

TEST_P(StabilizerTest, SingularUIsLeftToTheNextStep) {
  run([&]<class T>() {
    Dice dice(86);
    State<T> state(dice, {1, 1, 1}, 5);
    state.U = Matrix<T>::identity(3);
    state.U(2, 2) = 0;
    const auto W = state.W();
    check_once<T>(options(), state);
    EXPECT_TRUE(is_near<double>(state.W(), W, limit<T>(3, 1)));
    EXPECT_TRUE(all_finite<T>(state.U) && all_finite<T>(state.V));
  });
}

TEST(Stabilizer, RestoresThePristineStateOverSeveralBlocksOfRows) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
    with_dtype(dtype, []<class T>() {
      Dice dice(87);
      const auto backend = make_cpu_backend<T>(1);
      State<T> state(dice, {3, 0.1}, 2 * backend->rows_per_block(2) + 5);
      const auto W = state.W();
      Stabilizer<T> stabilizer(*backend, {}, 2);
      stabilizer.restore_pristine(*backend, state.factors());
      EXPECT_TRUE(is_near<T>(state.V, W, tolerance::product<T>(2), norm(W) + 3 * norm(state.V)));
      EXPECT_TRUE(is_identical<T>(state.U, Matrix<T>::identity(2)));
      EXPECT_TRUE(is_identical<T>(state.U_inv_T, Matrix<T>::identity(2)));
      EXPECT_EQ(stabilizer.account().restores, 1);
    });
  }
}

TEST(Stabilizer, InvertsAfreshUnlessSingular) {
  Dice dice(88);
  const auto backend = make_cpu_backend<double>(1);
  State<double> state(dice, {3, 1, 0.1}, 1);
  Matrix<double> scratch;
  EXPECT_TRUE(invert_afresh<double>(*backend, state.U, scratch, state.U_inv_T));
  EXPECT_TRUE(state.inverse_is_fresh());
  const auto before = Matrix<double>::copy_of(state.U_inv_T);
  EXPECT_FALSE(invert_afresh<double>(*backend, Matrix<double>(3, 3), scratch, state.U_inv_T));
  EXPECT_TRUE(is_identical<double>(state.U_inv_T, before));
}

TEST(Stabilizer, IsDueEveryNCheckStepsUnlessItIsNever) {
  const auto backend = make_cpu_backend<double>(1);
  const Stabilizer<double> stabilizer(*backend, {.kind = Stabilize::svd, .n_check = 3}, 2),
      never(*backend, {.kind = Stabilize::never, .n_check = 3}, 2);
  for (std::int64_t steps = 1; steps < 10; ++steps) {
    EXPECT_EQ(stabilizer.due(steps), steps % 3 == 0);
    EXPECT_FALSE(never.due(steps));
  }
}

TEST(Stabilizer, RefusesOptionsThatMakeNoSense) {
  const auto refuse = [](const StabilizerOptions& options, const std::vector<std::string>& words) {
    expect_throw<std::invalid_argument>([&] { Stabilizer<double>(*make_cpu_backend<double>(1), options, 3); }, words);
  };
  refuse({.sigma_low = 0}, {"[0, 100]"});
  refuse({.sigma_low = -1}, {"[-1, 100]"});
  refuse({.sigma_low = 1}, {"[1, 100]"});
  refuse({.sigma_high = 1}, {"[0.001, 1]"});
  refuse({.sigma_low = NAN}, {"[nan, 100]"});
  refuse({.sigma_high = NAN}, {"[0.001, nan]"});
  refuse({.n_check = 0}, {"n_check = 0"});
  refuse({.iterations = 0}, {"iterations = 0"});
}

}  // namespace
}  // namespace widehead::test
