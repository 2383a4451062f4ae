#pragma once
/// Made-up numbers for tests. Every value is a float, so that a test in float and its truth in
/// double see the same data.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "widehead/matrix.h"

namespace widehead::test {

/// Seeds of a test's rounds: 1, 2, …, or from WIDEHEAD_TEST_SEED on. Print each with SCOPED_TRACE.
inline std::vector<std::uint64_t> seeds(int count) {
  const char* wish = std::getenv("WIDEHEAD_TEST_SEED");
  const std::uint64_t first = wish != nullptr ? std::strtoull(wish, nullptr, 10) : 1;
  std::vector<std::uint64_t> list;
  for (int i = 0; i < count; ++i) list.push_back(first + static_cast<std::uint64_t>(i));
  return list;
}

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}

  Size between(Size least, Size most) { return std::uniform_int_distribution<Size>(least, most)(engine_); }
  double uniform(double low, double high) {
    return as_float(std::uniform_real_distribution<double>(low, high)(engine_));
  }
  /// By the polar method. Written out, since much of the time of many a test goes into it: unless it is optimised, the
  /// standard library's takes two logarithms of a constant for every number that it draws.
  double normal() {
    double x = 0, y = 0, square = 0;
    do {
      x = symmetric();
      y = symmetric();
      square = x * x + y * y;
    } while (square > 1 || square == 0);
    return as_float(y * std::sqrt(-2 * std::log(square) / square));
  }

  template <class T>
  void fill(MatrixView<T> A) {
    for (Size j = 0; j < A.cols; ++j) {
      for (Size i = 0; i < A.rows; ++i) A(i, j) = static_cast<T>(normal());
    }
  }
  template <class T>
  Matrix<T> matrix(Size rows, Size cols) {
    Matrix<T> A(rows, cols);
    fill(A.view());
    return A;
  }

 private:
  /// Uniform in [−1, 1].
  double symmetric() { return static_cast<double>(engine_()) * 0x1p-63 - 1; }
  static double as_float(double value) { return static_cast<double>(static_cast<float>(value)); }
  std::mt19937_64 engine_;
};

}  // namespace widehead::test
