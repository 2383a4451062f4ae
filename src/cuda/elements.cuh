#pragma once
/// Instructions element by element.

#include "activation.cuh"
#include "instructions.h"
#include "kernels.h"

namespace widehead::cuda {

/// f(i, j) for the elements of a tile. Numbers of elements have 32 bits where that will do.
template <class F>
__device__ __forceinline__ void for_each_of_tile(Size rows, Size cols, int turns, int tile, const F& f) {
  const auto height = static_cast<unsigned>(rows);
  const Size first = static_cast<Size>(tile) * turns * program_threads;
  const bool few = rows * cols < Size{1} << 31;
  const Size first_column = few ? static_cast<unsigned>(first) / height : first / rows;
  const auto offset = static_cast<unsigned>(first - first_column * rows);
#pragma unroll 2
  for (int turn = 0; turn < turns; ++turn) {
    const unsigned at = offset + threadIdx.x + static_cast<unsigned>(turn) * program_threads;
    const Size i = at % height, j = first_column + at / height;
    if (j < cols) f(i, j);
  }
}

template <class T>
__device__ void elements_tile(const Elements<T>& x, int tile) {
  const auto each = [&](const auto& f) { for_each_of_tile(x.rows, x.cols, x.turns, tile, f); };
  switch (x.what) {
    case Element::copy: return each([&](Size i, Size j) { x.C(i, j) = x.A(i, j); });
    case Element::clear: return each([&](Size i, Size j) { x.C(i, j) = T(0); });
    case Element::clear_starts:
      return each([&](Size i, Size j) {
        if (i < x.from[j]) x.C(i, j) = T(0);
      });
    case Element::identity: return each([&](Size i, Size j) { x.C(i, j) = i == j ? T(1) : T(0); });
    case Element::scale: return each([&](Size i, Size j) { x.C(i, j) *= x.alpha; });
    case Element::scaled: return each([&](Size i, Size j) { x.C(i, j) = x.alpha * x.A(i, j); });
    case Element::add: return each([&](Size i, Size j) { x.C(i, j) = x.alpha * x.A(i, j) + x.beta * x.B(i, j); });
    case Element::add_columns:
      return each([&](Size i, Size j) { x.C(i, j) = x.alpha * x.a[j] * x.A(i, j) + x.beta * x.B(i, j); });
    case Element::scale_columns: return each([&](Size i, Size j) { x.C(i, j) *= x.a[j]; });
    case Element::scale_rows: return each([&](Size i, Size j) { x.C(i, j) *= x.a[i]; });
    case Element::add_to_rows: return each([&](Size i, Size j) { x.C(i, j) += x.a[i]; });
    case Element::carry:  // Knuth's two-sum
      return each([&](Size i, Size j) {
        const T sum = x.A(i, j), high = x.C(i, j), low = x.D(i, j), low_in_sum = sum - high,
                high_in_sum = sum - low_in_sum;
        x.D(i, j) = (high - high_in_sum) + (low - low_in_sum);
        x.C(i, j) = sum;
      });
    case Element::split:
      return each([&](Size i, Size j) {
        const T h = x.a == nullptr ? x.C(i, j) : x.a[j] * x.C(i, j), gamma = x.A(i, j), gradient = 2 * h + gamma;
        x.D(i, j) = gradient;
        x.F(i, j) = h + gamma;
        x.C(i, j) = x.alpha * gradient;
      });
    case Element::finish:  // the element of the lower triangle does both of a pair
      return each([&](Size i, Size j) {
        if (j >= x.square) {
          x.D(i, j) = x.A(i, j) + x.C(i, j);
        } else if (i >= j) {
          const T mean = (x.C(i, j) + x.C(j, i)) / 2;
          x.C(i, j) = mean;
          x.C(j, i) = mean;
          x.D(i, j) = x.A(i, j) + mean;
          x.D(j, i) = x.A(j, i) + mean;
        }
      });
    case Element::move:
      return each([&](Size i, Size k) {
        const Size source = x.from == nullptr ? k : x.from[k], target = x.to == nullptr ? k : x.to[k];
        x.C(i, target) = source < 0 ? T(0) : x.A(i, source);
      });
    case Element::add_to_columns: return each([&](Size i, Size k) { x.C(i, x.to[k]) += x.alpha * x.A(i, k); });
    case Element::activate:
      return each([&](Size i, Size j) {
        x.C(i, j) = activation_of(x.activation, x.a == nullptr ? x.C(i, j) : x.C(i, j) + x.a[i]);
      });
    case Element::slope: return each([&](Size i, Size j) { x.C(i, j) *= slope_of(x.activation, x.A(i, j)); });
    case Element::adam:
      return each([&](Size i, Size k) {
        const Size column = x.to == nullptr ? k : x.to[k];
        const T g = x.A(i, k);
        const T m = x.beta1 * x.D(i, column) + x.rest1 * g, s = x.beta2 * x.F(i, column) + x.rest2 * g * g;
        x.D(i, column) = m;
        x.F(i, column) = s;
        x.C(i, column) -= x.alpha * m / (sqrt(s) + x.beta);
      });
  }
}

}  // namespace widehead::cuda
