#pragma once
/// Products of a few hundred rows and columns, tile by tile, by tensor cores (tensor_cores.cuh). A block makes 32 x 32
/// elements of C, or 16 x 16 where there are few of them. Slices of the depth are 64 deep and on their way four at a
/// time, two behind those that are multiplied. Each of the block's eight warps has eight steps of every slice, two
/// slices at a time, and all of the tile; their sums are added up at the end in a fixed order.
///
/// A tile is over in a few thousand cycles, so what happens once in it counts as much as the loop: addresses are worked
/// out at the start, what lies beyond a matrix is not asked about where it does no harm, and C is read and written 16
/// bytes at a time.

#include "activation.cuh"
#include "operands.cuh"
#include "tensor_cores.cuh"

namespace widehead::cuda {

inline constexpr int groups = program_threads / warp_size;
static_assert(slice_depth == 8 * groups);

/// What a thread reads of one operand: of each eight rows its own, of its warp's eight steps of the depth two.
template <int edge, bool along>
struct Reader {
  int first;
  int eights[along ? 1 : 4];  // what `place` permutes by, which is the same in all slices

  __device__ __forceinline__ Reader() {
    const int thread = thread_number(), lane = thread % warp_size, group = thread / warp_size;
    const int row = lane / 4, j = lane % 4;
    if constexpr (along) {
      first = place<edge, along>(row, 8 * group + 2 * j);
    } else {
      first = (edge == 32 ? 8 * group + 2 * j : 4 * group + j) * 32 + row;
#pragma unroll
      for (int n = 0; n < 4; ++n) eights[n] = (n ^ j) * 8;
    }
  }
  /// The two steps of row 8 · n and its own.
  __device__ __forceinline__ float2 operator()(const float* slice, int n) const {
    if constexpr (along) {
      return *reinterpret_cast<const float2*>(slice + first + n * 8 * slice_depth);
    } else if constexpr (edge == 32) {
      return {slice[first + eights[n]], slice[first + eights[n] + 32]};
    } else {
      return {slice[first + eights[n]], slice[first + eights[n + 2]]};
    }
  }
};

/// Elements of a column, of which `there` are within the matrix. `wide`: all or none are, and 16 bytes at a time are
/// possible.
template <int count>
__device__ __forceinline__ void load(const float* from, int there, bool wide, float (&x)[count]) {
  if (count == 4 && wide) {
    const float4 four = there > 0 ? *reinterpret_cast<const float4*>(from) : float4{};
    x[0] = four.x, x[1 % count] = four.y, x[2 % count] = four.z, x[3 % count] = four.w;
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) x[i] = i < there ? from[i] : 0;
  }
}
template <int count>
__device__ __forceinline__ void store(const float (&x)[count], int there, bool wide, float* to) {
  if (count == 4 && wide) {
    if (there > 0) *reinterpret_cast<float4*>(to) = {x[0], x[1 % count], x[2 % count], x[3 % count]};
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (i < there) to[i] = x[i];
    }
  }
}

/// What becomes of an element of a product.
__device__ inline float after_product(const Multiply& x, int row, int column, float value) {
  switch (x.after) {
    case After::activate: return activation_of(x.activation, x.y == nullptr ? value : value + x.y[row]);
    case After::slope: return value * slope_of(x.activation, x.y[row + static_cast<Size>(column) * x.y_stride]);
    case After::nothing: break;
  }
  return value;
}

/// Elements (H YᵀY)(row …, column), of which `there` are within H: few terms, mostly one.
template <int count>
__device__ __forceinline__ void add_pairs(const Multiply& x, int row, int column, int there, float (&sums)[count]) {
  if (there <= 0) return;
  const Index last = x.pair_starts[column + 1];
#pragma unroll 4
  for (Index k = x.pair_starts[column]; k < last; ++k) {
    const Pair pair = x.pairs[k];
    const float factor = global(x.values)[pair.own] * global(x.values)[pair.other];
    float h[count];
    load(global(x.H) + (row + static_cast<Size>(pair.example) * x.H_stride), there, x.wide_C, h);
#pragma unroll
    for (int i = 0; i < count; ++i) sums[i] += factor * h[i];
  }
}

/// a / b, rounded down, for a below 2²⁰: a float is far enough from the next whole number then.
__device__ __forceinline__ int quotient(int a, int b) {
  return static_cast<int>(__fdividef(static_cast<float>(a) + 0.5F, static_cast<float>(b)));
}

/// A thread's elements of a tile in the end: four of a column, or one.
template <int edge>
struct Own {
  static constexpr int each = edge * edge / program_threads, parts_a_column = edge / each;
  int r, c;         ///< in the tile
  int row, column;  ///< the first of them, in C
  int there;        ///< so many, or more, are within C; none where not positive

  __device__ __forceinline__ Own(const Multiply& x, int first_row, int first_column) {
    const int thread = thread_number();
    r = thread % parts_a_column * each, c = thread / parts_a_column;
    row = first_row + r, column = first_column + c;
    there = column < x.cols ? x.rows - row : 0;
  }
};

