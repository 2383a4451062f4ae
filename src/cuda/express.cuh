#pragma once
/// Rows at other epochs, brought to now.

#include <type_traits>

#include "multiply.cuh"

namespace widehead::cuda {

/// 32 rows of a bundle's columns. The matrix's rows and the columns go to shared memory, as deep as there is room; a
/// thread has four rows of a column and a quarter of the depth.
template <bool wide, class T>
__device__ void express_few(const Express<T>& x, const Bundle& bundle, int first_row) {
  constexpr int rows_each = express_rows, depth_each = sizeof(T) == 4 ? 480 : 224, pitch = depth_each + 8;
  constexpr int piece = 16 / static_cast<int>(sizeof(T)), pieces_a_row = rows_each / piece;
  static_assert((depth_each * rows_each + bundle_columns * (pitch + 4 * rows_each)) * sizeof(T) <=
                program_shared_bytes);
  const int thread = thread_number();
  T* M = reinterpret_cast<T*>(pool());    // depth_each x 32
  T* v = M + depth_each * rows_each;      // bundle_columns x pitch
  T* parts = v + bundle_columns * pitch;  // 4 x bundle_columns x 32
  const int quad = thread % 8 * 4, number = thread / 8 % bundle_columns, group = thread / 64;
  const auto clamp = [](int valid) { return valid < 0 ? 0 : valid > piece ? piece : valid; };
  T sums[4] = {};
  for (int first = 0; first < x.dim; first += depth_each) {
    const int depth = x.dim - first < depth_each ? x.dim - first : depth_each;
    const int r = thread % pieces_a_row * piece, valid = clamp(x.dim - first_row - r);
    const T* matrix = &x.matrices(valid > 0 ? first_row + r : 0, static_cast<Size>(bundle.matrix) * x.dim + first);
    for (int k = thread / pieces_a_row; k < depth; k += program_threads / pieces_a_row) {
      fetch_piece<wide>(M + k * rows_each + r, matrix + k * x.matrices.stride, valid);
    }
    const int warp = thread / warp_size, lane = thread % warp_size;  // a warp a column
    if (warp < bundle.count) {
      const T* row = &x.V(first, x.rows[bundle.first + warp]);
      for (int k = lane * piece; k < depth; k += warp_size * piece) {
        fetch_piece<wide>(v + warp * pitch + k, row + k, clamp(depth - k));
      }
    }
    close_batch();
    wait_for_batches<0>();
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
  const int row = thread % rows_each, out = thread / rows_each;
  if (out < bundle.count && first_row + row < x.dim) {
    T sum = 0;
#pragma unroll
    for (int g = 0; g < 4; ++g) sum += parts[(g * bundle_columns + out) * rows_each + row];
    T& z = x.Z(first_row + row, x.columns[bundle.first + out]);
    z = x.adds ? z + sum : sum;
  }
  __syncthreads();
}
static_assert(bundle_columns == program_threads / warp_size && bundle_columns == program_threads / express_rows);

/// A large bundle is multiplied as any other tile.
__device__ inline void express_many(const Express<float>& x, const Bundle& bundle, int row_tile) {
  Multiply product{};
  product.of[0] = {&x.matrices(0, static_cast<Size>(bundle.matrix) * x.dim), x.V.data,
                   static_cast<int>(x.matrices.stride), static_cast<int>(x.V.stride), x.dim};
  product.C = x.Z.data;
  product.C_stride = static_cast<int>(x.Z.stride);
  product.rows = x.dim, product.cols = bundle.count;
  product.alpha = 1, product.beta = x.adds ? 1 : 0;
  product.wide_C = x.wide;
  multiply_tile<32, false, true, true, true>(product, row_tile, x.rows + bundle.first, x.columns + bundle.first);
}

template <class T>
__device__ void express_tile(const Express<T>& x, int tile) {
  const int row_tiles = (x.dim + express_rows - 1) / express_rows, row_tile = tile % row_tiles;
  const Bundle bundle = x.bundles[tile / row_tiles];
  if (bundle.matrix < 0) {
    const int i = row_tile * express_rows + static_cast<int>(threadIdx.x) % express_rows,
              out = static_cast<int>(threadIdx.x) / express_rows;
    if (out >= bundle.count || i >= x.dim) return;
    const Index row = x.rows[bundle.first + out];
    const T v = row < 0 ? T(0) : x.V(i, row);
    T& z = x.Z(i, x.columns[bundle.first + out]);
    z = x.adds ? z + v : v;
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (bundle.count > bundle_columns) return express_many(x, bundle, row_tile);
  }
  if (x.wide) {
    express_few<true>(x, bundle, row_tile * express_rows);
  } else {
    express_few<false>(x, bundle, row_tile * express_rows);
  }
}

}  // namespace widehead::cuda
