#pragma once
/// The operands of a product on their way to a block's shared memory, slice of the depth after slice.

#include "fetch.cuh"
#include "instructions.h"

namespace widehead::cuda {

inline constexpr int slice_depth = 64;
inline constexpr int slices_ahead = 4;
inline constexpr int slice_floats = 32 * slice_depth;  ///< of one operand
static_assert(2 * slices_ahead * slice_floats * sizeof(float) <= program_shared_bytes);

/// A block's memory for whatever it does. Not passed about: functions that are not inlined would not know that it is
/// shared.
__device__ __forceinline__ float* pool() {
  extern __shared__ float4 program_memory[];
  return reinterpret_cast<float*>(program_memory);
}

/// threadIdx.x, by which nothing is worked out ahead of the tile that needs it: the compiler would do so for all kinds
/// of tiles at once, before each, and have no registers to keep it in.
__device__ __forceinline__ int thread_number() {
  int number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return number;
}

/// The same object, of which the compiler does not know that it is: what of it was needed before is read again, and is
/// not kept in registers until then.
template <class T>
__device__ __forceinline__ const T& read_again(const T& object) {
  const T* address = &object;
  asm volatile("" : "+l"(address));
  return *address;
}

/// An address that is in no shared memory, which the compiler cannot know of those in an instruction.
template <class T>
__device__ __forceinline__ T* global(T* address) {
  __builtin_assume(__isGlobal(address));
  return address;
}

/// One operand of a product: element (row, k) of what C's rows (or columns) belong to. With `names`, they are the names
/// of the rows.
struct Operand {
  const float* data;
  int stride, rows;
  const Index* names;
};

/// Where (row, k) is in a slice, so that what a warp reads at once, eight rows of the steps 2j or 2j + 1 for j = 0 … 3,
/// is on different banks. An operand that is consecutive along the depth lies row after row, eight steps of it at a
/// place that depends on the row; one that is consecutive across it lies step after step, eight rows at a place that
/// depends on the step. What comes together from global memory, 32 bytes, stays together.
template <int edge, bool along>
__device__ __forceinline__ int place(int row, int k) {
  if constexpr (along) {
    return row * slice_depth + ((k / 8) ^ (row % 4)) * 8 + k % 8;
  } else {
    const int j = k / 2 % 4, eight = edge == 32 ? row / 8 : k % 2 * 2 + row / 8;
    return (edge == 32 ? k : k / 2) * 32 + (eight ^ j) * 8 + row % 8;
  }
}

/// What a thread fetches of one operand, slice after slice in pieces of four elements. Rows beyond the last are others
/// once more, since nobody asks for their products; steps beyond the depth are 0.
template <int edge, bool along, bool wide>
struct Fetcher {
  static constexpr int count = edge * slice_depth / 4 / program_threads;
  static constexpr int pieces_a_line = (along ? slice_depth : edge) / 4;
  static constexpr int lines = program_threads / pieces_a_line;       // from a piece to the next
  static constexpr int apart = lines * (along ? slice_depth : edge);  // likewise, in a slice
  static_assert(lines % 8 == 0 || count == 1);                        // where the same is permuted

  const float* from[count];
  int to;     // in a slice
  int left;   // of the depth, from this thread's first piece on
  int there;  // elements of a piece across the depth that are within C's rows; asked for only where not wide
  Size step;  // from a slice to the next

  __device__ __forceinline__ Fetcher(const Operand& X, int first_row, int depth) {
    const int thread = thread_number(), line = thread / pieces_a_line, first = thread % pieces_a_line * 4;
    left = depth - (along ? first : line);
    to = along ? place<edge, along>(line, first) : place<edge, along>(first, line);
    step = along ? slice_depth : static_cast<Size>(slice_depth) * X.stride;
    there = along ? 4 : X.rows - (first_row + first);
#pragma unroll
    for (int part = 0; part < count; ++part) {
      const int at = line + part * lines;
      if constexpr (along) {
        const int row = min(first_row + at, X.rows - 1);
        const Size name = X.names == nullptr ? row : X.names[row];
        from[part] = global(X.data) + (name * X.stride + first);
      } else {
        const int row = min(first_row + first, X.rows - (wide ? 4 : 1));
        from[part] = global(X.data) + (static_cast<Size>(at) * X.stride + row);
      }
    }
  }
  __device__ __forceinline__ void fetch(float* slice) {
#pragma unroll
    for (int part = 0; part < count; ++part) {
      const int rest = along ? left : left - part * lines;
      float* const target = slice + to + part * apart;
      if constexpr (wide) {
        fetch_floats<4>(target, from[part], rest > 0);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k)
          fetch_floats<1>(target + k, from[part] + k, along ? rest > k : rest > 0 && there > k);
      }
      from[part] += step;
    }
    left -= slice_depth;
  }
};

}  // namespace widehead::cuda
