/// Where operations are done side by side, a layer takes other ways: to the same end.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "compare.h"
#include "enqueueing_backend.h"
#include "widehead/heads.h"
#include "widehead/synthetic.h"

namespace widehead::test {
namespace {

struct Course {
  const char* head;
  Size dim, batch, nonzeros;  // few examples for the dimension take the usual way
};

/// All that a layer gives, beside that of one on an ordinary CPU.
void expect_same_course(const Course& course, const Loss& loss, double weight_decay) {
  HeadOptions options;
  options.head = course.head;
  options.layer.outputs = 60;
  options.layer.dim = course.dim;
  options.layer.loss = loss;
  options.layer.initial = Initial::normal;
  options.layer.weight_decay = weight_decay;
  options.windowed.window = 3 * course.dim;
  const auto usual = make_head<double>(options, make_cpu_backend<double>(1));
  const auto overlapping = make_head<double>(options, std::make_shared<EnqueueingBackend<double>>());
  const SyntheticStream<double> stream(
      {.outputs = 60, .dim = course.dim, .batch = course.batch, .nonzeros = course.nonzeros, .seed = 7});
  Matrix<double> expected(course.dim, course.batch), grad(course.dim, course.batch);
  for (std::uint64_t t = 0; t < 60; ++t) {
    const auto batch = stream.batch(t);
    const double L = usual->step(batch.H, batch.targets(), 0.004, expected);
    if (t % 4 == 3) {  // in parts, as a framework does it
      EXPECT_NEAR(overlapping->evaluate(batch.H, batch.targets(), grad), L, 1e-10 * (1 + std::abs(L)));
      EXPECT_TRUE(is_near<double>(grad, expected, 1e-10)) << "step " << t;
    }
    EXPECT_NEAR(overlapping->step(batch.H, batch.targets(), 0.004, grad), L, 1e-10 * (1 + std::abs(L)));
    ASSERT_TRUE(is_near<double>(grad, expected, 1e-10)) << "step " << t;
  }
  EXPECT_TRUE(is_near<double>(overlapping->weights(), usual->weights(), 1e-10));
  EXPECT_TRUE(is_near<double>(overlapping->gram(), usual->gram(), 1e-10));
}

TEST(Overlap, LeadsToTheSameWeights) {
  for (const Course& course : {Course{"windowed", 12, 8, 1},
                               {"windowed", 12, 8, 5},
                               {"windowed", 12, 2, 1},
                               {"windowed", 5, 40, 2},
                               {"factored", 12, 8, 1}}) {
    SCOPED_TRACE(fmt::format("{}, d = {}, m = {}, K = {}", course.head, course.dim, course.batch, course.nonzeros));
    for (const char* loss : {"squared", "spherical", "taylor", "z"}) {
      SCOPED_TRACE(loss);
      expect_same_course(course, make_loss(loss), 0);
    }
    expect_same_course(course, SquaredError{}, 0.01);
  }
}

}  // namespace
}  // namespace widehead::test
