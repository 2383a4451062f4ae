/// Two-level softmax: all parts at once. Logits and the way back are a block for each tile of rows, so that W is read
/// twice and written once; what is by column is a block for each pair.

#include <limits>

#include "cuda_backend.h"
#include "kernels.h"

namespace widehead {

using cuda::DeviceView;
using cuda::Lists;
using cuda::Parts;
using cuda::Tile;
using cuda::tile_rows;
using cuda::warp_size;

namespace {

constexpr int tile_threads = 128;
constexpr int warp_rows = 4;  // of a tile: the rows that a warp has at once
constexpr int chunk = 8;      // pairs at once, or a lesser power of two for what is left
static_assert(tile_threads / warp_size * warp_rows == tile_rows && tile_threads == tile_rows * chunk);

/// Calls work(width of the chunk as a type, first pair) for all pairs of a part.
template <int width>
struct Width {
  static constexpr int value = width;
};
template <class Work>
__device__ void for_each_chunk(Size pairs, const Work& work) {
  Size first = 0;
  for (; first + chunk <= pairs; first += chunk) work(Width<chunk>{}, first);
  if (((pairs - first) & 4) != 0) {
    work(Width<4>{}, first);
    first += 4;
  }
  if (((pairs - first) & 2) != 0) {
    work(Width<2>{}, first);
    first += 2;
  }
  if (((pairs - first) & 1) != 0) work(Width<1>{}, first);
}

/// Adds up each of the first `count` values, a power of two, over the lanes of a warp. Lane l has the sum of value
/// l / (warp_size / count): at each step a lane hands over half of what it has, and keeps the sums of the rest.
template <int count, int apart = warp_size / 2, int size, class T>
__device__ T add_up_across(T (&values)[size]) {
  if constexpr (apart == 0) {
    return values[0];
  } else if constexpr (count == 1) {
    values[0] += __shfl_xor_sync(0xffffffffU, values[0], apart);
    return add_up_across<1, apart / 2>(values);
  } else {
    constexpr int half = count / 2;
    const bool upper = (threadIdx.x & apart) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const T kept = upper ? values[i + half] : values[i], given = upper ? values[i] : values[i + half];
      values[i] = kept + __shfl_xor_sync(0xffffffffU, given, apart);
    }
    return add_up_across<half, apart / 2>(values);
  }
}

/// out (rows x width, a column `out_stride` behind the other) ← wᵀh for the rows of a warp.
template <int width, class T>
__device__ void multiply_rows(const T* const (&w)[warp_rows], int rows, const T* h, Size h_stride, Size dim, T* out,
                              Size out_stride) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  T sums[warp_rows * width] = {};
#pragma unroll(width < 4 ? 4 : 2)
  for (Size k = lane; k < dim; k += warp_size) {
    T x[warp_rows];
#pragma unroll
    for (int r = 0; r < warp_rows; ++r) x[r] = w[r][k];
#pragma unroll
    for (int p = 0; p < width; ++p) {
      const T y = h[k + p * h_stride];
#pragma unroll
      for (int r = 0; r < warp_rows; ++r) sums[r * width + p] += x[r] * y;
    }
  }
  const T sum = add_up_across<warp_rows * width>(sums);
  constexpr int lanes = warp_size / (warp_rows * width);
  const int r = lane / lanes / width, p = lane / lanes % width;
  if (lane % lanes == 0 && r < rows) out[r + p * out_stride] = sum;
}

/// O ← W_c H, a block for each tile. The last part comes first: of A, it has the most pairs.
template <class T>
__global__ void __launch_bounds__(tile_threads)
    part_logits_kernel(Parts<T> parts, Size last_tile, DeviceView<const T> W, DeviceView<const T> H, Size dim, T* E) {
  const Tile tile = parts.tiles[last_tile - 1 - blockIdx.x];
  const cuda::Part part = parts.parts[tile.part];
  const Size end = tile.first + tile.rows;
  for (Size first = tile.first + threadIdx.x / warp_size * warp_rows; first < end; first += tile_rows) {
    const int rows = static_cast<int>(end - first < warp_rows ? end - first : warp_rows);
    const T* w[warp_rows];
#pragma unroll
    for (int r = 0; r < warp_rows; ++r) w[r] = &W(0, part.first_row + first + (r < rows ? r : 0));
    for_each_chunk(part.pairs, [&](auto width, Size p) {
      multiply_rows<decltype(width)::value>(w, rows, &H(0, part.first_pair + p), H.stride, dim,
                                            E + part.offset + first + p * part.rows, part.rows);
    });
  }
}

