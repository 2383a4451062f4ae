/// Long runs beside the dense float64 layer, by the library's own verify.

#include "widehead/verify.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "dice.h"
#include "errors.h"
#include "heads_under_test.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

VerifyOptions options_for(const HeadCase& head, std::int64_t steps) {
  VerifyOptions options;
  options.head = head.options;
  options.device = head.device;
  options.head.factored.stabilizer = {};  // as it comes
  const bool slow = head.label == "reference";
  options.head.layer = {.outputs = slow ? 60 : 300, .dim = slow ? 8 : 24, .initial = Initial::normal};
  options.data.batch = slow ? 4 : 16;
  options.data.nonzeros = 2;
  options.steps = steps;
  options.lambda = 0.05;
  options.threads = 1;
  return options;
}

class LongRunTest : public HeadTest {};
INSTANTIATE_TEST_SUITE_P(Plain, LongRunTest, testing::ValuesIn(in_each_dtype(plain_heads())), case_name);

TEST_P(LongRunTest, LearningCurvesOfTheHeadAndOfDenseCoincide) {
  run([&]<class T>() {
    const auto report = verify<T>(options_for(GetParam(), 500));
    ASSERT_EQ(report.error, "");
    ASSERT_EQ(report.losses.size(), 500U);
    ASSERT_EQ(report.dense_losses.size(), 500U);
    // In float, U may get to a condition of 1/σ_low by the defaults, a thousand: an error of W of 1000 ε,
    // doubled by the square in the loss. A head without an inverse of U keeps to the rounding of its steps.
    const double in_float = GetParam().inverts_U ? 2 * 1000 * tolerance::epsilon<T> : 100 * tolerance::epsilon<T>;
    const double limit = GetParam().dtype == Dtype::f64 ? 1e-9 : in_float;
    double worst = 0;
    for (std::size_t t = 0; t < 500; ++t) {
      const double difference = std::abs(report.losses[t] - report.dense_losses[t]) / report.dense_losses[t];
      worst = std::max(worst, difference);
      ASSERT_LE(difference, limit) << "step " << t;
    }
    RecordProperty("worst", fmt::format("{:.2e}", worst));
    EXPECT_LT(report.losses.back(), 0.9 * report.losses.front()) << "nothing was learnt: the test has no power";
  });
}

class LongDoubleRunTest : public HeadTest {};
std::vector<HeadCase> heads_in_double() {
  auto heads = in_each_dtype(plain_heads());
  std::erase_if(heads, [](const HeadCase& head) { return head.dtype != Dtype::f64; });
  return heads;
}
INSTANTIATE_TEST_SUITE_P(Plain, LongDoubleRunTest, testing::ValuesIn(heads_in_double()), case_name);

TEST_P(LongDoubleRunTest, AgreesWithDenseAfterAThousandSteps) {
  for (const Initial initial : {Initial::zero, Initial::normal}) {
    auto options = options_for(GetParam(), 1000);
    options.head.layer.initial = initial;
    std::int64_t calls = 0;
    const auto report = verify<double>(options, [&](std::int64_t done) { EXPECT_EQ(done, ++calls); });
    EXPECT_EQ(report.error, "");
    EXPECT_EQ(report.steps, 1000);
    EXPECT_EQ(calls, 1000);
    EXPECT_LE(report.rel_W, 1e-10);
    EXPECT_LE(report.rel_Q, 1e-10);
    EXPECT_LE(report.rel_grad, 1e-10);
    EXPECT_LE(report.rel_loss, 1e-10);
    EXPECT_FALSE(report.diagnostics.empty());
  }
}

TEST(Verify, RelativeDifferenceIsNormwise) {
  Matrix<float> A(1, 2);
  Matrix<double> B(1, 2);
  A(0, 0) = 3, A(0, 1) = 4;
  EXPECT_DOUBLE_EQ(relative_difference<float>(A, B), 5) << "‖A‖ where B is zero";
  B(0, 1) = 4;
  EXPECT_DOUBLE_EQ(relative_difference<float>(A, B), 0.75);
  B(0, 0) = 3;
  EXPECT_EQ(relative_difference<float>(A, B), 0);
}

TEST(Verify, SeesAHeadThatDiffers) {
  // The paper's own case against it: float, no stabiliser, λ₁ well above what U bears.
  VerifyOptions options;
  options.head = factored_options(Inverse::woodbury, Stabilize::never);
  options.head.layer = {.outputs = 200, .dim = 20};
  options.data.batch = 8;
  options.lambda = 0.3;
  options.steps = 40;
  options.threads = 1;
  const auto report = verify<float>(options);
  EXPECT_GT(std::max({report.rel_W, report.rel_Q, report.rel_grad, report.rel_loss}), 1e-4);
}

TEST(Verify, ReportsWhyAHeadStoppedEarly) {
  VerifyOptions options;
  options.head = factored_options(Inverse::woodbury, Stabilize::never);
  options.head.layer = {.outputs = 20, .dim = 2};
  options.data.batch = 1;
  options.lambda = 1;  // 1 − 2η‖h‖² = 0
  options.steps = 10;
  options.threads = 1;
  const auto report = verify<double>(options);
  EXPECT_NE(report.error.find("singular"), std::string::npos) << report.error;
  EXPECT_LT(report.steps, 10);
  EXPECT_EQ(report.losses.size(), static_cast<std::size_t>(report.steps));
}

TEST(Verify, RefusesWhatItsPartsRefuse) {
  VerifyOptions options;
  options.head = options_of("dense");
  options.head.layer = {.outputs = 20, .dim = 2};
  auto bad = options;
  bad.threads = -1;
  expect_throw<std::invalid_argument>([&] { verify<float>(bad); }, {"threads = -1"});
  bad = options;
  bad.data.batch = 0;
  expect_throw<std::invalid_argument>([&] { verify<float>(bad); }, {"batch (m) = 0"});
  bad = options;
  bad.lambda = -1;
  expect_throw<std::invalid_argument>([&] { verify<float>(bad); }, {"lambda = -1"});
}

TEST(Verify, RefusesAHeadThatMinimisesSomethingElse) {
  VerifyOptions options;
  options.head = options_of("softmax");
  options.head.layer = {.outputs = 20, .dim = 3};
  options.steps = 1;
  expect_throw<std::invalid_argument>([&] { verify<float>(options); }, {"'softmax'", "cross-entropy"});
}

}  // namespace
}  // namespace widehead::test
