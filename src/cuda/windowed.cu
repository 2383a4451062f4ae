/// What a step of the windowed layer does in one go: a launch costs about as much as these operations themselves.

#include <algorithm>

#include "cuda_backend.h"
#include "kernels.h"

namespace widehead {

using cuda::block_size;
using cuda::device_view;
using cuda::DeviceView;
using cuda::Upload;
using cuda::warp_size;

namespace {

// ── rows at other epochs ────────────────────────────────────────────────────────────────────────

constexpr int tile_rows = warp_size;                ///< of a matrix that a block multiplies with, a lane each
constexpr int tile_columns = 8;                     ///< columns at once, all of one matrix
constexpr int tile_parts = block_size / tile_rows;  ///< warps that share a row: each sums a part of it
constexpr int tile_depth = 512;                     ///< of the columns, in shared memory at once

/// Columns of one matrix, or of none: at most tile_columns, from `first` on in the order of `columns`.
struct Bundle {
  Index matrix, first, count;
};

template <class T>
__global__ void express_kernel(DeviceView<const T> V, DeviceView<const T> matrices, const Bundle* bundles,
                               const Index* columns, const Index* rows, Size dim, DeviceView<T> Z) {
  const Bundle bundle = bundles[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x) % tile_rows, part = static_cast<int>(threadIdx.x) / tile_rows;
  const Size i = static_cast<Size>(blockIdx.y) * tile_rows + lane;
  if (bundle.matrix < 0) {
    for (int k = part; k < bundle.count; k += tile_parts) {
      const Index column = columns[bundle.first + k], row = rows[column];
      if (i < dim) Z(i, column) = row < 0 ? T(0) : V(i, row);
    }
    return;
  }
  __shared__ T v[tile_columns][tile_depth];
  __shared__ T partial[tile_parts][tile_columns][tile_rows];
  T sums[tile_columns] = {};
  for (Size first = 0; first < dim; first += tile_depth) {
    const int depth = static_cast<int>(dim - first < tile_depth ? dim - first : tile_depth);
    for (int k = 0; k < bundle.count; ++k) {
      const T* row = &V(first, rows[columns[bundle.first + k]]);
      for (int l = static_cast<int>(threadIdx.x); l < depth; l += block_size) v[k][l] = row[l];
    }
    __syncthreads();
    if (i < dim) {
      const T* M = &matrices(i, bundle.matrix * dim + first);
#pragma unroll 4
      for (int l = part; l < depth; l += tile_parts) {
        const T m = M[l * matrices.stride];
#pragma unroll
        for (int k = 0; k < tile_columns; ++k) sums[k] += m * v[k][l];  // of those beyond the count nobody asks
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < tile_columns; ++k) partial[part][k][lane] = sums[k];
  __syncthreads();
  if (i >= dim) return;
  for (int k = part; k < bundle.count; k += tile_parts) {
    T sum = 0;
#pragma unroll
    for (int p = 0; p < tile_parts; ++p) sum += partial[p][k][lane];
    Z(i, columns[bundle.first + k]) = sum;
  }
}

// ── targets ─────────────────────────────────────────────────────────────────────────────────────

/// A warp for each example's q, and one for each entry's o.
template <class T>
__global__ void observe_kernel(DeviceView<const T> H, DeviceView<const T> H_hat, DeviceView<const T> UH,
                               DeviceView<const T> Z, DeviceView<const T> sums, bool has_sums, cuda::Pattern<T> Y,
                               Size examples, Size entries, Size dim, double* q, double* o) {
  const Size warp = (static_cast<Size>(blockIdx.x) * blockDim.x + threadIdx.x) / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  if (warp >= examples + entries) return;
  double sum = 0;
  if (warp < examples) {
    for (Size i = lane; i < dim; i += warp_size) {
      sum += static_cast<double>(H(i, warp)) * static_cast<double>(H_hat(i, warp));
    }
    sum = cuda::combine_warp(sum, cuda::Plus{});
    if (lane == 0) q[warp] = sum;
    return;
  }
  const Size e = warp - examples, j = Y.examples[e], group = Y.groups[e];
  for (Size i = lane; i < dim; i += warp_size) {
    sum += static_cast<double>(Z(i, group)) * static_cast<double>(UH(i, j));
    if (has_sums) sum += static_cast<double>(sums(i, group)) * static_cast<double>(H(i, j));
  }
  sum = cuda::combine_warp(sum, cuda::Plus{});
  if (lane == 0) o[e] = sum;
}

}  // namespace

template <class T>
void CudaBackend<T>::express_columns(ConstView<T> V, std::span<const Index> rows, ConstView<T> matrices,
                                     std::span<const Index> matrix, MatrixView<T> Z) {
  const Size count = static_cast<Size>(rows.size());
  if (count == 0) return;
  by_matrix_.resize(rows.size());
  for (std::size_t k = 0; k < rows.size(); ++k) by_matrix_[k] = static_cast<Index>(k);
  const auto matrix_of = [&](Index k) {  // a row that is zero needs none
    const auto at = static_cast<std::size_t>(k);
    return rows[at] < 0 ? Backend<T>::no_column : matrix[at];
  };
  std::sort(by_matrix_.begin(), by_matrix_.end(),
            [&](Index a, Index b) { return matrix_of(a) != matrix_of(b) ? matrix_of(a) < matrix_of(b) : a < b; });
  const auto on_stream = stream();
  auto upload = staging_.begin(2 * Upload::bytes<Index>(rows.size()) + Upload::bytes<Bundle>(rows.size()));
  const auto bundles = upload.template take<Bundle>(rows.size());
  unsigned made = 0;
  for (Index first = 0; first < static_cast<Index>(count);) {
    const Index used = matrix_of(by_matrix_[static_cast<std::size_t>(first)]);
    Index last = first;
    while (last < static_cast<Index>(count) && last - first < tile_columns &&
           matrix_of(by_matrix_[static_cast<std::size_t>(last)]) == used) {
      ++last;
    }
    bundles.host[made++] = {used, first, last - first};
    first = last;
  }
  const Index* columns = upload.put(std::span<const Index>(by_matrix_));
  const Index* sources = upload.put(rows);
  upload.send(on_stream);
  const dim3 grid(made, static_cast<unsigned>((Z.rows + tile_rows - 1) / tile_rows));
  express_kernel<T><<<grid, block_size, 0, on_stream>>>(V, matrices, bundles.device, columns, sources, Z.rows, Z);
  cuda::check_launch("express_kernel");
}

template <class T>
void CudaBackend<T>::observe_targets(ConstView<T> H, ConstView<T> H_hat, ConstView<T> UH, ConstView<T> Z,
                                     ConstView<T> sums, const RowGroups<T>& Y, MatrixView<double> q,
                                     MatrixView<double> o) {
  const auto& y = pattern(Y);
  const Size warps = H.cols + Y.nonzeros();
  constexpr Size each = block_size / warp_size;
  observe_kernel<T><<<static_cast<unsigned>((warps + each - 1) / each), block_size, 0, stream()>>>(
      H, H_hat, UH, Z, sums, !sums.empty(), y, H.cols, Y.nonzeros(), H.rows, q.data, o.data);
  cuda::check_launch("observe_kernel");
}

/// One thread an element, which goes over the example's entries in their order.
template <class T>
void CudaBackend<T>::combine_targets(ConstView<T> Z, ConstView<T> sums, const RowGroups<T>& Y, ConstView<T> values,
                                     MatrixView<T> G, MatrixView<T> F) {
  const auto y = pattern(Y);
  const auto z = device_view(Z), s = device_view(sums), value = device_view(values);
  const auto g = device_view(G), f = device_view(F);
  const bool has_sums = !sums.empty();
  cuda::for_each(stream(), G.rows, G.cols, [=] __device__(Size i, Size j) {
    T from_Z = 0, from_sums = 0;
    for (Index k = y.example_starts[j]; k < y.example_starts[j + 1]; ++k) {
      const Index e = y.by_example[k], group = y.groups[e];
      from_Z += value[e] * z(i, group);
      if (has_sums) from_sums += value[e] * s(i, group);
    }
    g(i, j) = from_Z;
    if (has_sums) f(i, j) = from_sums;
  });
}

// ── elements ────────────────────────────────────────────────────────────────────────────────────

template <class T>
void CudaBackend<T>::split_gradient(ConstView<T> a, ConstView<T> Gamma_hat, T c, MatrixView<T> H_hat,
                                    MatrixView<T> grad, MatrixView<T> C) {
  const auto factor = device_view(a), gamma_hat = device_view(Gamma_hat);
  const auto h_hat = device_view(H_hat), g = device_view(grad), sum = device_view(C);
  const bool a_is_one = a.empty();
  cuda::for_each(stream(), grad.rows, grad.cols, [=] __device__(Size i, Size j) {
    const T h = a_is_one ? h_hat(i, j) : factor[j] * h_hat(i, j), gamma = gamma_hat(i, j), gradient = 2 * h + gamma;
    g(i, j) = gradient;
    sum(i, j) = h + gamma;
    h_hat(i, j) = c * gradient;
  });
}

/// The thread of the lower triangle does both elements of a pair.
template <class T>
void CudaBackend<T>::finish_stack(T eta, ConstView<T> H, ConstView<T> high, MatrixView<T> low, MatrixView<T> S,
                                  MatrixView<T> E) {
  const Size d = low.rows, stack = low.cols;
  const auto h = device_view(H), above = device_view(high);
  const auto below = device_view(low), s = device_view(S), e = device_view(E);
  cuda::for_each(stream(), d, stack + H.cols, [=] __device__(Size i, Size j) {
    if (j >= stack) {
      e(i, j - stack) = -eta * h(i, j - stack);
    } else if (j >= d) {
      s(i, j) = above(i, j) + below(i, j);
    } else if (i >= j) {
      const T mean = (below(i, j) + below(j, i)) / 2;
      below(i, j) = mean;
      below(j, i) = mean;
      s(i, j) = above(i, j) + mean;
      s(j, i) = above(j, i) + mean;
    }
  });
}

#define WIDEHEAD_INSTANTIATE(T)                                                                                       \
  template void CudaBackend<T>::express_columns(ConstView<T>, std::span<const Index>, ConstView<T>,                   \
                                                std::span<const Index>, MatrixView<T>);                               \
  template void CudaBackend<T>::observe_targets(ConstView<T>, ConstView<T>, ConstView<T>, ConstView<T>, ConstView<T>, \
                                                const RowGroups<T>&, MatrixView<double>, MatrixView<double>);         \
  template void CudaBackend<T>::combine_targets(ConstView<T>, ConstView<T>, const RowGroups<T>&, ConstView<T>,        \
                                                MatrixView<T>, MatrixView<T>);                                        \
  template void CudaBackend<T>::split_gradient(ConstView<T>, ConstView<T>, T, MatrixView<T>, MatrixView<T>,           \
                                               MatrixView<T>);                                                        \
  template void CudaBackend<T>::finish_stack(T, ConstView<T>, ConstView<T>, MatrixView<T>, MatrixView<T>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