/// Of an entry e of the part that belongs to this pair: visit(e, entry).
template <class T, class Visit>
__device__ void for_each_entry(const Parts<T>& parts, const cuda::Part& part, Size pair, const Visit& visit) {
  for (Size e = part.first_entry + threadIdx.x; e < part.first_entry + part.entries; e += cuda::block_size) {
    const auto entry = parts.entries[e];
    if (entry.pair == pair) visit(e, entry);
  }
}

template <class T>
struct Statistics {
  DeviceView<double> o;
  DeviceView<T> maxima;
  DeviceView<double> sums, log_Z;
};

/// A block for each pair, twice over its logits.
template <class T>
__global__ void part_softmax_kernel(Parts<T> parts, Size first_pair, T* E, Statistics<T> out, T lowest) {
  const Size pair = first_pair + blockIdx.x;
  const cuda::Part part = parts.parts[parts.pairs[pair].part];
  T* o = E + part.offset + (pair - part.first_pair) * part.rows;
  for_each_entry(parts, part, pair, [&](Size e, const auto& entry) { out.o[e] = static_cast<double>(o[entry.row]); });
  T maximum = lowest;
#pragma unroll 4
  for (Size i = threadIdx.x; i < part.rows; i += cuda::block_size) maximum = cuda::Larger{}(maximum, o[i]);
  maximum = cuda::combine_block(maximum, cuda::Larger{});  // from here on all entries have been read
  double sum = 0;
#pragma unroll 4
  for (Size i = threadIdx.x; i < part.rows; i += cuda::block_size) {
    const T power = exp(o[i] - maximum);
    o[i] = power;
    sum += static_cast<double>(power);
  }
  sum = cuda::combine_block(sum, cuda::Plus{});
  if (threadIdx.x != 0) return;
  out.maxima[pair] = maximum;
  out.sums[pair] = sum;
  out.log_Z[pair] = static_cast<double>(maximum) + log(sum);
}

/// R = p s − Y in the place of the exponentials, a block for each pair.
template <class T>
__global__ void part_residual_kernel(Parts<T> parts, Size first_pair, T* E, DeviceView<const double> sums) {
  const Size pair = first_pair + blockIdx.x;
  const cuda::Part part = parts.parts[parts.pairs[pair].part];
  T* r = E + part.offset + (pair - part.first_pair) * part.rows;
  const T factor = static_cast<T>(parts.pairs[pair].mass / sums[pair]);
#pragma unroll 4
  for (Size i = threadIdx.x; i < part.rows; i += cuda::block_size) r[i] *= factor;
  __syncthreads();
  for_each_entry(parts, part, pair, [&](Size, const auto& entry) { r[entry.row] -= entry.value; });
}

/// R of a tile's rows and a chunk of pairs.
template <class T>
struct ResidualTile {
  alignas(16) T at[tile_rows][chunk];
};

/// One coordinate of a tile's rows: u ← u + R h, and g ← Rᵀw, added to what is there if `add`.
template <int width, class T>
__device__ void pass_back(const ResidualTile<T>& R, const T (&w)[tile_rows], T (&u)[tile_rows], const T* h,
                          Size h_stride, T* g, Size g_stride, bool add) {
  T x[width], sums[width] = {};
#pragma unroll
  for (int p = 0; p < width; ++p) x[p] = h[p * h_stride];
#pragma unroll
  for (int r = 0; r < tile_rows; ++r) {
#pragma unroll
    for (int p = 0; p < width; ++p) {
      const T y = R.at[r][p];
      sums[p] += w[r] * y;
      u[r] += x[p] * y;
    }
  }
  if (g == nullptr) return;
#pragma unroll
  for (int p = 0; p < width; ++p) g[p * g_stride] = add ? g[p * g_stride] + sums[p] : sums[p];
}

