#pragma once
/// Products of a few hundred rows and columns, tile by tile. A block makes 32 x 32 elements of C, or 16 x 16 where
/// there are few of them. Its threads form four groups of 64; each has a quarter of every slice of the depth, in which
/// a thread has 4 x 4 (2 x 2) elements, and their sums are added up at the end in a fixed order. Slices are 64 deep and
/// on their way five at a time: for depths up to 320 nothing waits for anything but the first.
///
/// An operand that is consecutive along the depth lies in shared memory as it does outside, row after row of 64, padded
/// to 68: a thread reads four steps of the depth at once, and the eight rows of a warp are on different banks. One that
/// is consecutive across the depth lies there step after step, and a thread reads its rows at once.

#include "activation.cuh"
#include "fetch.cuh"
#include "instructions.h"

namespace widehead::cuda {

inline constexpr int slice_depth = 64;
inline constexpr int slice_pitch = slice_depth + 4;
inline constexpr int slices_ahead = 5;
inline constexpr int slice_floats = 32 * slice_pitch;  // of one operand, in the larger of the two layouts
inline constexpr int part_pitch = 36;                  // of a column in a group's sums
inline constexpr int numbers = 8;                      // of threads along either edge of a tile
inline constexpr int groups = program_threads / (numbers * numbers);
static_assert(2 * slices_ahead * slice_floats * sizeof(float) <= program_shared_bytes);

/// A block's memory for whatever it does. Not passed about: functions that are not inlined would not know that it is
/// shared.
__device__ __forceinline__ float* pool() {
  extern __shared__ float4 program_memory[];
  return reinterpret_cast<float*>(program_memory);
}

/// One operand of a product: element (row, k) of what C's rows (or columns) belong to. With `names`, they are the names
/// of the rows.
struct Operand {
  const float* data;
  int stride, rows;
  const Index* names;
};

/// What a thread fetches of one operand, slice after slice: where its pieces come from and go to is settled at the
/// start, since working that out takes longer than the fetching.
template <int edge, bool along, bool wide>
struct Fetcher {
  static constexpr int count = edge * slice_depth / 4 / program_threads;  // pieces of 16 bytes

  const float* from[count];
  int there[count];  // elements of a piece that are within C's rows: 0 … 4
  int left;          // of the depth, from the slice that comes next on
  Size step;         // from a slice to the next

  static __device__ int row_of(int part) {
    const int piece = static_cast<int>(threadIdx.x) + part * program_threads;
    return along ? piece / (slice_depth / 4) : piece % (edge / 4) * 4;
  }
  static __device__ int k_of(int part) {
    const int piece = static_cast<int>(threadIdx.x) + part * program_threads;
    return along ? piece % (slice_depth / 4) * 4 : piece / (edge / 4);
  }

