#include "widehead/deflation.h"

#include <gtest/gtest.h>

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
  void flip() { deflation_.start_over(); }

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

TEST(Deflation, LeavesMoreToAUThatShrinksFast) {
  Windows windows(0.2);
  windows.settle(0.9);
  EXPECT_EQ(windows.close(0.33), 0);
  EXPECT_EQ(windows.close(0.12), 0) << "above half of the limit, and less than half of what it was";
  EXPECT_EQ(windows.close(0.11), 1) << "hardly less than before: the whole limit";
  windows.settle(0.9);
  EXPECT_EQ(windows.close(0.33), 0);
  EXPECT_EQ(windows.close(0.09), 1) << "below half of the limit";
}

TEST(Deflation, KnowsWhatUWasWhenTheLastWindowHadClosed) {
  Windows windows(0.2);
  windows.settle(0.9);
  EXPECT_EQ(windows.close(0.15), 0) << "from 0.9";
  EXPECT_EQ(windows.close(0.15), 1) << "from 0.15";
  EXPECT_EQ(windows.close(0.15), 0) << "from 1.5: what was smaller has been deflated";
  windows.flip();
  EXPECT_EQ(windows.close(0.15), 0) << "from 1";
}

TEST(Deflation, TakesNothingWhereTheLimitIsZero) {
  Windows windows(0);
  windows.settle(0.5);
  EXPECT_EQ(windows.close(1e-3), 0);
}

}  // namespace
}  // namespace widehead::test