/// W_c ← W_c − η R Hᵀ, and this tile's part of W_cᵀ R, each coordinate by a thread of its own. A tile of W is read and
/// written once, whatever the number of pairs.
template <class T>
__global__ void __launch_bounds__(tile_threads)
    part_backward_kernel(Parts<T> parts, Size last_tile, const T* E, DeviceView<const T> H, Size dim, T eta,
                         DeviceView<T> W, T* partial, Size first_partial) {
  __shared__ ResidualTile<T> R;
  const Tile tile = parts.tiles[last_tile - 1 - blockIdx.x];
  const cuda::Part part = parts.parts[tile.part];
  const Size k = static_cast<Size>(blockIdx.y) * tile_threads + threadIdx.x, end = tile.first + tile.rows;
  const bool has_coordinate = k < dim;
  const int own_row = static_cast<int>(threadIdx.x) % tile_rows, own_pair = static_cast<int>(threadIdx.x) / tile_rows;
  for (Size first = tile.first; first < end; first += tile_rows) {
    const int rows = static_cast<int>(end - first < tile_rows ? end - first : tile_rows);
    T w[tile_rows], u[tile_rows];
#pragma unroll
    for (int r = 0; r < tile_rows; ++r) {
      w[r] = has_coordinate && r < rows ? W(k, part.first_row + first + r) : T(0);
      u[r] = T(0);
    }
    for_each_chunk(part.pairs, [&](auto width, Size p) {
      __syncthreads();  // the chunk before has been used
      if (own_pair < decltype(width)::value) {
        R.at[own_row][own_pair] = own_row < rows ? E[part.offset + first + own_row + (p + own_pair) * part.rows] : T(0);
      }
      __syncthreads();
      if (!has_coordinate) return;
      T* g = partial;
      if (g != nullptr) g += (part.first_partial - first_partial + tile.number * part.pairs + p) * dim + k;
      pass_back<decltype(width)::value>(R, w, u, &H(k, part.first_pair + p), H.stride, g, dim, first > tile.first);
    });
    if (!has_coordinate || eta == T(0)) continue;
#pragma unroll
    for (int r = 0; r < tile_rows; ++r) {
      if (r < rows) W(k, part.first_row + first + r) = w[r] - eta * u[r];
    }
  }
}

/// G ← what the tiles add to it, in their order.
template <class T>
__global__ void add_up_tiles_kernel(Parts<T> parts, Size first_pair, Size dim, const T* partial, Size first_partial,
                                    DeviceView<T> G) {
  const Size pair = first_pair + blockIdx.x, k = static_cast<Size>(blockIdx.y) * tile_threads + threadIdx.x;
  if (k >= dim) return;
  const cuda::Part part = parts.parts[parts.pairs[pair].part];
  const T* of_tile = partial + (part.first_partial - first_partial + pair - part.first_pair) * dim + k;
  T sum = 0;
#pragma unroll 8
  for (Size t = 0; t < part.tiles; ++t) sum += of_tile[t * part.pairs * dim];
  G(k, pair) = sum;
}

/// One block, in a fixed order.
template <class T>
__global__ void part_loss_kernel(Parts<T> parts, Size pairs, Size entries, DeviceView<double> log_Z,
                                 DeviceView<double> o, double* total) {
  double sum = 0;
  for (Size p = threadIdx.x; p < pairs; p += cuda::block_size) sum += parts.pairs[p].mass * log_Z[p];
  for (Size e = threadIdx.x; e < entries; e += cuda::block_size) {
    sum -= static_cast<double>(parts.entries[e].value) * o[e];
  }
  sum = cuda::combine_block(sum, cuda::Plus{});
  if (threadIdx.x == 0) *total += sum;
}

/// A block for each column.
template <class T>
__global__ void log_softmax_kernel(DeviceView<T> A, Size rows, DeviceView<const T> b, T lowest) {
  const Size j = blockIdx.x;
  T maximum = lowest;
  for (Size i = threadIdx.x; i < rows; i += cuda::block_size) maximum = cuda::Larger{}(maximum, A(i, j));
  maximum = cuda::combine_block(maximum, cuda::Larger{});
  double sum = 0;
  for (Size i = threadIdx.x; i < rows; i += cuda::block_size) sum += static_cast<double>(exp(A(i, j) - maximum));
  sum = cuda::combine_block(sum, cuda::Plus{});
  const T log_Z = static_cast<T>(static_cast<double>(maximum) + log(sum)), added = b.data == nullptr ? T(0) : b(0, j);
  for (Size i = threadIdx.x; i < rows; i += cuda::block_size) A(i, j) = (A(i, j) - log_Z) + added;
}