/// What a thread's elements of C and of `high` are before the product is there, behind the slices: there are no
/// registers to spare for them meanwhile.
template <int edge>
__device__ __forceinline__ float* held_C() {
  return pool() + slices_ahead * 2 * slice_floats + thread_number() * Own<edge>::each;
}
template <int edge>
__device__ __forceinline__ float* held_high() {
  return held_C<edge>() + program_threads * Own<edge>::each;
}
static_assert((slices_ahead * 2 * slice_floats + 2 * 4 * program_threads) * sizeof(float) <= program_shared_bytes);

/// Elements of a column on their way there, of which so many are there.
template <int count>
__device__ __forceinline__ void fetch_column(float* to, const float* from, int there, bool wide) {
  if (count == 4 && wide) {
    fetch_floats<4>(to, from, there > 0);
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) fetch_floats<1>(to + i, from + i, i < there);
  }
}

/// C ← α (value + what the warps have added up) + βC, and what else becomes of it.
template <int edge, bool may_be_symmetric, bool named>
__device__ __forceinline__ void finish_tile(const Multiply& x, int first_row, int first_column, int row_tile,
                                            int column_tile, const Sums<edge / 16, edge / 8>& sums,
                                            float (&value)[Own<edge>::each], const Index* C_names) {
  float* const shared = pool();
  constexpr int each = Own<edge>::each, pitch = edge + 4;  // of a column
  const int warp = thread_number() / warp_size;
  for_each_of_sums(thread_number() % warp_size, sums,
                   [&](int i, int j, float sum) { shared[(warp * edge + j) * pitch + i] = sum; });
  __syncthreads();
  const Own<edge> own(x, first_row, first_column);
#pragma unroll
  for (int g = 0; g < groups; ++g) {
    const float* of_group = shared + (g * edge + own.c) * pitch + own.r;
    float part[each];
    load(of_group, each, true, part);
#pragma unroll
    for (int i = 0; i < each; ++i) value[i] += part[i];
  }
#pragma unroll
  for (int i = 0; i < each; ++i) value[i] *= x.alpha;
  if (x.beta != 0) {
    float held[each];
    load(held_C<edge>(), each, true, held);
#pragma unroll
    for (int i = 0; i < each; ++i) value[i] += x.beta * held[i];
  }
  float high[each] = {};
  if (x.sum != nullptr) load(held_high<edge>(), each, true, high);
  if (!may_be_symmetric || !x.symmetric) {
    if (!named && x.after != After::nothing) {
#pragma unroll
      for (int i = 0; i < each; ++i) {
        if (i < own.there) value[i] = after_product(x, own.row + i, own.column, value[i]);
      }
    }
    const Size target = named && own.there > 0 ? C_names[own.column] : own.column;
    store(value, own.there, x.wide_C, global(x.C) + (own.row + target * x.C_stride));
    if (x.sum != nullptr) {
#pragma unroll
      for (int i = 0; i < each; ++i) value[i] += high[i];
      store(value, own.there, x.wide_C, global(x.sum) + (own.row + static_cast<Size>(own.column) * x.sum_stride));
    }
    __syncthreads();  // before the next tile's slices come
    return;
  }
  if constexpr (may_be_symmetric) {
    // Elements below the diagonal are the truth for those above, too.
    float* turned = shared + groups * edge * pitch;  // C's tile
#pragma unroll
    for (int i = 0; i < each; ++i) turned[own.c * (edge + 1) + own.r + i] = value[i];
    __syncthreads();
    const auto put = [&](int i, int j, const float(&values)[each], float(&above_them)[each]) {
      const int within = j < x.cols ? x.rows - i : 0;
      store(values, within, x.wide_C, global(x.C) + (i + static_cast<Size>(j) * x.C_stride));
      if (x.sum == nullptr) return;
#pragma unroll
      for (int k = 0; k < each; ++k) above_them[k] += values[k];
      store(above_them, within, x.wide_C, global(x.sum) + (i + static_cast<Size>(j) * x.sum_stride));
    };
    float mirrored[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
      mirrored[i] = turned[(own.r + i) * (edge + 1) + own.c];
      if (own.row + i < own.column) value[i] = mirrored[i];
    }
    if (row_tile != column_tile) {
      float above_there[each] = {};
      const int i = first_column + own.r, j = first_row + own.c;
      if (x.sum != nullptr) {
        load(global(x.high) + (i + static_cast<Size>(j) * x.high_stride), j < x.cols ? x.rows - i : 0, x.wide_C,
             above_there);
      }
      put(i, j, mirrored, above_there);
    }
    put(own.row, own.column, value, high);
    __syncthreads();
  }
}

