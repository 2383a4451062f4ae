/// A block makes a tile of C, 32 x 32. Its threads form groups of 128; each group takes every groups-th slice of the
/// depth, and the groups' sums are added up at the end in a fixed order. Within a group a thread has 4 x 2 elements.
/// Slices of op(A) and op(B) lie in shared memory with the depth running fastest, padded to 36: a thread reads four
/// steps of the depth at once (16 bytes), and neither the eight rows nor the sixteen columns of a warp share a bank.
/// While one slice is multiplied, the next is on its way (cp.async).

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <cstdint>

#include "check.h"
#include "small_gemm.h"

namespace widehead::cuda {
namespace {

constexpr int tile = 32;         // rows and columns of C, and the depth of a slice
constexpr int pitch = tile + 4;  // of a slice's rows in shared memory
constexpr int group_threads = 128;
constexpr int slice_floats = tile * pitch;
constexpr int group_floats = 4 * slice_floats;  // two slices of A and two of B
constexpr int thread_rows = 4, thread_columns = 2;

/// op(X) as a matrix whose row r is what belongs to row r of C (or column, for B), along the depth.
struct Operand {
  const float* data;
  Size stride;  ///< of the matrix in memory
  Size rows;
  bool depth_is_fast;  ///< consecutive along the depth; else along the rows
  bool aligned;        ///< 16 bytes at a time are possible along the depth
};

/// A slice of 32 rows and 32 steps of the depth goes to shared memory; 0 beyond the ends.
__device__ void fetch(const Operand& X, Size first_row, Size first, Size depth, int thread, float* slice) {
  if (X.depth_is_fast && X.aligned) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int row = thread / 8 + 16 * part, k = thread % 8 * 4;
      const Size left = first_row + row < X.rows ? depth - first - k : 0;
      const std::size_t missing = left >= 4 ? 0 : left <= 0 ? 16 : 16 - 4 * static_cast<std::size_t>(left);
      const float* from = missing == 16 ? X.data : X.data + (first_row + row) * X.stride + first + k;
      __pipeline_memcpy_async(slice + row * pitch + k, from, 16, missing);
    }
    return;
  }
#pragma unroll
  for (int part = 0; part < 8; ++part) {
    const int fast = thread % tile, slow = thread / tile + 4 * part;
    const int row = X.depth_is_fast ? slow : fast, k = X.depth_is_fast ? fast : slow;
    const bool inside = first_row + row < X.rows && first + k < depth;
    const Size at =
        X.depth_is_fast ? (first_row + row) * X.stride + first + k : first_row + row + (first + k) * X.stride;
    __pipeline_memcpy_async(slice + row * pitch + k, inside ? X.data + at : X.data, 4, inside ? 0 : 4);
  }
}

