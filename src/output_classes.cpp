#include "widehead/output_classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace widehead {
namespace {

Size checked_count(Size outputs, Size count) {
  if (outputs < 1) {
    throw std::invalid_argument(fmt::format("classes: {} outputs, but there must be 1 at least", outputs));
  }
  if (count < 0 || count > outputs) {
    throw std::invalid_argument(fmt::format("classes = {}, but it must be 0 (√D) or 1 … D = {}", count, outputs));
  }
  return count > 0 ? count : std::max<Size>(1, std::lround(std::sqrt(static_cast<double>(outputs))));
}

}  // namespace

OutputClasses OutputClasses::of_equal_size(Size outputs, Size count) {
  count = checked_count(outputs, count);
  std::vector<Size> starts(static_cast<std::size_t>(count) + 1);
  const Size size = outputs / count, larger = outputs % count;  // the first `larger` classes have one more
  for (Size c = 0; c <= count; ++c) starts[static_cast<std::size_t>(c)] = c * size + std::min(c, larger);
  return OutputClasses(std::move(starts));
}

OutputClasses OutputClasses::of_equal_frequency(std::span<const double> frequencies, Size count) {
  const Size outputs = static_cast<Size>(frequencies.size());
  count = checked_count(outputs, count);
  double left = 0;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    if (!(frequencies[i] >= 0) || !std::isfinite(frequencies[i])) {
      throw std::invalid_argument(
          fmt::format("frequencies[{}] = {}, but it must be finite and not negative", i, frequencies[i]));
    }
    left += frequencies[i];
  }
  if (!(left > 0) || !std::isfinite(left)) {
    throw std::invalid_argument(fmt::format("frequencies add up to {}, but it must be a positive number", left));
  }
  std::vector<Size> starts{0};
  Size next = 0;
  for (Size c = 0; c + 1 < count; ++c) {
    const Size classes_after = count - c - 1;
    const double share = left / static_cast<double>(count - c);
    double sum = 0;
    do {
      sum += frequencies[static_cast<std::size_t>(next++)];
    } while (sum < share && outputs - next > classes_after);
    left -= sum;
    starts.push_back(next);
  }
  starts.push_back(outputs);
  return OutputClasses(std::move(starts));
}

Size OutputClasses::of(Index output) const {
  return std::upper_bound(starts_.begin(), starts_.end(), static_cast<Size>(output)) - starts_.begin() - 1;
}

}  // namespace widehead
