#pragma once
/// How much rounding a test forgives, each with its reason. All normwise (Frobenius), all in units of
/// ε of the dtype, all to be multiplied by the scale that the test names.

#include <cmath>
#include <limits>

#include "widehead/matrix.h"

namespace widehead::test::tolerance {

template <class T>
constexpr double epsilon = static_cast<double>(std::numeric_limits<T>::epsilon());

/// One rounding per element (add, scale, symmetrize): half an ε each, at most three of them.
template <class T>
double elementwise() {
  return 2 * epsilon<T>;
}

/// A sum of k products in any order: |error| ≤ γ_k Σ|a||b| (Higham, section 3.1), and Cauchy-Schwarz
/// makes that k ε ‖A‖_F ‖B‖_F. The 4 is for α, β and the last addition.
template <class T>
double product(Size k) {
  return static_cast<double>(k + 4) * epsilon<T>;
}

/// Sums that the library promises to accumulate in double, whatever T is: only T's inputs are coarse.
inline double double_sum(Size k) { return product<double>(k); }

/// The residual of a solve by LU with row exchanges, ‖XA − B‖ ≤ c n ε ‖X‖‖A‖: c holds the growth of
/// the pivots, which is below 8 for matrices met in practice.
template <class T>
double solve(Size n) {
  return 8 * static_cast<double>(n + 4) * epsilon<T>;
}

/// Singular values and vectors are backward stable, p(n) ε σ₁ with a modest p (LAPACK User's Guide,
/// section 4.9); the vectors are tested through residuals, which the same bound covers.
template <class T>
double svd(Size n) {
  return 8 * static_cast<double>(n + 4) * epsilon<T>;
}

/// A layer after some steps. Each adds a few roundings of its products (about 4 ε, since those of a
/// long sum go as its root), and they add up at worst; the error of W = VU is theirs times cond(U),
/// because V's rounding is relative to its largest coordinate (docs/algorithm.md).
template <class T>
double layer(Size steps, double condition = 1) {
  return 4 * static_cast<double>(steps + 1) * condition * epsilon<T>;
}

/// A sum of n terms whose roundings are as good as random: they grow as √n. For Q = WᵀW over all D rows,
/// where the bound of product() would forgive everything.
template <class T>
double long_sum(Size n) {
  return std::sqrt(static_cast<double>(n)) * epsilon<T>;
}

}  // namespace widehead::test::tolerance