/// The tiles and pairs of a range of parts: how many, and where they begin or end.
template <class T>
struct Extent {
  Size tiles, last_tile, pairs, first_pair, partials, first_partial;

  Extent(const cuda::PartsCopy<T>& copy, const SoftmaxParts<T>& parts, PartRange range) {
    const auto first = static_cast<std::size_t>(range.first),
               last = static_cast<std::size_t>(range.first + range.count);
    const auto pair_at = [&](std::size_t p) {
      return p < parts.parts().size() ? parts.parts()[p].first_pair : parts.pair_count();
    };
    last_tile = copy.tile_starts[last];
    tiles = last_tile - copy.tile_starts[first];
    first_pair = pair_at(first);
    pairs = pair_at(last) - first_pair;
    first_partial = copy.partial_starts[first];
    partials = copy.partial_starts[last] - first_partial;
  }
};

unsigned blocks_of(Size count) { return static_cast<unsigned>(count); }
unsigned coordinate_blocks(Size dim) { return static_cast<unsigned>((dim + tile_threads - 1) / tile_threads); }

}  // namespace

template <class T>
const cuda::PartsCopy<T>& CudaBackend<T>::mirror(const SoftmaxParts<T>& parts) {
  auto& kept = parts.device_copy();
  auto* copy = dynamic_cast<cuda::PartsCopy<T>*>(kept.get());
  if (copy == nullptr || copy->context != context_) {
    kept = std::make_unique<cuda::PartsCopy<T>>(context_);
    copy = static_cast<cuda::PartsCopy<T>*>(kept.get());
  } else if (copy->version == parts.version() && copy->program + 1 >= program().number()) {
    return *copy;
  }
  // A tile is a multiple of tile_rows.
  const auto rows_in_tile = [](Size rows) {
    const Size turns = (rows + tile_rows * cuda::most_tiles - 1) / (tile_rows * cuda::most_tiles);
    return turns * tile_rows;
  };
  copy->tile_starts.assign(1, 0);
  copy->partial_starts.assign(1, 0);
  for (const auto& part : parts.parts()) {
    const Size in_tile = rows_in_tile(part.rows), tiles = (part.rows + in_tile - 1) / in_tile;
    copy->tile_starts.push_back(copy->tile_starts.back() + tiles);
    copy->partial_starts.push_back(copy->partial_starts.back() + tiles * part.pairs);
  }
  using Pair = typename SoftmaxParts<T>::Pair;
  using Entry = typename SoftmaxParts<T>::Entry;
  const auto count = parts.parts().size(), tiles = static_cast<std::size_t>(copy->tile_starts.back());
  const std::size_t bytes = Lists::bytes<cuda::Part>(count) + Lists::bytes<Tile>(tiles) +
                            Lists::bytes<Pair>(parts.pairs().size()) + Lists::bytes<Entry>(parts.entries().size());
  auto lists = program().lists(bytes);
  const auto part_list = lists.template take<cuda::Part>(count);
  const auto tile_list = lists.template take<Tile>(tiles);
  for (std::size_t p = 0; p < count; ++p) {
    const auto& part = parts.parts()[p];
    const Size first_tile = copy->tile_starts[p], last_tile = copy->tile_starts[p + 1];
    part_list.host[p] = {part.first_row,         part.rows,    part.first_pair, part.pairs,
                         part.first_entry,       part.entries, part.offset,     last_tile - first_tile,
                         copy->partial_starts[p]};
    const Size in_tile = rows_in_tile(part.rows);
    for (Size t = 0; t < last_tile - first_tile; ++t) {
      tile_list.host[first_tile + t] = {static_cast<Index>(p), static_cast<Index>(t), t * in_tile,
                                        std::min(in_tile, part.rows - t * in_tile)};
    }
  }
  copy->parts = {part_list.device, tile_list.device, lists.put(parts.pairs()), lists.put(parts.entries())};
  copy->version = parts.version();
  copy->program = program().number();
  return *copy;
}

template <class T>
void CudaBackend<T>::part_logits(const SoftmaxParts<T>& parts, PartRange range, ConstView<T> W, ConstView<T> H,
                                 MatrixView<T> E) {
  const auto& copy = mirror(parts);
  const Extent<T> extent(copy, parts, range);
  if (extent.tiles == 0) return;
  part_logits_kernel<T>
      <<<blocks_of(extent.tiles), tile_threads, 0, stream()>>>(copy.parts, extent.last_tile, W, H, W.rows, E.data);
  cuda::check_launch("part_logits_kernel");
}

