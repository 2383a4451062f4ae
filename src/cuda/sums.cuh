#pragma once
/// Sums of columns and along rows, dots, and pairs of examples; added up in a fixed order.

#include "kernels.h"
#include "multiply.cuh"

namespace widehead::cuda {

// ── sums of columns ────────────────────────────────────────────────────────────────────────────────

/// 512 rows of one column; a thread has two of them. Few terms are read as they are met. Of many, as many as there is
/// room for are on their way to shared memory together: who waits for each by itself is waited for by all.
template <class T>
__device__ void sum_columns_tile(const SumColumns<T>& x, int tile) {
  const int row_tiles = (x.rows + sum_rows_each - 1) / sum_rows_each;
  const int c = tile / row_tiles, first_row = tile % row_tiles * sum_rows_each, thread = static_cast<int>(threadIdx.x);
  const Index first = x.starts[c], last = x.starts[c + 1];
  T* result = &x.Y(0, x.to == nullptr ? c : x.to[c]);
  const auto entry = [&](Index k) { return x.order == nullptr ? k : x.order[k]; };
  const auto value = [&](Index e) { return x.alpha * x.values[x.entries == nullptr ? e : x.entries[e]]; };
  const auto column = [&](Index e) { return x.columns == nullptr ? e : x.columns[e]; };
  constexpr int few = 4, own_rows = sum_rows_each / program_threads;
  const auto for_own_rows = [&](const auto& f) {
#pragma unroll
    for (int p = 0; p < own_rows; ++p) {
      const int i = first_row + thread + p * program_threads;
      if (i < x.rows) f(i, p);
    }
  };
  T sums[own_rows] = {};
  if (x.add) for_own_rows([&](int i, int p) { sums[p] = result[i]; });
  if (last - first <= few) {
    for (Index k = first; k < last; ++k) {
      const Index e = entry(k);
      const T factor = value(e);
      const T* from = &x.X(0, column(e));
      for_own_rows([&](int i, int p) { sums[p] += factor * from[i]; });
    }
  } else {
    constexpr int piece = 16 / static_cast<int>(sizeof(T)), most_terms = program_threads;
    T* factors = reinterpret_cast<T*>(pool());  // of the terms at hand
    auto* columns = reinterpret_cast<Index*>(factors + most_terms);
    T* terms = reinterpret_cast<T*>(columns + most_terms);
    constexpr int room =
        (program_shared_bytes - most_terms * static_cast<int>(sizeof(T) + sizeof(Index))) / static_cast<int>(sizeof(T));
    const int rows = min(x.rows - first_row, sum_rows_each), pieces = (rows + piece - 1) / piece;
    const int at_once = min(most_terms, room / (pieces * piece));
    const bool wide = reinterpret_cast<std::uintptr_t>(x.X.data) % 16 == 0 && x.X.stride % piece == 0;
    for (Index start = first; start < last; start += at_once) {
      const int count = min(static_cast<int>(last - start), at_once);
      if (thread < count) {
        const Index e = entry(start + thread);
        factors[thread] = value(e);
        columns[thread] = column(e);
      }
      __syncthreads();
      for (int t = thread / warp_size; t < count; t += program_threads / warp_size) {  // a warp a term
        const T* from = &x.X(first_row, columns[t]);
        for (int at = thread % warp_size * piece; at < rows; at += warp_size * piece) {
          const int valid = min(rows - at, piece);
          T* to = terms + (t * pieces * piece + at);
          if (wide) {
            fetch_piece<true>(to, from + at, valid);
          } else {
            fetch_piece<false>(to, from + at, valid);
          }
        }
      }
      close_batch();
      wait_for_batches<0>();
      __syncthreads();
      for_own_rows([&](int i, int p) {  // by fours, which do not wait for one another, and round less
        T parts[few] = {};
        const auto term = [&](int t) { return factors[t] * terms[t * pieces * piece + i - first_row]; };
        int t = 0;
        for (; t + few <= count; t += few) {
#pragma unroll
          for (int k = 0; k < few; ++k) parts[k] += term(t + k);
        }
        for (; t < count; ++t) parts[0] += term(t);
        sums[p] += (parts[0] + parts[1]) + (parts[2] + parts[3]);
      });
      __syncthreads();
    }
  }
  for_own_rows([&](int i, int p) { result[i] = sums[p]; });
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
