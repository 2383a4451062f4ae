#include "widehead/synthetic.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "compare.h"
#include "dice.h"
#include "errors.h"
#include "tolerance.h"
#include "widehead/backend.h"

namespace widehead::test {
namespace {

template <class T>
void expect_same(const SyntheticBatch<T>& a, const SyntheticBatch<T>& b) {
  EXPECT_TRUE(is_identical<T>(a.H, b.H));
  EXPECT_EQ(a.offsets, b.offsets);
  EXPECT_EQ(a.indices, b.indices);
  EXPECT_EQ(a.values, b.values);
}

TEST(Synthetic, BatchDependsOnItsNumberOnly) {
  const SyntheticOptions options{.outputs = 50, .dim = 6, .batch = 4, .nonzeros = 3, .seed = 9};
  const SyntheticStream<double> a(options), b(options);
  std::vector<SyntheticBatch<double>> forward;
  for (std::uint64_t t = 0; t < 5; ++t) forward.push_back(a.batch(t));
  for (std::uint64_t t = 5; t-- > 0;) expect_same(forward[t], b.batch(t));
  EXPECT_FALSE(is_identical<double>(forward[0].H, forward[1].H));
  auto other = options;
  other.seed = 10;
  EXPECT_FALSE(is_identical<double>(forward[0].H, SyntheticStream<double>(other).batch(0).H));
}

TEST(Synthetic, FloatAndDoubleSeeTheSameNumbers) {
  for (const auto& [name, activation] : activation_names()) {
    SCOPED_TRACE(name);
    const SyntheticOptions options{.outputs = 50, .dim = 6, .batch = 4, .nonzeros = 3, .activation = activation};
    const auto single = SyntheticStream<float>(options).batch(3);
    const auto twice = SyntheticStream<double>(options).batch(3);
    EXPECT_TRUE(is_identical<double>(to_double(single.H), twice.H));
    EXPECT_EQ(single.indices, twice.indices);
    for (std::size_t e = 0; e < single.values.size(); ++e)
      EXPECT_EQ(static_cast<double>(single.values[e]), twice.values[e]);
  }
}

TEST(Synthetic, BatchHasTheShapeAskedForWhateverK) {
  for (const Size K : {0, 1, 5}) {
    const auto batch = SyntheticStream<float>({.outputs = 7, .dim = 1, .batch = 3, .nonzeros = K}).batch(1);
    const auto targets = batch.targets();
    EXPECT_EQ(batch.H.rows(), 1);
    EXPECT_EQ(targets.examples(), 3);
    EXPECT_EQ(targets.outputs(), 7);
    for (Size j = 0; j < 3; ++j) EXPECT_EQ(targets.end(j) - targets.begin(j), K);
    for (const float value : batch.values) EXPECT_TRUE(K == 1 ? value == 1 : value >= 0.5F && value <= 1.5F);
  }
}

TEST(Synthetic, ActivationsKeepToTheirRanges) {
  const auto range = [](Activation activation) {
    const auto H = SyntheticStream<double>({.dim = 40, .batch = 40, .activation = activation}).batch(0).H;
    return std::pair(*std::min_element(H.data(), H.data() + H.size()),
                     *std::max_element(H.data(), H.data() + H.size()));
  };
  const auto relu = range(Activation::relu), tanh = range(Activation::tanh), sigmoid = range(Activation::sigmoid);
  EXPECT_EQ(relu.first, 0);
  EXPECT_GT(relu.second, 2);
  EXPECT_TRUE(tanh.first < -0.9 && tanh.first > -1 && tanh.second > 0.9 && tanh.second < 1);
  EXPECT_TRUE(sigmoid.first > 0 && sigmoid.first < 0.1 && sigmoid.second > 0.9 && sigmoid.second < 1);
}

/// χ² of counts against expected ones, as a number of standard deviations above its mean.
double chi_square_excess(const std::vector<double>& counts, const std::vector<double>& expected) {
  double chi = 0;
  for (std::size_t i = 0; i < counts.size(); ++i)
    chi += (counts[i] - expected[i]) * (counts[i] - expected[i]) / expected[i];
  const auto freedom = static_cast<double>(counts.size() - 1);
  return (chi - freedom) / std::sqrt(2 * freedom);
}

TEST(Synthetic, TargetsFollowTheirLaw) {
  constexpr Size D = 30, draws = 60000;
  for (const auto& [name, law] : target_law_names()) {
    SCOPED_TRACE(name);
    const SyntheticStream<float> stream(
        {.outputs = D, .dim = 1, .batch = 1000, .nonzeros = 2, .targets = law, .seed = 5});
    std::vector<double> counts(D), expected(D);
    for (std::uint64_t t = 0; t < draws / 2000; ++t) {
      for (const Index i : stream.batch(t).indices) ++counts.at(static_cast<std::size_t>(i));
    }
    for (std::size_t i = 0; i < D; ++i) {
      const auto rank = static_cast<double>(i);
      const double p = law == TargetLaw::zipf ? std::log((rank + 2) / (rank + 1)) / std::log(D + 1.0) : 1.0 / D;
      expected[i] = p * draws;
    }
    EXPECT_LT(chi_square_excess(counts, expected), 4);
    const std::vector<double> other(D, static_cast<double>(draws) / D);
    if (law == TargetLaw::zipf) {
      EXPECT_GT(chi_square_excess(counts, other), 50) << "the test has no power";
    }
  }
}

TEST(Synthetic, HiddenVectorsTellSomethingAboutTheirTarget) {
  // Examples of one target share a direction: their inner products are positive on average.
  const auto batch =
      SyntheticStream<double>({.outputs = 2, .dim = 50, .batch = 60, .activation = Activation::tanh, .seed = 3})
          .batch(0);
  double same = 0, different = 0;
  int same_count = 0, different_count = 0;
  for (Size a = 0; a < 60; ++a) {
    for (Size b = 0; b < a; ++b) {
      double product = 0;
      for (Size i = 0; i < 50; ++i) product += batch.H(i, a) * batch.H(i, b);
      const bool match = batch.indices[static_cast<std::size_t>(a)] == batch.indices[static_cast<std::size_t>(b)];
      (match ? same : different) += product;
      ++(match ? same_count : different_count);
    }
  }
  EXPECT_GT(same / same_count, different / different_count + 2);
}

TEST(Synthetic, RefusesImpossibleExtents) {
  const auto refuse = [](const SyntheticOptions& options, const std::string& text) {
    expect_throw<std::invalid_argument>([&] { SyntheticStream<float>{options}; }, {text});
  };
  refuse({.outputs = 0}, "outputs (D) = 0");
  refuse({.outputs = Size{1} << 31}, "outputs (D) = 2147483648");
  refuse({.dim = 0}, "dim (d) = 0");
  refuse({.batch = -3}, "batch (m) = -3");
  refuse({.nonzeros = -1}, "nonzeros (K) = -1");
}

// ── ‖H‖₂² ───────────────────────────────────────────────────────────────────────────────────────

double largest_singular_value(const Matrix<double>& H) {
  // H Hᵀ is square, as the backend's svd wants it; its singular values are those of H squared.
  Matrix<double> G(H.rows(), H.rows());
  for (Size j = 0; j < H.cols(); ++j) {
    for (Size i = 0; i < H.rows(); ++i) {
      for (Size k = 0; k < H.rows(); ++k) G(i, k) += H(i, j) * H(k, j);
    }
  }
  std::vector<double> sigma(static_cast<std::size_t>(H.rows()));
  make_cpu_backend<double>(1)->svd(G, sigma, {});
  return std::sqrt(sigma.front());
}

TEST(SpectralNorm, EqualsTheLargestSingularValueSquared) {
  for (const auto seed : seeds(8)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Dice dice(seed);
    const SyntheticOptions options{.outputs = 20,
                                   .dim = dice.between(1, 30),
                                   .batch = dice.between(1, 30),
                                   .activation = Activation::relu,
                                   .seed = seed};
    const auto H = SyntheticStream<double>(options).batch(0).H;
    const double truth = std::pow(largest_singular_value(H), 2);
    // The iteration stops when it moves by 1e-12; what is left to go is that over the relative gap,
    // and behind ReLU the first singular value stands far out.
    EXPECT_NEAR(spectral_norm_squared<double>(H), truth, 1e-10 * truth);
    Matrix<float> single(H.rows(), H.cols());
    for (Size i = 0; i < H.size(); ++i) single.data()[i] = static_cast<float>(H.data()[i]);
    EXPECT_NEAR(spectral_norm_squared<float>(single), truth, 1e-10 * truth);
  }
}

TEST(SpectralNorm, OfOneValueIsItsSquareAndOfZerosZero) {
  Matrix<double> h(1, 1);
  EXPECT_EQ(spectral_norm_squared<double>(h), 0);
  h(0, 0) = -3;
  EXPECT_DOUBLE_EQ(spectral_norm_squared<double>(h), 9);
  EXPECT_EQ(spectral_norm_squared<double>(Matrix<double>(4, 3)), 0);
}

TEST(SpectralNorm, SeesColumnsThatCancelEachOther) {
  // H (1, …, 1)ᵀ = 0: an iteration started there would find 0.
  Matrix<double> H(2, 2);
  H(0, 0) = 1, H(0, 1) = -1, H(1, 0) = 2, H(1, 1) = -2;
  EXPECT_NEAR(spectral_norm_squared<double>(H), 10, 1e-10);
}

TEST(SpectralNorm, ReadsAStridedView) {
  Padded<double> H(Dice(1).matrix<double>(5, 4));
  EXPECT_DOUBLE_EQ(spectral_norm_squared<double>(H), spectral_norm_squared<double>(Matrix<double>::copy_of(H)));
}

}  // namespace
}  // namespace widehead::test
