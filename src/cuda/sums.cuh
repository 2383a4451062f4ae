#pragma once
/// Sums of columns and along rows, dots, and pairs of examples; added up in a fixed order.

#include "kernels.h"
#include "multiply.cuh"

namespace widehead::cuda {

// ── sums of columns ────────────────────────────────────────────────────────────────────────────────

/// 512 rows of one column. A thread has two rows of a short sum; in a long one warps take the terms in turns.
template <class T>
__device__ void sum_columns_tile(const SumColumns<T>& x, int tile) {
  const int row_tiles = (x.rows + sum_rows_each - 1) / sum_rows_each;
  const int c = tile / row_tiles, first_row = tile % row_tiles * sum_rows_each, thread = static_cast<int>(threadIdx.x);
  const Index first = x.starts[c], last = x.starts[c + 1];
  T* result = &x.Y(0, x.to == nullptr ? c : x.to[c]);
  const auto entry = [&](Index k) { return x.order == nullptr ? k : x.order[k]; };
  const auto value = [&](Index e) { return x.alpha * x.values[x.entries == nullptr ? e : x.entries[e]]; };
  const auto column = [&](Index e) { return &x.X(0, x.columns == nullptr ? e : x.columns[e]); };
  const auto before = [&](int i) { return x.add ? result[i] : T(0); };
  const auto finish = [&](int i, T sum) {
    result[i] = sum;
    if (!x.splits) return;
    const T h = x.a == nullptr ? x.H_hat(i, c) : x.a[c] * x.H_hat(i, c), gradient = 2 * h + sum;
    x.grad(i, c) = gradient;
    x.C(i, c) = h + sum;
    x.H_hat(i, c) = x.c * gradient;
  };
  constexpr int few = 4, warps = program_threads / warp_size, own_rows = sum_rows_each / program_threads;
  const auto for_own_rows = [&](const auto& f) {
#pragma unroll
    for (int p = 0; p < own_rows; ++p) {
      const int i = first_row + thread + p * program_threads;
      if (i < x.rows) f(i, p);
    }
  };
  if (last - first <= few) {
    T sums[own_rows] = {};
    for_own_rows([&](int i, int p) { sums[p] = before(i); });
    for (Index k = first; k < last; ++k) {
      const Index e = entry(k);
      const T factor = value(e);
      const T* from = column(e);
      for_own_rows([&](int i, int p) { sums[p] += factor * from[i]; });
    }
    for_own_rows([&](int i, int p) { finish(i, sums[p]); });
    return;
  }
  constexpr int each = sum_rows_each / warp_size;
  const int warp = thread / warp_size, lane = thread % warp_size;
  T sums[each] = {};
  for (Index start = first + warp; start < last; start += warps * warp_size) {
    // A lane looks up a term of its own; then all go over them.
    const Index own = start + warps * lane, terms = (last - start + warps - 1) / warps;
    const Index e = own < last ? entry(own) : Index{0};
    const T own_factor = own < last ? value(e) : T(0);
    const Index own_column = own < last ? (x.columns == nullptr ? e : x.columns[e]) : Index{0};
    const int count = terms < warp_size ? terms : warp_size;
#pragma unroll 1
    for (int t = 0; t < count; ++t) {
      const T factor = __shfl_sync(0xffffffffU, own_factor, t);
      const T* from = &x.X(first_row, __shfl_sync(0xffffffffU, own_column, t));
#pragma unroll
      for (int p = 0; p < each; ++p) {
        const int r = lane + p * warp_size;
        if (first_row + r < x.rows) sums[p] += factor * from[r];
      }
    }
  }
  T* parts = reinterpret_cast<T*>(pool());  // warps x 512
#pragma unroll
  for (int p = 0; p < each; ++p) parts[warp * sum_rows_each + lane + p * warp_size] = sums[p];
  __syncthreads();
  for_own_rows([&](int i, int) {
    T sum = before(i);
#pragma unroll
    for (int w = 0; w < warps; ++w) sum += parts[w * sum_rows_each + i - first_row];
    finish(i, sum);
  });
  __syncthreads();
}

/// 32 rows, eight columns at a time.
template <class T>
__device__ void sum_rows_tile(const SumRows<T>& x, int tile) {
  constexpr int lines = program_threads / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size, line = static_cast<int>(threadIdx.x) / warp_size;
  const int i = tile * warp_size + lane;
  double sum = 0;
  if (i < x.rows) {
#pragma unroll 4
    for (int j = line; j < x.cols; j += lines) sum += static_cast<double>(x.A(i, j));
  }
  auto* parts = reinterpret_cast<double*>(pool());
  parts[line * warp_size + lane] = sum;
  __syncthreads();
  if (line == 0 && i < x.rows) {
    for (int k = 1; k < lines; ++k) sum += parts[k * warp_size + lane];
    x.out[i] = static_cast<T>(sum);
  }
  __syncthreads();
}

// ── dots, a warp each ──────────────────────────────────────────────────────────────────────────────

/// Σ x y in double, for lane 0.
template <class T>
__device__ __noinline__ double dot_by_warp(const T* x, const T* y, int rows) {
  double sum = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) % warp_size; i < rows; i += warp_size) {
    sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  }
  return combine_warp(sum, Plus{});
}

template <class T>
__device__ void dots_tile(const Dots<T>& x, int tile) {
  const int e = tile * dots_each + static_cast<int>(threadIdx.x) / warp_size;
  if (e >= x.count) return;
  const double sum =
      dot_by_warp(&x.A(0, x.of_a == nullptr ? e : x.of_a[e]), &x.B(0, x.of_b == nullptr ? e : x.of_b[e]), x.rows);
  if (threadIdx.x % warp_size == 0) x.out[e] = x.beta == 0 ? sum : x.beta * x.out[e] + sum;
}

/// A warp for each example's q, and one for each entry's o.
template <class T>
__device__ void observe_tile(const Observe<T>& x, int tile) {
  const int number = tile * dots_each + static_cast<int>(threadIdx.x) / warp_size;
  const bool first = threadIdx.x % warp_size == 0;
  if (number < x.examples) {
    const double q = dot_by_warp(&x.H(0, number), &x.H_hat(0, number), x.rows);
    if (first) x.q[number] = q;
  } else if (number < x.examples + x.entries) {
    const int e = number - x.examples;
    const Index j = x.Y.examples[e], group = x.Y.groups[e];
    double o = dot_by_warp(&x.Z(0, group), &x.UH(0, j), x.rows);
    if (x.has_sums) o += dot_by_warp(&x.sums(0, group), &x.H(0, j), x.rows);
    if (first) x.o[e] = o;
  }
}

// ── pairs of examples ──────────────────────────────────────────────────────────────────────────────

/// Column j of M, for one example j. Within a group each example has one entry, so threads keep to their own elements;
/// groups follow one another in their order.
template <class T>
__device__ void gram_tile(const Gram<T>& x, int j) {
  const auto& Y = x.Y;
  for (int i = static_cast<int>(threadIdx.x); i < x.examples; i += program_threads) x.M(i, j) = T(0);
  __syncthreads();
  const Index last = Y.example_starts[j + 1];
  for (Index k = Y.example_starts[j]; k < last; ++k) {
    const Index e = Y.by_example[k], group = Y.groups[e], end = Y.starts[group + 1];
    const T value = x.values[e];
    for (Index other = Y.starts[group] + static_cast<Index>(threadIdx.x); other < end; other += program_threads) {
      x.M(Y.examples[other], j) += x.values[other] * value;
    }
    __syncthreads();  // the next group may give this element to another thread
  }
}

}  // namespace widehead::cuda
