#pragma once
/// Made-up numbers for tests. Every value is a float, so that a test in float and its truth in
/// double see the same data.

#include <cstdint>
#include <random>
#include <vector>

#include "widehead/matrix.h"

namespace widehead::test {

/// Seeds of a test's rounds: 1, 2, …, or from WIDEHEAD_TEST_SEED on. Print each with SCOPED_TRACE.
std::vector<std::uint64_t> seeds(int count);

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}

  Size between(Size least, Size most);
  double uniform(double low, double high);
  double normal();

  /// T is float or double.
  template <class T>
  void fill(MatrixView<T> A);
  template <class T>
  Matrix<T> matrix(Size rows, Size cols) {
    Matrix<T> A(rows, cols);
    fill(A.view());
    return A;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace widehead::test
