/// What is the factored layer's own: its figures, its upkeep, and the range it keeps U in.

#include "widehead/factored_layer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "compare.h"
#include "heads_under_test.h"
#include "oracle.h"
#include "tolerance.h"
#include "widehead/synthetic.h"

namespace widehead::test {
namespace {

using Figures = std::map<std::string, double>;
Figures to_map(const Diagnostics& diagnostics) {
  Figures figures;
  for (const auto& [name, value] : diagnostics) EXPECT_TRUE(figures.emplace(name, value).second) << name << " twice";
  return figures;
}

/// One step along a unit vector, which multiplies U's singular value there by 1 − 2η.
template <class T>
void contract(OutputLayer<T>& layer, double eta, Size unit = 0) {
  Matrix<T> h(layer.dim(), 1);
  h(unit, 0) = 1;
  const std::vector<std::int64_t> offsets{0, 1};
  const std::vector<Index> indices{2};
  const std::vector<T> values{1};
  layer.step(h, SparseBatch<T>(layer.outputs(), offsets, indices, values), eta);
}

template <class T>
FactoredLayer<T> make_factored(const FactoredOptions& options, Size D = 8, Size d = 3) {
  return FactoredLayer<T>({.outputs = D, .dim = d, .initial = Initial::normal}, options, make_cpu_backend<T>(1));
}

template <class T>
class FactoredLayerTest : public testing::Test {};
using Dtypes = testing::Types<float, double>;
TYPED_TEST_SUITE(FactoredLayerTest, Dtypes);

TYPED_TEST(FactoredLayerTest, DiagnosticsTellTheSingularValuesOfU) {
  auto layer = make_factored<TypeParam>({.stabilizer = {.kind = Stabilize::never}});
  auto figures = to_map(layer.diagnostics());
  EXPECT_EQ(figures.at("sigma_min"), 1);
  EXPECT_EQ(figures.at("sigma_max"), 1);
  EXPECT_EQ(figures.at("inverse_error"), 0);
  contract(layer, 0.375);    // σ₀ = 0.25
  contract(layer, 1.25, 1);  // σ₁ = |−1.5|
  figures = to_map(layer.diagnostics());
  EXPECT_NEAR(figures.at("sigma_min"), 0.25, 4 * tolerance::epsilon<TypeParam>);
  EXPECT_NEAR(figures.at("sigma_max"), 1.5, 4 * tolerance::epsilon<TypeParam>);
  EXPECT_EQ(figures.at("steps"), 2);
  EXPECT_EQ(figures.at("checks"), 0);
  EXPECT_EQ(figures.at("fixes"), 0);
}

TYPED_TEST(FactoredLayerTest, CountsChecksAndFixes) {
  for (const Stabilize kind : {Stabilize::svd, Stabilize::power}) {
    auto layer =
        make_factored<TypeParam>({.stabilizer = {.kind = kind, .sigma_low = 0.5, .sigma_high = 2, .n_check = 2}});
    const auto expect = [&](double checks, double fixes, double sigma_min) {
      const auto figures = to_map(layer.diagnostics());
      EXPECT_EQ(figures.at("checks"), checks);
      EXPECT_EQ(figures.at("fixes"), fixes);
      EXPECT_EQ(figures.at("restores"), 0);
      EXPECT_NEAR(figures.at("sigma_min"), sigma_min, 1e-6);
    };
    contract(layer, 0.1);  // σ₀ = 0.8
    expect(0, 0, 0.8);
    contract(layer, 0.1);  // 0.64, checked: safe
    expect(1, 0, 0.64);
    contract(layer, 0.2);  // 0.384
    expect(1, 0, 0.384);
    contract(layer, 0.2, 1);  // checked: σ₀ is fixed, σ₁ = 0.6
    expect(2, 1, 0.6);
    EXPECT_GT(to_map(layer.counters()).at("stabilizer_seconds"), 0);
  }
}

TYPED_TEST(FactoredLayerTest, CountsRestores) {
  auto layer = make_factored<TypeParam>(
      {.stabilizer = {.kind = Stabilize::pristine, .sigma_low = 0.5, .sigma_high = 2, .n_check = 1}});
  contract(layer, 0.2);
  EXPECT_EQ(to_map(layer.counters()).at("restores"), 0);
  contract(layer, 0.2);  // 0.36
  const auto figures = to_map(layer.diagnostics());
  EXPECT_EQ(figures.at("restores"), 1);
  EXPECT_EQ(figures.at("fixes"), 0);
  EXPECT_EQ(figures.at("sigma_min"), 1);
  EXPECT_EQ(figures.at("sigma_max"), 1);
}

TYPED_TEST(FactoredLayerTest, CountsFreshInversesAndKeepsNoneWhereItSolves) {
  for (const auto& [name, inverse] : inverse_names()) {
    SCOPED_TRACE(name);
    auto layer =
        make_factored<TypeParam>({.inverse = inverse, .refresh_every = 3, .stabilizer = {.kind = Stabilize::never}});
    for (int t = 0; t < 10; ++t) contract(layer, 0.05, t % 3);
    const auto figures = to_map(layer.diagnostics());
    EXPECT_EQ(figures.at("inversions"), inverse == Inverse::refresh ? 3 : 0);
    EXPECT_EQ(figures.contains("inverse_error"), inverse != Inverse::solve);
  }
}

/// Runs a layer on synthetic data at λ₁ and returns its figures; U's range is asked for after each check.
template <class T>
Figures run_at(FactoredLayer<T>& layer, double lambda, int steps, std::int64_t n_check, double low, double high) {
  const SyntheticStream<T> stream({.outputs = layer.outputs(), .dim = layer.dim(), .batch = 8});
  for (int t = 0; t < steps; ++t) {
    const auto batch = stream.batch(static_cast<std::uint64_t>(t));
    layer.step(batch.H, batch.targets(), lambda / (2 * spectral_norm_squared<T>(batch.H)));
    if (layer.steps() % n_check != 0) continue;
    const auto figures = to_map(layer.diagnostics());
    EXPECT_GE(figures.at("sigma_min"), low) << "step " << t;
    EXPECT_LE(figures.at("sigma_max"), high) << "step " << t;
  }
  return to_map(layer.diagnostics());
}

TYPED_TEST(FactoredLayerTest, KeepsItsSafeRange) {
  for (const auto& [name, kind] : stabilize_names()) {
    if (kind == Stabilize::never) continue;
    SCOPED_TRACE(name);
    auto layer = make_factored<TypeParam>(
        {.stabilizer = {.kind = kind, .sigma_low = 0.5, .sigma_high = 2, .n_check = 10}}, 60, 12);
    // The power method, unlike the SVD, may stop short of the smallest one of a cluster: by a few percent.
    const double slack = kind == Stabilize::power ? 0.05 : 1e-5;
    const auto figures = run_at(layer, 0.2, 120, 10, 0.5 * (1 - slack), 2 * (1 + slack));
    EXPECT_EQ(figures.at("checks"), 12);
    EXPECT_GE(figures.at("fixes") + figures.at("restores"), 6) << "there was nothing to keep: the test has no power";
    EXPECT_LT(figures.at("Q_drift"), 100 * tolerance::layer<TypeParam>(120));
    EXPECT_LT(figures.at("inverse_error"), 100 * tolerance::epsilon<TypeParam>) << "fresh from the last check";
  }
}

TYPED_TEST(FactoredLayerTest, DiagnosticsSeeTheDecayOfAnUnstabilizedRun) {
  auto layer = make_factored<TypeParam>({.stabilizer = {.kind = Stabilize::never}}, 60, 12);
  run_at(layer, 0.2, 10, 1000, 0, 10);
  const auto early = to_map(layer.diagnostics());
  run_at(layer, 0.2, 40, 1000, 0, 10);
  const auto late = to_map(layer.diagnostics());
  EXPECT_LT(late.at("sigma_min"), 1e-3) << "about 0.8⁵⁰";
  EXPECT_GT(late.at("inverse_error"), early.at("inverse_error"));
  EXPECT_GT(late.at("Q_drift"), 0);
  EXPECT_LT(late.at("Q_drift"), 1);
}

TYPED_TEST(FactoredLayerTest, StepProductsAreThoseOfSevenSquaresPerExample) {
  const Size d = 10, m = 4;
  const auto flops = [&](Inverse inverse) {
    double sum = 0;
    for (const auto& shape : make_factored<TypeParam>({.inverse = inverse, .stabilizer = {}}, 8, d).step_products(m))
      sum += shape.flops();
    return sum;
  };
  // 7 d² m multiply-adds, and 4 d m² for the m x m products; two stacked blocks fewer without U⁻ᵀ
  EXPECT_EQ(flops(Inverse::woodbury), 2.0 * (7 * d * d * m + 4 * d * m * m));
  EXPECT_EQ(flops(Inverse::solve), 2.0 * (5 * d * d * m + 4 * d * m * m));
}

}  // namespace
}  // namespace widehead::test