template <class T>
void CudaBackend<T>::part_softmax(const SoftmaxParts<T>& parts, PartRange range, MatrixView<T> E,
                                  const PartStatistics<T>& out) {
  const auto& copy = mirror(parts);
  const Extent<T> extent(copy, parts, range);
  if (extent.pairs == 0) return;
  const Statistics<T> statistics{out.o, out.maxima, out.sums, out.log_Z};
  part_softmax_kernel<T><<<blocks_of(extent.pairs), cuda::block_size, 0, stream()>>>(
      copy.parts, extent.first_pair, E.data, statistics, std::numeric_limits<T>::lowest());
  cuda::check_launch("part_softmax_kernel");
}

template <class T>
void CudaBackend<T>::part_backward(const SoftmaxParts<T>& parts, PartRange range, MatrixView<T> E,
                                   ConstView<double> sums, ConstView<T> H, T eta, MatrixView<T> W, MatrixView<T> G) {
  const auto& copy = mirror(parts);
  const Extent<T> extent(copy, parts, range);
  if (extent.pairs == 0 || extent.tiles == 0) return;
  const Size d = W.rows;
  T* partial = G.empty() ? nullptr : scratch_.room<T>(static_cast<std::size_t>(extent.partials * d));
  const auto on_stream = stream();
  part_residual_kernel<T>
      <<<blocks_of(extent.pairs), cuda::block_size, 0, on_stream>>>(copy.parts, extent.first_pair, E.data, sums);
  cuda::check_launch("part_residual_kernel");
  part_backward_kernel<T><<<dim3(blocks_of(extent.tiles), coordinate_blocks(d)), tile_threads, 0, on_stream>>>(
      copy.parts, extent.last_tile, E.data, H, d, eta, W, partial, extent.first_partial);
  cuda::check_launch("part_backward_kernel");
  if (partial == nullptr) return;
  add_up_tiles_kernel<T><<<dim3(blocks_of(extent.pairs), coordinate_blocks(d)), tile_threads, 0, on_stream>>>(
      copy.parts, extent.first_pair, d, partial, extent.first_partial, G);
  cuda::check_launch("add_up_tiles_kernel");
}

template <class T>
void CudaBackend<T>::add_part_loss(const SoftmaxParts<T>& parts, const PartStatistics<T>& of,
                                   MatrixView<double> total) {
  const auto& copy = mirror(parts);
  part_loss_kernel<T><<<1, cuda::block_size, 0, stream()>>>(copy.parts, parts.pair_count(), parts.entry_count(),
                                                            of.log_Z, of.o, total.data);
  cuda::check_launch("part_loss_kernel");
}

template <class T>
void CudaBackend<T>::log_softmax_columns(ConstView<T> b, MatrixView<T> A) {
  if (A.rows == 0 || A.cols == 0) return;
  log_softmax_kernel<T>
      <<<blocks_of(A.cols), cuda::block_size, 0, stream()>>>(A, A.rows, b, std::numeric_limits<T>::lowest());
  cuda::check_launch("log_softmax_kernel");
}

#define WIDEHEAD_INSTANTIATE(T)                                                                                      \
  template const cuda::PartsCopy<T>& CudaBackend<T>::mirror(const SoftmaxParts<T>&);                                 \
  template void CudaBackend<T>::part_logits(const SoftmaxParts<T>&, PartRange, ConstView<T>, ConstView<T>,           \
                                            MatrixView<T>);                                                          \
  template void CudaBackend<T>::part_softmax(const SoftmaxParts<T>&, PartRange, MatrixView<T>,                       \
                                             const PartStatistics<T>&);                                              \
  template void CudaBackend<T>::part_backward(const SoftmaxParts<T>&, PartRange, MatrixView<T>, ConstView<double>,   \
                                              ConstView<T>, T, MatrixView<T>, MatrixView<T>);                        \
  template void CudaBackend<T>::add_part_loss(const SoftmaxParts<T>&, const PartStatistics<T>&, MatrixView<double>); \
  template void CudaBackend<T>::log_softmax_columns(ConstView<T>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
