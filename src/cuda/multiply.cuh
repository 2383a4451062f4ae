#pragma once
/// Products of a few hundred rows and columns, tile by tile. A block makes 32 x 32 elements of C (or 16 x 16, where
/// there are few of them). Its threads form four groups of 64; each has a quarter of every slice of the depth, in which
/// a thread has 4 x 4 (2 x 2) elements, and their sums are added up at the end in a fixed order. Slices are 64 deep and
/// on their way five at a time: for depths up to 320 nothing waits for anything but the first.
///
/// An operand that is consecutive along the depth lies in shared memory as it does outside, row after row of 64, padded
/// to 68: a thread reads four steps of the depth at once, and the eight rows of a warp are on different banks. One that
/// is consecutive across the depth lies there step after step, and a thread reads its rows at once.

#include "fetch.cuh"
#include "instructions.h"

namespace widehead::cuda {

inline constexpr int slice_depth = 64;
inline constexpr int slice_pitch = slice_depth + 4;
inline constexpr int slices_ahead = 5;
inline constexpr int slice_floats = 32 * slice_pitch;  // the larger of the two layouts
inline constexpr int part_pitch = 36;                  // of a column in a group's sums
static_assert(2 * slices_ahead * slice_floats * sizeof(float) <= program_shared_bytes);

/// One operand of a product: element (row, k) of what C's rows (or columns) belong to.
struct Operand {
  const float* data;
  int stride, rows;
  bool wide;
};

/// The slice from `first` on, `edge` rows of it from `first_row` on; 0 beyond the ends.
template <int edge, bool along>
__device__ __forceinline__ void fetch_slice(const Operand& X, int first_row, int first, int depth, float* slice) {
  constexpr int pieces = edge * slice_depth / 4;  // of 16 bytes
#pragma unroll
  for (int part = 0; part < pieces / program_threads; ++part) {
    const int piece = static_cast<int>(threadIdx.x) + part * program_threads;
    if constexpr (along) {
      const int row = piece / (slice_depth / 4), k = piece % (slice_depth / 4) * 4;
      const bool inside = first_row + row < X.rows && first + k < depth;
      const float* from = X.data + (inside ? static_cast<Size>(first_row + row) * X.stride + first + k : 0);
      fetch_piece(slice + row * slice_pitch + k, from, inside ? depth - first - k : 0, X.wide);
    } else {
      const int k = piece / (edge / 4), row = piece % (edge / 4) * 4;
      const bool inside = first_row + row < X.rows && first + k < depth;
      const float* from = X.data + (inside ? static_cast<Size>(first + k) * X.stride + first_row + row : 0);
      fetch_piece(slice + k * edge + row, from, inside ? X.rows - first_row - row : 0, X.wide);
    }
  }
}

/// Four steps of the depth from k on, for a thread's rows: number · each + i where the slice is across the depth,
/// number + 8 i where it is along.
template <int each, bool along>
__device__ __forceinline__ void read_slice(const float* slice, int number, int k, float (&x)[each][4]) {
  if constexpr (along) {
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(slice + (number + 8 * i) * slice_pitch + k);
      x[i][0] = four.x, x[i][1] = four.y, x[i][2] = four.z, x[i][3] = four.w;
    }
  } else {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float* at = slice + (k + q) * 8 * each + number * each;
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

template <int each, bool A_along, bool B_along>
__device__ void multiply_tile(const Multiply& x, int tile, float* shared) {
  constexpr int edge = 8 * each;
  const int row_tiles = (x.rows + edge - 1) / edge;
  int row_tile = tile % row_tiles, column_tile = tile / row_tiles;
  if (x.symmetric) {  // the lower triangle, row after row
    row_tile = static_cast<int>((sqrtf(8.0F * static_cast<float>(tile) + 1.0F) - 1.0F) / 2.0F);
    while (row_tile * (row_tile + 1) / 2 > tile) --row_tile;
    while ((row_tile + 1) * (row_tile + 2) / 2 <= tile) ++row_tile;
    column_tile = tile - row_tile * (row_tile + 1) / 2;
  }
  const int first_row = row_tile * edge, first_column = column_tile * edge;
  const Operand A{x.A, x.A_stride, x.rows, x.A_wide}, B{x.B, x.B_stride, x.cols, x.B_wide};
  const int slices_once = (x.depth + slice_depth - 1) / slice_depth, slices = x.symmetric ? 2 * slices_once : slices_once;
  const auto fetch = [&](int s) {
    float* a = shared + s % slices_ahead * 2 * slice_floats;
    if (s < slices_once) {
      fetch_slice<edge, A_along>(A, first_row, s * slice_depth, x.depth, a);
      fetch_slice<edge, B_along>(B, first_column, s * slice_depth, x.depth, a + slice_floats);
    } else if (!A_along && !B_along && s < slices) {  // the other half of A Bᵀ + B Aᵀ
      const int first = (s - slices_once) * slice_depth;
      fetch_slice<edge, false>(B, first_row, first, x.depth, a);
      fetch_slice<edge, false>(A, first_column, first, x.depth, a + slice_floats);
    }
    __pipeline_commit();
  };
  for (int s = 0; s < slices_ahead; ++s) fetch(s);

  // What C and `high` hold at this thread's elements, which are one of each of its warp's columns.
  const int lane = static_cast<int>(threadIdx.x) % edge, line = static_cast<int>(threadIdx.x) / edge;
  constexpr int lines = program_threads / edge, turns = edge / lines;
  const int row = first_row + lane;
  float held[turns], above[turns];
#pragma unroll
  for (int p = 0; p < turns; ++p) {
    const int column = first_column + line + p * lines;
    const bool inside = row < x.rows && column < x.cols;
    held[p] = x.beta != 0 && inside ? x.C[row + static_cast<Size>(column) * x.C_stride] : 0;
    above[p] = x.sum != nullptr && inside ? x.high[row + static_cast<Size>(column) * x.high_stride] : 0;
  }

  const int group = static_cast<int>(threadIdx.x) / 64, thread = static_cast<int>(threadIdx.x) % 64;
  const int number_A = thread % 8, number_B = thread / 8;
  float sums[each][each] = {};
  for (int s = 0; s < slices; ++s) {
    __pipeline_wait_prior(slices_ahead - 1);
    __syncthreads();
    const float* a = shared + s % slices_ahead * 2 * slice_floats;
    const float* b = a + slice_floats;
#pragma unroll
    for (int step = 0; step < slice_depth / 16; ++step) {
      const int k = group * (slice_depth / 4) + step * 4;
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
    const int r = A_along ? number_A + 8 * i : number_A * each + i;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const int c = B_along ? number_B + 8 * j : number_B * each + j;
      shared[(group * edge + c) * part_pitch + r] = sums[i][j];
    }
  }
  __syncthreads();
  float* turned = shared + 4 * edge * part_pitch;  // C's tile, for what is symmetric
#pragma unroll
  for (int p = 0; p < turns; ++p) {
    const int c = line + p * lines, column = first_column + c;
    float sum = 0;
#pragma unroll
    for (int g = 0; g < 4; ++g) sum += shared[(g * edge + c) * part_pitch + lane];
    const float value = x.beta != 0 ? x.alpha * sum + x.beta * held[p] : x.alpha * sum;
    if (x.symmetric) {
      turned[c * (edge + 1) + lane] = value;
    } else if (row < x.rows && column < x.cols) {
      x.C[row + static_cast<Size>(column) * x.C_stride] = value;
      if (x.sum != nullptr) x.sum[row + static_cast<Size>(column) * x.sum_stride] = above[p] + value;
    }
  }
  if (x.symmetric) {
    // Elements below the diagonal are the truth for those above, too.
    __syncthreads();
#pragma unroll
    for (int p = 0; p < turns; ++p) {
      const int c = line + p * lines, column = first_column + c;
      if (row >= x.rows || column >= x.cols) continue;
      const float value = row >= column ? turned[c * (edge + 1) + lane] : turned[lane * (edge + 1) + c];
      x.C[row + static_cast<Size>(column) * x.C_stride] = value;
      if (x.sum != nullptr) x.sum[row + static_cast<Size>(column) * x.sum_stride] = above[p] + value;
    }
    if (row_tile != column_tile) {
#pragma unroll
      for (int p = 0; p < turns; ++p) {
        const int i = first_column + lane, j = first_row + line + p * lines;
        if (i >= x.cols || j >= x.rows) continue;
        const float value = turned[lane * (edge + 1) + line + p * lines];
        x.C[i + static_cast<Size>(j) * x.C_stride] = value;
        if (x.sum != nullptr) {
          x.sum[i + static_cast<Size>(j) * x.sum_stride] = x.high[i + static_cast<Size>(j) * x.high_stride] + value;
        }
      }
    }
  }
  __syncthreads();  // before the next tile's slices come
}

template <int each>
__device__ void multiply_tile(const Multiply& x, int tile, float* shared) {
  if (x.A_along) {
    if (x.B_along) {
      multiply_tile<each, true, true>(x, tile, shared);
    } else {
      multiply_tile<each, true, false>(x, tile, shared);
    }
  } else if (x.B_along) {
    multiply_tile<each, false, true>(x, tile, shared);
  } else {
    multiply_tile<each, false, false>(x, tile, shared);
  }
}

}  // namespace widehead::cuda
