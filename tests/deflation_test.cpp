#include "widehead/deflation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

namespace widehead::test {
namespace {

constexpr Size d = 5;

/// A U with these singular values, whose singular vectors are unit vectors: they are what probes find.
class Windows {
 public:
  explicit Windows(double below) : deflation_(*backend_, d, {.below = below, .probes = 2}, 1) {}

  /// How many directions are deflated after a window that leaves the smallest singular value at this.
  Size close(double smallest) {
    Matrix<double> U_T(d, d), change(d, d);
    for (Size i = 0; i < d; ++i) U_T(i, i) = i == 2 ? smallest : 1.5;
    const double sigma = deflation_.examine(U_T);
    if (settled_) {
      EXPECT_NEAR(sigma, smallest, 1e-6);
    }
    const Size count = deflation_.count();
    deflation_.deflate(U_T, change);
    return count;
  }
  /// Probes need some windows to find their way.
  void settle(double smallest) {
    for (int k = 0; k < 60; ++k) close(smallest);
    settled_ = true;
  }
  ConstView<double> smallest() { return deflation_.smallest(); }

 private:
  std::shared_ptr<Backend<double>> backend_ = make_cpu_backend<double>(1);
  Deflation<double> deflation_;
  bool settled_ = false;
};

TEST(Deflation, TakesWhatIsBelowTheLimit) {
  Windows windows(0.2);
  windows.settle(0.4);
  EXPECT_EQ(windows.close(0.3), 0);
  EXPECT_EQ(windows.close(0.21), 0);
  EXPECT_EQ(windows.close(0.19), 1);
}

TEST(Deflation, NamesTheDirectionInWhichUIsSmallWhereItIs) {
  Windows windows(0.2);
  EXPECT_TRUE(windows.smallest().empty()) << "nothing was examined";
  windows.settle(0.4);
  for (const double smallest : {0.4, 0.1}) {
    windows.close(smallest);
    const auto direction = windows.smallest();
    ASSERT_EQ(direction.rows, d);
    for (Size i = 0; i < d; ++i) EXPECT_NEAR(std::abs(direction(i, 0)), i == 2 ? smallest : 0, 1e-6);
  }
  windows.close(0.6);
  EXPECT_TRUE(windows.smallest().empty()) << "hardly smaller than others";
  windows.close(0);
  EXPECT_TRUE(windows.smallest().empty()) << "singular";
}

TEST(Deflation, TakesNothingWhereTheLimitIsZero) {
  Windows windows(0);
  windows.settle(0.5);
  EXPECT_EQ(windows.close(1e-3), 0);
}

}  // namespace
}  // namespace widehead::test
