#pragma once
/// The instructions of a program, tile by tile, each by a block of program_threads threads. A tile keeps to its own part
/// of what it writes, and adds up in a fixed order. `shared` is the block's, and free when a tile begins.

#include <cmath>
#include <utility>
#include <variant>

#include "fetch.cuh"
#include "instructions.h"
#include "kernels.h"
#include "widehead/loss.h"

namespace widehead::cuda {

static_assert(program_threads == block_size);

// ── elements ────────────────────────────────────────────────────────────────────────────────────

/// f(i, j) for the elements of a tile.
template <class F>
__device__ __forceinline__ void for_each_of_tile(Size rows, Size cols, int tile, const F& f) {
  const Size first = static_cast<Size>(tile) * elements_each, first_column = first / rows;
  const auto offset = static_cast<unsigned>(first - first_column * rows), height = static_cast<unsigned>(rows);
#pragma unroll
  for (int part = 0; part < elements_each / program_threads; ++part) {
    const unsigned at = offset + threadIdx.x + static_cast<unsigned>(part) * program_threads;
    const Size i = at % height, j = first_column + at / height;
    if (j < cols) f(i, j);
  }
}

/// s(x). The exponent of σ(x) = 1/(1 + t) or t/(1 + t), t = e^(−|x|), is never positive, so nothing overflows.
template <class T>
__device__ T activation_of(Activation s, T x) {
  switch (s) {
    case Activation::relu: return x < T(0) ? T(0) : x;  // a NaN stays one
    case Activation::tanh: return tanh(x);
    case Activation::sigmoid: {
      const T t = exp(x < T(0) ? x : -x);
      return (x > T(0) ? T(1) : t) / (T(1) + t);
    }
    case Activation::identity: break;
  }
  return x;
}
/// s′ from y = s(x).
template <class T>
__device__ T slope_of(Activation s, T y) {
  switch (s) {
    case Activation::relu: return y > T(0) ? T(1) : T(0);
    case Activation::tanh: return T(1) - y * y;
    case Activation::sigmoid: return y * (T(1) - y);
    case Activation::identity: break;
  }
  return T(1);
}

template <class T>
__device__ void elements_tile(const Elements<T>& x, int tile) {
  const auto each = [&](const auto& f) { for_each_of_tile(x.rows, x.cols, tile, f); };
  switch (x.what) {
    case Element::copy: return each([&](Size i, Size j) { x.C(i, j) = x.A(i, j); });
    case Element::clear: return each([&](Size i, Size j) { x.C(i, j) = T(0); });
    case Element::clear_tops:
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

// ── rows at other epochs ────────────────────────────────────────────────────────────────────────

/// 32 rows of a bundle's columns. The matrix's rows and the columns go to shared memory, as deep as there is room; a
/// thread has four rows of a column and a quarter of the depth.
template <class T>
__device__ void express_tile(const Express<T>& x, int tile, void* shared) {
  constexpr int rows_each = express_rows, depth_each = sizeof(T) == 4 ? 512 : 224, pitch = depth_each + 8;
  constexpr int piece = 16 / static_cast<int>(sizeof(T));
  static_assert((depth_each * rows_each + bundle_columns * (pitch + 4 * rows_each)) * sizeof(T) <= program_shared_bytes);
  const int row_tiles = (x.dim + rows_each - 1) / rows_each, first_row = tile % row_tiles * rows_each;
  const Bundle bundle = x.bundles[tile / row_tiles];
  const int thread = static_cast<int>(threadIdx.x);
  const int out_row = first_row + thread % rows_each, out = thread / rows_each;  // of the result, or of a copy
  const bool has = out < bundle.count;
  const Index column = has ? x.columns[bundle.first + out] : 0;
  if (bundle.matrix < 0) {
    const Index row = has ? x.rows[column] : 0;
    if (has && out_row < x.dim) x.Z(out_row, column) = row < 0 ? T(0) : x.V(out_row, row);
    return;
  }
  T* M = static_cast<T*>(shared);          // depth_each x 32
  T* v = M + depth_each * rows_each;       // bundle_columns x pitch
  T* parts = v + bundle_columns * pitch;   // 4 x bundle_columns x 32
  const int quad = thread % 8 * 4, number = thread / 8 % bundle_columns, group = thread / 64;
  T sums[4] = {};
  for (int first = 0; first < x.dim; first += depth_each) {
    const int depth = x.dim - first < depth_each ? x.dim - first : depth_each;
    const T* matrix = &x.matrices(first_row, static_cast<Size>(bundle.matrix) * x.dim + first);
    for (int at = thread; at < depth * (rows_each / piece); at += program_threads) {
      const int k = at / (rows_each / piece), r = at % (rows_each / piece) * piece;
      const bool inside = first_row + r < x.dim;
      fetch_piece(M + k * rows_each + r, matrix + (inside ? k * x.matrices.stride + r : 0),
                  inside ? x.dim - first_row - r : 0, x.wide);
    }
    const int pieces = (depth + piece - 1) / piece;
    for (int at = thread; at < bundle.count * pieces; at += program_threads) {
      const int c = at / pieces, k = at % pieces * piece;
      fetch_piece(v + c * pitch + k, &x.V(first + k, x.rows[x.columns[bundle.first + c]]), depth - k, x.wide);
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    if (number < bundle.count) {
#pragma unroll 8
      for (int k = group; k < depth; k += 4) {
        const T factor = v[number * pitch + k];
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] += M[k * rows_each + quad + i] * factor;
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) parts[(group * bundle_columns + number) * rows_each + quad + i] = sums[i];
  __syncthreads();
  if (has && out_row < x.dim) {
    T sum = 0;
#pragma unroll
    for (int g = 0; g < 4; ++g) sum += parts[(g * bundle_columns + out) * rows_each + thread % rows_each];
    x.Z(out_row, column) = sum;
  }
  __syncthreads();
}

// ── sums of columns ─────────────────────────────────────────────────────────────────────────────

/// 256 rows of one column. A thread has a row of a short sum; in a long one warps take the terms in turns.
template <class T>
__device__ void sum_columns_tile(const SumColumns<T>& x, int tile, void* shared) {
  const int row_tiles = (x.rows + sum_rows_each - 1) / sum_rows_each;
  const int c = tile / row_tiles, first_row = tile % row_tiles * sum_rows_each, thread = static_cast<int>(threadIdx.x);
  const Index first = x.starts[c], last = x.starts[c + 1];
  T* result = &x.Y(0, x.to == nullptr ? c : x.to[c]);
  const auto entry = [&](Index k) { return x.order == nullptr ? k : x.order[k]; };
  const auto value = [&](Index e) { return x.alpha * x.values[x.entries == nullptr ? e : x.entries[e]]; };
  const auto column = [&](Index e) { return &x.X(0, x.columns == nullptr ? e : x.columns[e]); };
  const int i = first_row + thread;
  constexpr int few = 4, warps = program_threads / warp_size;
  if (last - first <= few) {
    if (i >= x.rows) return;
    T sum = x.add ? result[i] : T(0);
    for (Index k = first; k < last; ++k) {
      const Index e = entry(k);
      sum += value(e) * column(e)[i];
    }
    result[i] = sum;
    return;
  }
  constexpr int each = sum_rows_each / warp_size;
  const int warp = thread / warp_size, lane = thread % warp_size;
  T sums[each] = {};
  for (Index k = first + warp; k < last; k += warps) {
    const Index e = entry(k);
    const T factor = value(e);
    const T* from = column(e) + first_row;
#pragma unroll
    for (int p = 0; p < each; ++p) {
      const int r = lane + p * warp_size;
      if (first_row + r < x.rows) sums[p] += factor * from[r];
    }
  }
  T* parts = static_cast<T*>(shared);  // warps x 256
#pragma unroll
  for (int p = 0; p < each; ++p) parts[warp * sum_rows_each + lane + p * warp_size] = sums[p];
  __syncthreads();
  if (i < x.rows) {
    T sum = x.add ? result[i] : T(0);
#pragma unroll
    for (int w = 0; w < warps; ++w) sum += parts[w * sum_rows_each + thread];
    result[i] = sum;
  }
  __syncthreads();
}

/// 32 rows, eight columns at a time.
template <class T>
__device__ void sum_rows_tile(const SumRows<T>& x, int tile, void* shared) {
  constexpr int lines = program_threads / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size, line = static_cast<int>(threadIdx.x) / warp_size;
  const int i = tile * warp_size + lane;
  double sum = 0;
  if (i < x.rows) {
#pragma unroll 4
    for (int j = line; j < x.cols; j += lines) sum += static_cast<double>(x.A(i, j));
  }
  auto* parts = static_cast<double*>(shared);
  parts[line * warp_size + lane] = sum;
  __syncthreads();
  if (line == 0 && i < x.rows) {
    for (int k = 1; k < lines; ++k) sum += parts[k * warp_size + lane];
    x.out[i] = static_cast<T>(sum);
  }
  __syncthreads();
}

// ── dots, a warp each ───────────────────────────────────────────────────────────────────────────

/// Σ x y in double, for lane 0.
template <class T>
__device__ double dot_by_warp(const T* x, const T* y, int rows) {
  double sum = 0;
#pragma unroll 5
  for (int i = static_cast<int>(threadIdx.x) % warp_size; i < rows; i += warp_size) {
    sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  }
  return combine_warp(sum, Plus{});
}

template <class T>
__device__ void dots_tile(const Dots<T>& x, int tile) {
  const int e = tile * dots_each + static_cast<int>(threadIdx.x) / warp_size;
  if (e >= x.count) return;
  const double sum = dot_by_warp(&x.A(0, x.of_a == nullptr ? e : x.of_a[e]),
                                 &x.B(0, x.of_b == nullptr ? e : x.of_b[e]), x.rows);
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

// ── pairs of examples ───────────────────────────────────────────────────────────────────────────

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

// ── losses ──────────────────────────────────────────────────────────────────────────────────────

/// Example j, by one thread: the loss itself goes over its targets.
template <class L, class T>
__device__ __noinline__ void judge_example(const L& loss, const Judge<T>& x, Size j) {
  const auto& Y = x.Y;
  const Index first = Y.example_starts[j], last = Y.example_starts[j + 1];
  double *o = x.room, *y = o + x.entries, *g = y + x.entries;
  for (Index k = first; k < last; ++k) {
    const Index e = Y.by_example[k];
    o[k] = x.o[e];
    y[k] = static_cast<double>(Y.values[e]);
    g[k] = 0;
  }
  const auto count = static_cast<std::size_t>(last - first);
  const LossInput input{x.q[j], L::uses_sum ? x.s[j] : 0.0, x.outputs, std::span<const double>(o + first, count),
                        std::span<const double>(y + first, count)};
  const LossValue value = loss(input, std::span<double>(g + first, count));
  const double weight = x.weights == nullptr ? 1.0 : static_cast<double>(x.weights[j]);
  double gamma = 0, poison = value.L + value.a + value.b;
  for (Index k = first; k < last; ++k) {
    const double weighted = weight * g[k];
    const T rounded = static_cast<T>(weighted);
    x.g[Y.by_example[k]] = rounded;
    gamma += weighted;
    poison += static_cast<double>(rounded);
  }
  const T a = static_cast<T>(weight * value.a), b = static_cast<T>(weight * value.b), sum = static_cast<T>(gamma);
  x.a[j] = a;
  x.b[j] = b;
  x.gamma[j] = sum;
  const bool bad = !isfinite(poison) || !isfinite(a + b + sum) || (!L::uses_sum && value.b != 0);
  x.out.L[j] = weight * value.L;
  x.out.largest_a[j] = static_cast<double>(a < T(0) ? -a : a);
  x.out.bad[j] = bad ? j : nobody;
  x.out.value[3 * j] = value.L;
  x.out.value[3 * j + 1] = value.a;
  x.out.value[3 * j + 2] = value.b;
}

template <class T, std::size_t... numbers>
__device__ void judge_with(const Judge<T>& x, Size j, std::index_sequence<numbers...>) {
  const auto with = [&]<std::size_t number>() {
    using L = std::variant_alternative_t<number, Loss>;
    if (x.loss == static_cast<int>(number)) judge_example(*reinterpret_cast<const L*>(x.parameters), x, j);
  };
  (with.template operator()<numbers>(), ...);
}

/// A thread of every warp has an example: their ways through a loss differ.
template <class T>
__device__ void judge_tile(const Judge<T>& x, int tile) {
  const Size j = static_cast<Size>(tile) * dots_each + threadIdx.x / warp_size;
  if (threadIdx.x % warp_size != 0 || j >= x.examples) return;
  judge_with(x, j, std::make_index_sequence<std::variant_size_v<Loss> - 1>());  // all but CustomLoss, the last
}

/// By one block, in a fixed order.
__device__ inline void summarize_tile(const Summarize& x) {
  double L = 0, largest_a = 0;
  Size bad = nobody;
  for (int j = static_cast<int>(threadIdx.x); j < x.examples; j += program_threads) {
    L += x.of.L[j];
    largest_a = Larger{}(largest_a, x.of.largest_a[j]);
    bad = Smaller{}(bad, x.of.bad[j]);
  }
  L = combine_block(L, Plus{});
  largest_a = combine_block(largest_a, Larger{});
  bad = combine_block(bad, Smaller{});
  if (threadIdx.x != 0) return;
  if (x.ledger != nullptr) {  // for judge_later
    x.ledger[0] += L;
    x.ledger[1] += bad == nobody ? 0 : 1;
    return;
  }
  x.summary->L = L;
  x.summary->largest_a = largest_a;
  x.summary->bad = bad;
  for (int k = 0; k < 3; ++k) x.summary->at_bad[k] = bad == nobody ? 0 : x.of.value[3 * bad + k];
}

}  // namespace widehead::cuda
