#pragma once
/// What kernels are made of: elements shared out among threads, and sums and maxima in a fixed order, so that every
/// result repeats bit for bit. No atomic operations anywhere.

#include <algorithm>

#include "check.h"
#include "device_view.h"

namespace widehead::cuda {

inline constexpr int block_size = 256;
/// Blocks that fill the device; more elements than threads are taken in turns.
inline constexpr Size most_blocks = 2048;

/// Blocks for so many pieces of work, `each` in a block.
inline unsigned blocks_for(Size pieces, Size each, Size most = most_blocks) {
  return static_cast<unsigned>(std::clamp<Size>((pieces + each - 1) / each, 1, most));
}

/// This thread's elements (i, j) of a rows x cols matrix, in the order of memory, a launch of threads apart. rows > 0.
/// One division at the start; then steps.
struct Walk {
  Size i, j;

  __device__ Walk(Size rows, Size cols) : rows_(rows), cols_(cols) {
    divide(static_cast<Size>(blockIdx.x) * blockDim.x + threadIdx.x, i, j);
    divide(static_cast<Size>(gridDim.x) * blockDim.x, step_i_, step_j_);
  }
  __device__ bool more() const { return j < cols_; }
  __device__ void next() {
    i += step_i_;
    j += step_j_;
    if (i >= rows_) {
      i -= rows_;
      ++j;
    }
  }

 private:
  /// Threads are fewer than 2³¹, so that 32 bits are enough wherever there is something to divide.
  __device__ void divide(Size thread, Size& row, Size& column) const {
    column = thread < rows_ ? 0 : static_cast<unsigned>(thread) / static_cast<unsigned>(rows_);
    row = thread - column * rows_;
  }

