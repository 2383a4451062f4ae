/// Element by element: the operations that read and write each value once. What they do is in elements.cuh.

#include "cuda_backend.h"
#include "kernels.h"

namespace widehead {

using cuda::device_view;
using cuda::Element;
using cuda::for_each;
using cuda::range;

namespace {

constexpr int tile = 32;      // edge of the square tiles in which a matrix is turned
constexpr int tile_rows = 8;  // of them that a block moves at once

/// Pairs of tiles at (i, j) and (j, i), the second turned in shared memory.
template <class T>
__global__ void symmetrize_kernel(cuda::DeviceView<T> A, Size n) {
  if (blockIdx.y > blockIdx.x) return;
  __shared__ T above[tile][tile + 1], below[tile][tile + 1];  // the spare column keeps banks apart
  const Size first_i = static_cast<Size>(blockIdx.y) * tile, first_j = static_cast<Size>(blockIdx.x) * tile;
  const int x = static_cast<int>(threadIdx.x);
  for (int k = static_cast<int>(threadIdx.y); k < tile; k += tile_rows) {
    if (first_i + x < n && first_j + k < n) above[k][x] = A(first_i + x, first_j + k);
    if (first_j + x < n && first_i + k < n) below[k][x] = A(first_j + x, first_i + k);
  }
  __syncthreads();
  for (int k = static_cast<int>(threadIdx.y); k < tile; k += tile_rows) {
    if (first_i + x < n && first_j + k < n) A(first_i + x, first_j + k) = (above[k][x] + below[x][k]) / 2;
    if (first_j + x < n && first_i + k < n) A(first_j + x, first_i + k) = (below[k][x] + above[x][k]) / 2;
  }
}

template <class T>
__global__ void transpose_kernel(cuda::DeviceView<const T> A, Size rows, Size cols, cuda::DeviceView<T> C) {
  __shared__ T turned[tile][tile + 1];
  const Size first_j = static_cast<Size>(blockIdx.x) * tile;
  const int x = static_cast<int>(threadIdx.x);
  for (Size first_i = static_cast<Size>(blockIdx.y) * tile; first_i < rows;
       first_i += static_cast<Size>(gridDim.y) * tile) {
    for (int k = static_cast<int>(threadIdx.y); k < tile; k += tile_rows) {
      if (first_i + x < rows && first_j + k < cols) turned[k][x] = A(first_i + x, first_j + k);
    }
    __syncthreads();
    for (int k = static_cast<int>(threadIdx.y); k < tile; k += tile_rows) {
      if (first_j + x < cols && first_i + k < rows) C(first_j + x, first_i + k) = turned[x][k];
    }
    __syncthreads();
  }
}

unsigned tiles(Size extent) { return static_cast<unsigned>((extent + tile - 1) / tile); }

/// C ← A B + β X: 32 rows of one column a block, whose threads share out the depth.
template <class T>
__global__ void multiply_in_double_kernel(cuda::DeviceView<const T> A, Size rows, Size depth,
                                          cuda::DeviceView<const double> B, double beta,
                                          cuda::DeviceView<const double> X, cuda::DeviceView<double> C) {
  __shared__ double parts[tile_rows][tile];
  const Size i = static_cast<Size>(blockIdx.x) * tile + threadIdx.x, c = blockIdx.y;
  double sum = 0;
  if (i < rows) {
    for (Size k = threadIdx.y; k < depth; k += tile_rows) sum += static_cast<double>(A(i, k)) * B(k, c);
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= rows) return;
  for (int k = 1; k < tile_rows; ++k) sum += parts[k][threadIdx.x];
  C(i, c) = beta == 0 ? sum : sum + beta * X(i, c);
}

}  // namespace

template <class T>
void CudaBackend<T>::symmetrize(MatrixView<T> A) {
  if (A.rows == 0) return;
  const dim3 grid(tiles(A.rows), tiles(A.rows));
  symmetrize_kernel<T><<<grid, dim3(tile, tile_rows), 0, stream()>>>(A, A.rows);
  cuda::check_launch("symmetrize_kernel");
}

template <class T>
void CudaBackend<T>::transpose(ConstView<T> A, MatrixView<T> C) {
  if (A.rows == 0 || A.cols == 0) return;
  const dim3 grid(tiles(A.cols), std::min(tiles(A.rows), 65535U));
  transpose_kernel<T><<<grid, dim3(tile, tile_rows), 0, stream()>>>(A, A.rows, A.cols, C);
  cuda::check_launch("transpose_kernel");
}

template <class T>
void CudaBackend<T>::add(T alpha, ConstView<T> A, T beta, ConstView<T> B, MatrixView<T> C) {
  write_down(
      {.what = Element::add, .rows = C.rows, .cols = C.cols, .A = A, .B = B, .C = C, .alpha = alpha, .beta = beta},
      {range(A), range(B)}, {range(C)});
}

template <class T>
void CudaBackend<T>::copy(ConstView<T> A, MatrixView<T> C) {
  write_down({.what = Element::copy, .rows = C.rows, .cols = C.cols, .A = A, .C = C}, {range(A)}, {range(C)});
}

template <class T>
void CudaBackend<T>::clear(MatrixView<T> A) {
  write_down({.what = Element::clear, .rows = A.rows, .cols = A.cols, .C = A}, {}, {range(A)});
}

template <class T>
void CudaBackend<T>::clear_in_double(MatrixView<double> A) {
  const auto a = device_view(A);
  for_each(stream(), A.rows, A.cols, [=] __device__(Size i, Size j) { a(i, j) = 0; });
}

template <class T>
void CudaBackend<T>::set_identity(MatrixView<T> A) {
  write_down({.what = Element::identity, .rows = A.rows, .cols = A.cols, .C = A}, {}, {range(A)});
}

template <class T>
void CudaBackend<T>::scale(T alpha, MatrixView<T> A) {
  if (alpha == T(1)) return;
  write_down({.what = Element::scale, .rows = A.rows, .cols = A.cols, .C = A, .alpha = alpha}, {range(A)}, {range(A)});
}

template <class T>
void CudaBackend<T>::add_columns(T alpha, ConstView<T> A, ConstView<T> a, T beta, ConstView<T> B, MatrixView<T> C) {
  write_down({.what = Element::add_columns,
              .rows = C.rows,
              .cols = C.cols,
              .A = A,
              .B = B,
              .C = C,
              .a = a.data,
              .alpha = alpha,
              .beta = beta},
             {range(A), range(a), range(B)}, {range(C)});
}

template <class T>
void CudaBackend<T>::scale_columns(ConstView<T> a, MatrixView<T> A) {
  write_down({.what = Element::scale_columns, .rows = A.rows, .cols = A.cols, .C = A, .a = a.data},
             {range(A), range(a)}, {range(A)});
}

template <class T>
void CudaBackend<T>::scale_rows(ConstView<T> a, MatrixView<T> A) {
  write_down({.what = Element::scale_rows, .rows = A.rows, .cols = A.cols, .C = A, .a = a.data}, {range(A), range(a)},
             {range(A)});
}

template <class T>
void CudaBackend<T>::add_to_rows(ConstView<T> b, MatrixView<T> A) {
  write_down({.what = Element::add_to_rows, .rows = A.rows, .cols = A.cols, .C = A, .a = b.data}, {range(A), range(b)},
             {range(A)});
}

template <class T>
void CudaBackend<T>::carry(ConstView<T> S, MatrixView<T> high, MatrixView<T> low) {
  write_down({.what = Element::carry, .rows = S.rows, .cols = S.cols, .A = S, .C = high, .D = low},
             {range(S), range(high), range(low)}, {range(high), range(low)});
}

template <class T>
void CudaBackend<T>::multiply_in_double(Op op_a, ConstView<T> A, ConstView<double> B, double beta, ConstView<double> X,
                                        MatrixView<double> C) {
  if (C.rows == 0 || C.cols == 0) return;
  const auto a = device_view(A);
  const auto b = device_view(B), x = device_view(X);
  const auto c = device_view(C);
  if (op_a == Op::transpose) {
    const Size outputs = C.rows;
    cuda::sum_by_warp(
        stream(), C.rows * C.cols, A.rows,
        [=] __device__(Size e, Size i) { return static_cast<double>(a(i, e % outputs)) * b(i, e / outputs); },
        [=] __device__(Size e, double sum) {
          const Size i = e % outputs, k = e / outputs;
          c(i, k) = beta == 0 ? sum : sum + beta * x(i, k);
        });
    return;
  }
  const dim3 grid(tiles(C.rows), static_cast<unsigned>(C.cols));
  multiply_in_double_kernel<T><<<grid, dim3(tile, tile_rows), 0, stream()>>>(A, C.rows, A.cols, B, beta, X, C);
  cuda::check_launch("multiply_in_double_kernel");
}

template <class T>
void CudaBackend<T>::round(ConstView<double> A, MatrixView<T> C) {
  const auto a = device_view(A);
  const auto c = device_view(C);
  for_each(stream(), C.rows, C.cols, [=] __device__(Size i, Size j) { c(i, j) = static_cast<T>(a(i, j)); });
}

#define WIDEHEAD_INSTANTIATE(T)                                                                                    \
  template void CudaBackend<T>::symmetrize(MatrixView<T>);                                                         \
  template void CudaBackend<T>::transpose(ConstView<T>, MatrixView<T>);                                            \
  template void CudaBackend<T>::add(T, ConstView<T>, T, ConstView<T>, MatrixView<T>);                              \
  template void CudaBackend<T>::copy(ConstView<T>, MatrixView<T>);                                                 \
  template void CudaBackend<T>::clear(MatrixView<T>);                                                              \
  template void CudaBackend<T>::clear_in_double(MatrixView<double>);                                               \
  template void CudaBackend<T>::set_identity(MatrixView<T>);                                                       \
  template void CudaBackend<T>::scale(T, MatrixView<T>);                                                           \
  template void CudaBackend<T>::add_columns(T, ConstView<T>, ConstView<T>, T, ConstView<T>, MatrixView<T>);        \
  template void CudaBackend<T>::scale_columns(ConstView<T>, MatrixView<T>);                                        \
  template void CudaBackend<T>::scale_rows(ConstView<T>, MatrixView<T>);                                           \
  template void CudaBackend<T>::add_to_rows(ConstView<T>, MatrixView<T>);                                          \
  template void CudaBackend<T>::carry(ConstView<T>, MatrixView<T>, MatrixView<T>);                                 \
  template void CudaBackend<T>::multiply_in_double(Op, ConstView<T>, ConstView<double>, double, ConstView<double>, \
                                                   MatrixView<double>);                                            \
  template void CudaBackend<T>::round(ConstView<double>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
