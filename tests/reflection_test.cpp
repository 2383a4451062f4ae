/// What turns a basis so that one direction is its first axis.

#include "widehead/reflection.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compare.h"
#include "oracle.h"
#include "tolerance.h"
#include "widehead/backend.h"

namespace widehead::test {
namespace {

template <class T>
class ReflectionTest : public testing::Test {};
using Precisions = testing::Types<float, double>;
TYPED_TEST_SUITE(ReflectionTest, Precisions);

TYPED_TEST(ReflectionTest, TakesADirectionOfEitherSignToTheFirstAxisAndBack) {
  using T = TypeParam;
  const auto backend = make_cpu_backend<T>(1);
  Dice dice(3);
  for (const Size d : {1, 2, 7, 40}) {
    for (const T scale : {T(1e-3), T(-5)}) {
      auto direction = dice.matrix<T>(d, 1);
      for (Size i = 0; i < d; ++i) direction(i, 0) *= scale;
      Reflection<T> reflection(*backend, d);
      reflection.aim(direction);
      Matrix<T> Z(d, 2);  // the direction, and I's first column
      backend->copy(direction, Z.view().columns(0, 1));
      Z(0, 1) = 1;
      const double length = norm<T>(direction);
      reflection.apply(Z);
      EXPECT_NEAR(std::abs(static_cast<double>(Z(0, 0))), length, tolerance::product<T>(d) * length);
      for (Size i = 1; i < d; ++i) EXPECT_NEAR(static_cast<double>(Z(i, 0)), 0, tolerance::product<T>(d) * length);
      EXPECT_NEAR(norm<T>(Z.view().columns(1, 1)), 1, tolerance::product<T>(d));
      reflection.apply(Z);
      EXPECT_TRUE(is_near<T>(Z.view().columns(0, 1), to_double(direction), tolerance::product<T>(d), length));
    }
  }
}

TYPED_TEST(ReflectionTest, TurnsNothingWithoutADirection) {
  using T = TypeParam;
  const auto backend = make_cpu_backend<T>(1);
  Dice dice(4);
  const auto Z = dice.matrix<T>(5, 3);
  Reflection<T> reflection(*backend, 5);
  const auto stays = [&] {
    Matrix<T> turned(5, 3);
    backend->copy(Z, turned);
    reflection.apply(turned);
    return is_identical<T>(turned, Z);
  };
  EXPECT_TRUE(stays());
  reflection.aim(dice.matrix<T>(5, 1));
  EXPECT_FALSE(stays());
  reflection.aim({});
  EXPECT_TRUE(stays());
  Matrix<T> zero(5, 1), infinite(5, 1);
  infinite(2, 0) = std::numeric_limits<T>::infinity();
  for (const auto* none : {&zero, &infinite}) {
    reflection.aim(*none);
    EXPECT_TRUE(stays());
  }
}

}  // namespace
}  // namespace widehead::test
