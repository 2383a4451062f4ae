#include "dice.h"

#include <cmath>
#include <cstdlib>

namespace widehead::test {
namespace {

double as_float(double value) { return static_cast<double>(static_cast<float>(value)); }

}  // namespace

std::vector<std::uint64_t> seeds(int count) {
  const char* wish = std::getenv("WIDEHEAD_TEST_SEED");
  const std::uint64_t first = wish != nullptr ? std::strtoull(wish, nullptr, 10) : 1;
  std::vector<std::uint64_t> list;
  for (int i = 0; i < count; ++i) list.push_back(first + static_cast<std::uint64_t>(i));
  return list;
}

Size Dice::between(Size least, Size most) { return std::uniform_int_distribution<Size>(least, most)(engine_); }

double Dice::uniform(double low, double high) {
  return as_float(std::uniform_real_distribution<double>(low, high)(engine_));
}

/// By the polar method. Written out, since much of the time of many a test goes into it: unless it is well optimised,
/// the standard library's takes two logarithms of a constant for every number that it draws.
double Dice::normal() {
  const auto symmetric = [&] { return static_cast<double>(engine_()) * 0x1p-63 - 1; };  // uniform in [−1, 1]
  double x = 0, y = 0, square = 0;
  do {
    x = symmetric();
    y = symmetric();
    square = x * x + y * y;
  } while (square > 1 || square == 0);
  return as_float(y * std::sqrt(-2 * std::log(square) / square));
}

template <class T>
void Dice::fill(MatrixView<T> A) {
  for (Size j = 0; j < A.cols; ++j) {
    for (Size i = 0; i < A.rows; ++i) A(i, j) = static_cast<T>(normal());
  }
}
template void Dice::fill(MatrixView<float>);
template void Dice::fill(MatrixView<double>);

}  // namespace widehead::test