  __device__ Fetcher(const Operand& X, int first_row, int depth)
      : left(depth), step(along ? slice_depth : static_cast<Size>(slice_depth) * X.stride) {
#pragma unroll
    for (int part = 0; part < count; ++part) {
      const int row = first_row + row_of(part), k = k_of(part), rows = X.rows - row;
      there[part] = along ? (rows > 0 ? 4 : 0) : rows < 0 ? 0 : rows > 4 ? 4 : rows;
      const Size name = rows <= 0 ? 0 : X.names == nullptr ? row : X.names[row];
      from[part] = X.data + (along ? name * X.stride + k : static_cast<Size>(k) * X.stride + name);
    }
  }
  /// The next slice; 0 beyond the ends, for which `somewhere` is an address that exists.
  __device__ __forceinline__ void fetch(const float* somewhere, float* slice) {
#pragma unroll
    for (int part = 0; part < count; ++part) {
      const int rest = left - k_of(part);
      const int valid = rest <= 0 ? 0 : along && rest < there[part] ? rest : there[part];
      fetch_piece<wide>(slice + (along ? row_of(part) * slice_pitch + k_of(part) : k_of(part) * edge + row_of(part)),
                        valid > 0 ? from[part] : somewhere, valid);
      from[part] += step;
    }
    left -= slice_depth;
  }
};

/// Four steps of the depth from k on, for a thread's rows: number · each + i where the slice is across the depth,
/// number + 8 i where it is along.
template <int each, bool along>
__device__ __forceinline__ void read_slice(const float* slice, int number, int k, float (&x)[each][4]) {
  if constexpr (along) {
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(slice + (number + numbers * i) * slice_pitch + k);
      x[i][0] = four.x, x[i][1] = four.y, x[i][2] = four.z, x[i][3] = four.w;
    }
  } else {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float* at = slice + ((k + q) * numbers + number) * each;
      if constexpr (each == 4) {
        const float4 four = *reinterpret_cast<const float4*>(at);
        x[0][q] = four.x, x[1][q] = four.y, x[2][q] = four.z, x[3][q] = four.w;
      } else {
        const float2 two = *reinterpret_cast<const float2*>(at);
        x[0][q] = two.x, x[1][q] = two.y;
      }
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

/// @param B_names, C_names  only where `named`: which columns of B are multiplied, and where their products go
template <int each, bool A_along, bool B_along, bool wide, bool named = false>
__device__ void multiply_tile(const Multiply& x, int tile, const Index* B_names = nullptr,
                              const Index* C_names = nullptr) {
  constexpr int edge = numbers * each;
  float* const shared = pool();
  const int row_tiles = (x.rows + edge - 1) / edge;
  int row_tile = tile % row_tiles, column_tile = tile / row_tiles;
  if (x.symmetric) {  // the lower triangle, row after row
    row_tile = 0;
    while ((row_tile + 1) * (row_tile + 2) / 2 <= tile) ++row_tile;
    column_tile = tile - row_tile * (row_tile + 1) / 2;
  }
  const int first_row = row_tile * edge, first_column = column_tile * edge;
  const Operand A{x.A, x.A_stride, x.rows, nullptr}, B{x.B, x.B_stride, x.cols, named ? B_names : nullptr};
  const int first_slices = (x.depth + slice_depth - 1) / slice_depth;
  const int slices = first_slices + (x.second_depth + slice_depth - 1) / slice_depth;
  Fetcher<edge, A_along, wide> of_A(A, first_row, x.depth);
  Fetcher<edge, B_along, wide> of_B(B, first_column, x.depth);
  const float* somewhere = x.A;
  const auto fetch = [&](int s) {
    if (!A_along && s == first_slices && s < slices) {  // the second product
      of_A = {Operand{x.F, x.F_stride, x.rows, nullptr}, first_row, x.second_depth};
      of_B = {Operand{x.G, x.G_stride, x.cols, nullptr}, first_column, x.second_depth};
    }
    if (s < slices) {
      float* a = shared + s % slices_ahead * 2 * slice_floats;
      of_A.fetch(somewhere, a);
      of_B.fetch(somewhere, a + slice_floats);
    }
    close_batch();
  };
#pragma unroll 1
  for (int s = 0; s < slices_ahead; ++s) fetch(s);

  // What C and `high` hold at this thread's elements, which are one of each of its line's columns.
  const int lane = static_cast<int>(threadIdx.x) % edge, line = static_cast<int>(threadIdx.x) / edge;
  constexpr int lines = program_threads / edge, turns = edge / lines;
  const int row = first_row + lane;
  float held[turns], above[turns];
#pragma unroll
  for (int p = 0; p < turns; ++p) {
    const int column = first_column + line + p * lines;
    const bool inside = row < x.rows && column < x.cols;
    held[p] = x.beta != 0 && inside ? x.D[row + static_cast<Size>(column) * x.D_stride] : 0;
    above[p] = x.sum != nullptr && inside ? x.high[row + static_cast<Size>(column) * x.high_stride] : 0;
  }

  const int group = static_cast<int>(threadIdx.x) / (numbers * numbers);
  const int number_A = static_cast<int>(threadIdx.x) % numbers,
            number_B = static_cast<int>(threadIdx.x) / numbers % numbers;
  float sums[each][each] = {};
#pragma unroll 1
  for (int s = 0; s < slices; ++s) {
    wait_for_batches<slices_ahead - 1>();
    __syncthreads();
    const float* a = shared + s % slices_ahead * 2 * slice_floats;
    const float* b = a + slice_floats;
#pragma unroll 2
    for (int step = 0; step < slice_depth / (4 * groups); ++step) {
      const int k = group * (slice_depth / groups) + step * 4;
      float from_A[each][4], from_B[each][4];
      read_slice<each, A_along>(a, number_A, k, from_A);
      read_slice<each, B_along>(b, number_B, k, from_B);
#pragma unroll
      for (int q = 0; q < 4; ++q) {
#pragma unroll
        for (int i = 0; i < each; ++i) {
#pragma unroll
          for (int j = 0; j < each; ++j) sums[i][j] += from_A[i][q] * from_B[j][q];
        }
      }
    }
    if (s + slices_ahead < slices) __syncthreads();  // the slice's place is free
    fetch(s + slices_ahead);
  }
  __syncthreads();  // all slices have been read: their memory takes the groups' sums

#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int r = A_along ? number_A + numbers * i : number_A * each + i;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const int c = B_along ? number_B + numbers * j : number_B * each + j;
      shared[(group * edge + c) * part_pitch + r] = sums[i][j];
    }
  }
  __syncthreads();
  float* turned = shared + groups * edge * part_pitch;  // C's tile, for what is symmetric
#pragma unroll
  for (int p = 0; p < turns; ++p) {
    const int c = line + p * lines, column = first_column + c;
    float sum = 0;
#pragma unroll
    for (int g = 0; g < groups; ++g) sum += shared[(g * edge + c) * part_pitch + lane];
    const float value = x.alpha * sum + x.beta * held[p];
    if (x.symmetric) {
      turned[c * (edge + 1) + lane] = value;
    } else if (row < x.rows && column < x.cols) {
      x.C[row + static_cast<Size>(named ? C_names[column] : column) * x.C_stride] =
          named ? value : after_product(x, row, column, value);
      if (x.sum != nullptr) x.sum[row + static_cast<Size>(column) * x.sum_stride] = above[p] + value;
    }
  }
  __syncthreads();  // before the next tile's slices come
  if constexpr (!A_along && !B_along) {
    if (!x.symmetric) return;
    // Elements below the diagonal are the truth for those above, too.
    const auto put = [&](int i, int j, float value) {
      if (i >= x.rows || j >= x.cols) return;
      x.C[i + static_cast<Size>(j) * x.C_stride] = value;
      if (x.sum != nullptr) {
        x.sum[i + static_cast<Size>(j) * x.sum_stride] = x.high[i + static_cast<Size>(j) * x.high_stride] + value;
      }
    };
#pragma unroll
    for (int p = 0; p < turns; ++p) {
      const int c = line + p * lines;
      const bool below = row >= first_column + c;
      put(row, first_column + c, below ? turned[c * (edge + 1) + lane] : turned[lane * (edge + 1) + c]);
      if (row_tile != column_tile) put(first_column + lane, first_row + c, turned[lane * (edge + 1) + c]);
    }
    __syncthreads();
  }
}

template <int each, bool wide>
__device__ void multiply_any_tile(const Multiply& x, int tile) {
  if (x.A_along) {
    if (x.B_along) {
      multiply_tile<each, true, true, wide>(x, tile);
    } else {
      multiply_tile<each, true, false, wide>(x, tile);
    }
  } else if (x.B_along) {
    multiply_tile<each, false, true, wide>(x, tile);
  } else {
    multiply_tile<each, false, false, wide>(x, tile);
  }
}

}  // namespace widehead::cuda