/// @param B_names, C_names  only where `named`: which columns of B are multiplied, and where their products go
template <int edge, bool A_along, bool B_along, bool wide, bool named = false>
__device__ void multiply_tile(const Multiply& x, int tile, const Index* B_names = nullptr,
                              const Index* C_names = nullptr) {
  float* const shared = pool();
  const int row_tiles = static_cast<int>(static_cast<unsigned>(x.rows + edge - 1) / edge);
  int column_tile = quotient(tile, row_tiles), row_tile = tile - column_tile * row_tiles;
  if (x.symmetric) {  // the lower triangle, row after row
    row_tile = 0;
    while ((row_tile + 1) * (row_tile + 2) / 2 <= tile) ++row_tile;
    column_tile = tile - row_tile * (row_tile + 1) / 2;
  }
  const int first_row = row_tile * edge, first_column = column_tile * edge;
  const auto slices_of = [&](int p) { return (x.of[p].depth + slice_depth - 1) / slice_depth; };
  constexpr bool several = !A_along && !named, may_have_pairs = !A_along && B_along && !named;
  int slices = slices_of(0), before_next = slices, product = 0;
  if constexpr (several) {
#pragma unroll
    for (int p = 1; p < most_products; ++p) slices += slices_of(p);
  }
  Fetcher<edge, A_along, wide> of_A({x.of[0].A, x.of[0].A_stride, x.rows, nullptr}, first_row, x.of[0].depth);
  Fetcher<edge, B_along, wide> of_B({x.of[0].B, x.of[0].B_stride, x.cols, named ? B_names : nullptr}, first_column,
                                    x.of[0].depth);
  const auto fetch = [&](int s, float* to) {
    if constexpr (several) {
      if (s == before_next && s < slices) {
        const Factors& next = x.of[++product];
        before_next += slices_of(product);
        of_A = {Operand{next.A, next.A_stride, x.rows, nullptr}, first_row, next.depth};
        of_B = {Operand{next.B, next.B_stride, x.cols, nullptr}, first_column, next.depth};
      }
    }
    if (s < slices) {
      of_A.fetch(to);
      of_B.fetch(to + slice_floats);
    }
    close_batch();
  };
  {
    const Own<edge> own(x, first_row, first_column);
    const Size target = named && own.there > 0 ? C_names[own.column] : own.column;
    if (x.beta != 0) {
      fetch_column<Own<edge>::each>(held_C<edge>(), global(x.C) + (own.row + target * x.C_stride), own.there, x.wide_C);
    }
    if (x.sum != nullptr) {
      fetch_column<Own<edge>::each>(held_high<edge>(),
                                    global(x.high) + (own.row + static_cast<Size>(own.column) * x.high_stride),
                                    own.there, x.wide_C);
    }
  }
  if constexpr (several) {  // the way to the next product is too long to be there many times
#pragma unroll 1
    for (int s = 0; s < slices_ahead; ++s) fetch(s, shared + s * 2 * slice_floats);
  } else {
#pragma unroll
    for (int s = 0; s < slices_ahead; ++s) fetch(s, shared + s * 2 * slice_floats);
  }

  float value[Own<edge>::each] = {};
  if constexpr (may_have_pairs) {
    const Own<edge> own(x, first_row, first_column);
    if (x.pair_starts != nullptr) add_pairs(x, own.row, own.column, own.there, value);
  }

  const Reader<edge, A_along> read_A;
  const Reader<edge, B_along> read_B;
  Sums<edge / 16, edge / 8> sums = {};
  float* const end_of_slices = shared + slices_ahead * 2 * slice_floats;
  const auto behind = [&](float* slice) {
    slice += 2 * slice_floats;
    return slice == end_of_slices ? shared : slice;
  };
  float* slice = shared;
#pragma unroll 1
  for (int s = 0; s < slices; s += 2) {  // two at a time, the last perhaps alone
    wait_for_batches<slices_ahead - 2>();
    __syncthreads();
    float* const second = behind(slice);
    const bool is_pair = s + 1 < slices;
    add_product(
        sums, [&](int half, int n) { return half == 0 ? read_A(slice, n)
                                            : is_pair ? read_A(second, n)
                                                      : float2{}; },
        [&](int half, int n) {
          return half == 0 ? read_B(slice + slice_floats, n) : is_pair ? read_B(second + slice_floats, n) : float2{};
        });
    if (s + slices_ahead < slices) __syncthreads();  // the slices' places are free
    fetch(s + slices_ahead, slice);
    fetch(s + slices_ahead + 1, second);
    slice = behind(second);
  }
  __syncthreads();  // all slices have been read: their memory takes the groups' sums
  constexpr bool may_be_symmetric = !A_along && !B_along;
  finish_tile<edge, may_be_symmetric, named>(named ? x : read_again(x), first_row, first_column, row_tile, column_tile,
                                             sums, value, C_names);
}

template <int edge, bool wide>
__device__ void multiply_any_tile(const Multiply& x, int tile) {
  if (x.A_along) {
    if (x.B_along) {
      multiply_tile<edge, true, true, wide>(x, tile);
    } else {
      multiply_tile<edge, true, false, wide>(x, tile);
    }
  } else if (x.B_along) {
    multiply_tile<edge, false, true, wide>(x, tile);
  } else {
    multiply_tile<edge, false, false, wide>(x, tile);
  }
}

}  // namespace widehead::cuda
