#include "widehead/exponential.h"

#include <bit>
#include <cstdint>

/// Without a branch or a call, so that the loop vectorises without a vendor's library and without -ffast-math:
///   x = n ln 2 + r, |r| ≤ ln 2 / 2:   eˣ = 2ⁿ Σₖ rᵏ/k!        the series cut where it is below a tenth of an ε

namespace widehead {
namespace {

template <class T>
struct Constants;
template <>
struct Constants<float> {
  using Bits = std::uint32_t;
  static constexpr int degree = 7;              // (ln 2 / 2)⁸ / 8! = 5e-9
  static constexpr float least = -87.33654F;    // ln 2⁻¹²⁶, rounded up: below, the result is not a normal number
  static constexpr float rounding = 0x1.8p23F;  // what is added to this is rounded to an integer
  static constexpr float ln2_high = 0x1.62e4p-1F;  // 16 bits, so that n · ln2_high is exact
  static constexpr float ln2_low = 0x1.7f7d1cp-20F;
  static constexpr int fraction_bits = 23;
  static constexpr Bits bias = 127;
};
template <>
struct Constants<double> {
  using Bits = std::uint64_t;
  static constexpr int degree = 13;  // (ln 2 / 2)¹⁴ / 14! = 4e-18
  static constexpr double least = -708.396418532264;
  static constexpr double rounding = 0x1.8p52;
  static constexpr double ln2_high = 0x1.62e42fefap-1;  // 37 bits
  static constexpr double ln2_low = 0x1.cf79abc9e3b39p-40;
  static constexpr int fraction_bits = 52;
  static constexpr Bits bias = 1023;
};

constexpr double factorial(int k) { return k < 2 ? 1 : k * factorial(k - 1); }

/// Σ_{i ≥ k} rⁱ⁻ᵏ/i!, by Horner's rule.
template <int k, class T>
[[gnu::always_inline]] inline T series(T r) {
  constexpr T coefficient = static_cast<T>(1 / factorial(k));
  if constexpr (k == Constants<T>::degree) {
    return coefficient;
  } else {
    return coefficient + r * series<k + 1>(r);
  }
}

/// eˣ for least ≤ x ≤ 0.
template <class T>
[[gnu::always_inline]] inline T of_small(T x) {
  using C = Constants<T>;
  using Bits = typename C::Bits;
  constexpr T log2_e = static_cast<T>(1.4426950408889634);
  const T shifted = x * log2_e + C::rounding;  // its last bits are n
  const T n = shifted - C::rounding;
  const T r = (x - n * C::ln2_high) - n * C::ln2_low;
  const Bits power = (std::bit_cast<Bits>(shifted) + C::bias) << C::fraction_bits;  // 2ⁿ; all else is shifted out
  return series<0>(r) * std::bit_cast<T>(power);
}

}  // namespace

/// In two loops, since GCC makes a branch of a choice it could follow into the series, and a loop with a branch stays
/// scalar.
template <class T>
void exp_of_non_positive(Size n, T* x) {
  constexpr T least = Constants<T>::least;
#pragma omp simd
  for (Size i = 0; i < n; ++i) x[i] = least > x[i] ? least : x[i];  // in this order, which lets a NaN pass
#pragma omp simd
  for (Size i = 0; i < n; ++i) x[i] = of_small(x[i]);
}

template void exp_of_non_positive(Size, float*);
template void exp_of_non_positive(Size, double*);

}  // namespace widehead