template <int groups>
__global__ void __launch_bounds__(groups* group_threads)
    small_gemm_kernel(Operand A, Operand B, Size depth, float alpha, float beta, float* C, Size C_stride) {
  extern __shared__ float shared[];
  const int group = static_cast<int>(threadIdx.x) / group_threads,
            thread = static_cast<int>(threadIdx.x) % group_threads;
  float* room = shared + group * group_floats;
  const auto slice_of_A = [&](int turn) { return room + turn % 2 * slice_floats; };
  const auto slice_of_B = [&](int turn) { return room + (2 + turn % 2) * slice_floats; };
  const Size first_row = static_cast<Size>(blockIdx.x) * tile, first_column = static_cast<Size>(blockIdx.y) * tile;
  const int slices = static_cast<int>((depth + tile - 1) / tile), turns = (slices + groups - 1) / groups;
  const auto fetch_turn = [&](int turn) {
    const Size first = static_cast<Size>(turn * groups + group) * tile;
    if (first < depth) {
      fetch(A, first_row, first, depth, thread, slice_of_A(turn));
      fetch(B, first_column, first, depth, thread, slice_of_B(turn));
    }
    __pipeline_commit();
  };

  const int row = thread % 8, column = thread / 8;  // of the thread's elements, the first of each
  float sums[thread_rows][thread_columns] = {};
  fetch_turn(0);
  for (int turn = 0; turn < turns; ++turn) {
    if (turn + 1 < turns) fetch_turn(turn + 1);
    __pipeline_wait_prior(turn + 1 < turns ? 1 : 0);
    __syncthreads();
    if (turn * groups + group < slices) {
      const float *a = slice_of_A(turn), *b = slice_of_B(turn);
#pragma unroll 2
      for (int k = 0; k < tile; k += 4) {
        float4 from_A[thread_rows], from_B[thread_columns];
#pragma unroll
        for (int i = 0; i < thread_rows; ++i) {
          from_A[i] = *reinterpret_cast<const float4*>(a + (row + 8 * i) * pitch + k);
        }
#pragma unroll
        for (int j = 0; j < thread_columns; ++j) {
          from_B[j] = *reinterpret_cast<const float4*>(b + (column + 16 * j) * pitch + k);
        }
#pragma unroll
        for (int i = 0; i < thread_rows; ++i) {
#pragma unroll
          for (int j = 0; j < thread_columns; ++j) {
            sums[i][j] += from_A[i].x * from_B[j].x;
            sums[i][j] += from_A[i].y * from_B[j].y;
            sums[i][j] += from_A[i].z * from_B[j].z;
            sums[i][j] += from_A[i].w * from_B[j].w;
          }
        }
      }
    }
    __syncthreads();  // the slices are free for the turn after the next
  }

  // The other groups leave their sums in shared memory, whose slices nobody needs any more.
  if (group > 0) {
#pragma unroll
    for (int i = 0; i < thread_rows; ++i) {
#pragma unroll
      for (int j = 0; j < thread_columns; ++j) {
        room[(i * thread_columns + j) * group_threads + thread] = sums[i][j];
      }
    }
  }
  if (groups > 1) __syncthreads();
  if (group > 0) return;
#pragma unroll
  for (int i = 0; i < thread_rows; ++i) {
#pragma unroll
    for (int j = 0; j < thread_columns; ++j) {
      float sum = sums[i][j];
#pragma unroll
      for (int other = 1; other < groups; ++other) {
        sum += shared[other * group_floats + (i * thread_columns + j) * group_threads + thread];
      }
      const Size r = first_row + row + 8 * i, c = first_column + column + 16 * j;
      if (r >= A.rows || c >= B.rows) continue;
      float& element = C[r + c * C_stride];
      element = beta == 0 ? alpha * sum : alpha * sum + beta * element;
    }
  }
}

Operand operand(MatrixView<const float> X, Size rows, bool depth_is_fast) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(X.data) % 16 == 0 && X.stride % 4 == 0;
  return {X.data, X.stride, rows, depth_is_fast, aligned};
}

template <int groups>
constexpr int shared_bytes = groups* group_floats* static_cast<int>(sizeof(float));

template <int groups>
void allow_shared_memory() {
  check(cudaFuncSetAttribute(small_gemm_kernel<groups>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             shared_bytes<groups>),
        "cudaFuncSetAttribute");
}

template <int groups>
void launch(cudaStream_t stream, const Operand& A, const Operand& B, Size depth, float alpha, float beta,
            MatrixView<float> C) {
  const dim3 grid(static_cast<unsigned>((C.rows + tile - 1) / tile), static_cast<unsigned>((C.cols + tile - 1) / tile));
  small_gemm_kernel<groups>
      <<<grid, groups * group_threads, shared_bytes<groups>, stream>>>(A, B, depth, alpha, beta, C.data, C.stride);
  check_launch("small_gemm_kernel");
}

}  // namespace

void prepare_small_gemm() {
  allow_shared_memory<1>();
  allow_shared_memory<2>();
  allow_shared_memory<4>();
}

/// Up to a few waves of tiles, and no deeper than what a block gets through while the device would do it all at once.
bool is_small(Size rows, Size cols, Size depth) {
  const Size tiles = ((rows + tile - 1) / tile) * ((cols + tile - 1) / tile);
  return tiles <= 600 && depth <= 1024 && cols <= 65535 * tile;
}

void small_gemm(cudaStream_t stream, Op op_a, Op op_b, float alpha, MatrixView<const float> A,
                MatrixView<const float> B, float beta, MatrixView<float> C) {
  const Size depth = op_a == Op::none ? A.cols : A.rows;
  const auto a = operand(A, C.rows, op_a == Op::transpose), b = operand(B, C.cols, op_b == Op::none);
  const Size tiles = ((C.rows + tile - 1) / tile) * ((C.cols + tile - 1) / tile);
  // Few tiles: more threads each. A multiprocessor has room for sixteen groups.
  if (tiles <= 264 && depth > 4 * tile) {
    launch<4>(stream, a, b, depth, alpha, beta, C);
  } else if (depth > tile) {
    launch<2>(stream, a, b, depth, alpha, beta, C);
  } else {
    launch<1>(stream, a, b, depth, alpha, beta, C);
  }
}

}  // namespace widehead::cuda