  Size rows_, cols_, step_i_, step_j_;
};

template <class F>
__global__ void for_each_kernel(Size rows, Size cols, F f) {
  for (Walk at(rows, cols); at.more(); at.next()) f(at.i, at.j);
}
/// f(i, j) for every element of a rows x cols matrix.
template <class F>
void for_each(cudaStream_t stream, Size rows, Size cols, const F& f) {
  if (rows <= 0 || cols <= 0) return;
  for_each_kernel<<<blocks_for(rows * cols, block_size), block_size, 0, stream>>>(rows, cols, f);
  check_launch("for_each_kernel");
}

// ── reductions ──────────────────────────────────────────────────────────────────────────────────

struct Plus {
  template <class V>
  __device__ V operator()(V a, V b) const {
    return a + b;
  }
};
struct Larger {  // passes a NaN by
  template <class V>
  __device__ V operator()(V a, V b) const {
    return b > a ? b : a;
  }
};
struct Smaller {
  template <class V>
  __device__ V operator()(V a, V b) const {
    return b < a ? b : a;
  }
};

/// Over the lanes of a warp; the result is lane 0's.
template <class V, class Combine>
__device__ V combine_warp(V value, Combine combine) {
  for (int apart = warp_size / 2; apart > 0; apart /= 2) {
    value = combine(value, __shfl_down_sync(0xffffffffU, value, static_cast<unsigned>(apart)));
  }
  return value;
}

/// Over the threads of a block (block_size of them, all of which must call); the result is everyone's.
template <class V, class Combine>
__device__ V combine_block(V value, Combine combine) {
  constexpr int warps = block_size / warp_size;
  __shared__ V of_warp[warps];
  const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
  value = combine_warp(value, combine);
  __syncthreads();  // what the call before left there has been read
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  value = of_warp[0];
  for (int w = 1; w < warps; ++w) value = combine(value, of_warp[w]);
  return value;
}

template <class V, class Map, class Combine>
__global__ void reduce_kernel(Size rows, Size cols, Map map, Combine combine, V none, V* out) {
  V value = none;
  for (Walk at(rows, cols); at.more(); at.next()) value = combine(value, map(at.i, at.j));
  value = combine_block(value, combine);
  if (threadIdx.x == 0) out[blockIdx.x] = value;
}
template <class V>
struct ElementOf {
  const V* values;
  __device__ V operator()(Size i, Size) const { return values[i]; }
};
inline constexpr Size reduce_blocks = 1024;
/// map(i, j) of all elements, combined; `none` where there are none. Returns where the result will be, in `room`, which
/// is for reduce_blocks + 1 values.
template <class V, class Map, class Combine>
const V* reduce(cudaStream_t stream, Size rows, Size cols, const Map& map, const Combine& combine, V none, V* room) {
  // At least eight elements a thread, which saves blocks for the second kernel.
  const bool any = rows > 0 && cols > 0;
  const unsigned blocks = any ? blocks_for(rows * cols, 8 * block_size, reduce_blocks) : 0;
  if (any) {
    reduce_kernel<<<blocks, block_size, 0, stream>>>(rows, cols, map, combine, none, room);
    check_launch("reduce_kernel");
    if (blocks == 1) return room;
  }
  V* result = room + reduce_blocks;
  reduce_kernel<<<1, block_size, 0, stream>>>(std::max<Size>(blocks, 1), any ? 1 : 0, ElementOf<V>{room}, combine, none,
                                              result);
  check_launch("reduce_kernel");
  return result;
}

// ── along rows: many columns, of which each thread takes a part ─────────────────────────────────

inline constexpr int stripe_columns = block_size / warp_size;  ///< of the matrix that a block reads at once

template <class V, class Map, class Combine, class Finish>
__global__ void reduce_rows_kernel(Size rows, Size cols, Map map, Combine combine, V none, Finish finish, V* partial) {
  __shared__ V of_column[stripe_columns][warp_size];
  const Size i = static_cast<Size>(blockIdx.x) * warp_size + threadIdx.x;
  const Size slice = blockIdx.y, slices = gridDim.y;
  const Size last = cols * (slice + 1) / slices;
  V value = none;
  if (i < rows) {
    for (Size j = cols * slice / slices + threadIdx.y; j < last; j += stripe_columns) value = combine(value, map(i, j));
  }
  of_column[threadIdx.y][threadIdx.x] = value;
  __syncthreads();
  if (threadIdx.y != 0 || i >= rows) return;
  for (int k = 1; k < stripe_columns; ++k) value = combine(value, of_column[k][threadIdx.x]);
  if (slices == 1) {
    finish(i, value);
  } else {
    partial[slice * rows + i] = value;
  }
}
template <class V, class Combine, class Finish>
__global__ void finish_rows_kernel(Size rows, Size slices, const V* partial, Combine combine, Finish finish) {
  const Size i = static_cast<Size>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows) return;
  V value = partial[i];
  for (Size slice = 1; slice < slices; ++slice) value = combine(value, partial[slice * rows + i]);
  finish(i, value);
}
inline constexpr Size most_slices = 128;
inline Size row_slices(Size cols) { return std::clamp<Size>(cols / 256, 1, most_slices); }
/// finish(i, value) for every row, its value being map(i, j) of all columns combined. `room` is for
/// rows · row_slices(cols) values.
template <class V, class Map, class Combine, class Finish>
void reduce_rows(cudaStream_t stream, Size rows, Size cols, const Map& map, const Combine& combine, V none,
                 const Finish& finish, V* room) {
  if (rows <= 0) return;
  const Size slices = row_slices(cols);
  const dim3 grid(static_cast<unsigned>((rows + warp_size - 1) / warp_size), static_cast<unsigned>(slices));
  reduce_rows_kernel<<<grid, dim3(warp_size, stripe_columns), 0, stream>>>(rows, cols, map, combine, none, finish,
                                                                           room);
  check_launch("reduce_rows_kernel");
  if (slices == 1) return;
  finish_rows_kernel<<<static_cast<unsigned>((rows + block_size - 1) / block_size), block_size, 0, stream>>>(
      rows, slices, room, combine, finish);
  check_launch("finish_rows_kernel");
}

// ── many short sums, a warp each ────────────────────────────────────────────────────────────────

template <class Term, class Finish>
__global__ void sum_by_warp_kernel(Size count, Size length, Term term, Finish finish) {
  const Size warps = static_cast<Size>(gridDim.x) * (block_size / warp_size);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  for (Size e = (static_cast<Size>(blockIdx.x) * block_size + threadIdx.x) / warp_size; e < count; e += warps) {
    double sum = 0;
    for (Size i = lane; i < length; i += warp_size) sum += term(e, i);
    sum = combine_warp(sum, Plus{});
    if (lane == 0) finish(e, sum);
  }
}
/// finish(e, Σᵢ term(e, i)) for each of `count` sums of `length` terms, in double.
template <class Term, class Finish>
void sum_by_warp(cudaStream_t stream, Size count, Size length, const Term& term, const Finish& finish) {
  if (count <= 0) return;
  sum_by_warp_kernel<<<blocks_for(count, block_size / warp_size), block_size, 0, stream>>>(count, length, term, finish);
  check_launch("sum_by_warp_kernel");
}

}  // namespace widehead::cuda
