/// Columns here and there, by lists of the host's, and what goes over all of V.

#include "cuda_backend.h"
#include "kernels.h"

namespace widehead {

using cuda::Element;
using cuda::Lists;
using cuda::range;

namespace {

/// V ← V ∏ₖ (I + βₖ uₖ uₖᵀ), a warp for each row of V; its lanes keep to their own coordinates.
template <class T>
__global__ void apply_rank_ones_kernel(cuda::DeviceView<const T> u, cuda::DeviceView<const T> beta, Size factors,
                                       cuda::DeviceView<T> V, Size dim, Size rows) {
  const Size warps = static_cast<Size>(gridDim.x) * (cuda::block_size / cuda::warp_size);
  const int lane = static_cast<int>(threadIdx.x) % cuda::warp_size;
  for (Size row = (static_cast<Size>(blockIdx.x) * cuda::block_size + threadIdx.x) / cuda::warp_size; row < rows;
       row += warps) {
    for (Size k = 0; k < factors; ++k) {
      T projection = 0;
      for (Size i = lane; i < dim; i += cuda::warp_size) projection += V(i, row) * u(i, k);
      projection = __shfl_sync(0xffffffffU, cuda::combine_warp(projection, cuda::Plus{}), 0);
      const T factor = beta[k] * projection;
      for (Size i = lane; i < dim; i += cuda::warp_size) V(i, row) += factor * u(i, k);
    }
  }
}

}  // namespace

template <class T>
void CudaBackend<T>::move_columns(ConstView<T> A, std::span<const Index> from, std::span<const Index> to,
                                  MatrixView<T> C) {
  auto lists = program().lists(Lists::bytes<Index>(from.size()) + Lists::bytes<Index>(to.size()));
  const Index *sources = lists.put(from), *targets = lists.put(to);
  write_down({.what = Element::move,
              .rows = C.rows,
              .cols = static_cast<Size>(from.empty() ? to.size() : from.size()),
              .A = A,
              .C = C,
              .from = sources,
              .to = targets},
             {range(A)}, {range(C)});
}

template <class T>
void CudaBackend<T>::clear_starts(std::span<const Index> counts, MatrixView<T> A) {
  const Index* starts = send(counts);
  write_down({.what = Element::clear_starts, .rows = A.rows, .cols = A.cols, .C = A, .from = starts}, {}, {range(A)});
}

template <class T>
void CudaBackend<T>::gather(ConstView<T> V, const SparseBatch<T>& Y, MatrixView<T> G) {
  const auto examples = static_cast<std::size_t>(Y.examples()), entries = static_cast<std::size_t>(Y.nonzeros());
  auto lists =
      program().lists(Lists::bytes<Index>(examples + 1) + Lists::bytes<Index>(entries) + Lists::bytes<T>(entries));
  const auto starts = lists.template take<Index>(examples + 1), columns = lists.template take<Index>(entries);
  const auto values = lists.template take<T>(entries);
  for (Size j = 0; j < Y.examples(); ++j) starts.host[j] = static_cast<Index>(Y.begin(j));
  starts.host[examples] = static_cast<Index>(entries);
  for (Size e = 0; e < Y.nonzeros(); ++e) {
    columns.host[e] = Y.index(e);
    values.host[e] = Y.value(e);
  }
  write_down({.starts = starts.device,
              .columns = columns.device,
              .values = values.device,
              .X = V,
              .Y = G,
              .rows = static_cast<int>(G.rows)},
             G.cols, {range(V)}, {range(G)});
}

template <class T>
void CudaBackend<T>::gather(ConstView<T> V, const Selection& Y, ConstView<T> values, MatrixView<T> G) {
  auto lists = program().lists(Lists::bytes<Index>(Y.offsets.size()) + Lists::bytes<Index>(Y.columns.size()) +
                               Lists::bytes<Index>(Y.entries.size()));
  const auto starts = lists.template take<Index>(Y.offsets.size());
  Size most_terms = 0;
  for (std::size_t j = 0; j < Y.offsets.size(); ++j) {
    starts.host[j] = static_cast<Index>(Y.offsets[j]);
    if (j > 0) most_terms = std::max<Size>(most_terms, Y.offsets[j] - Y.offsets[j - 1]);
  }
  const Index *columns = lists.put(Y.columns), *entries = lists.put(Y.entries);
  write_down({.starts = starts.device,
              .entries = entries,
              .columns = columns,
              .values = values.data,
              .X = V,
              .Y = G,
              .rows = static_cast<int>(G.rows)},
             G.cols, {range(V), range(values)}, {range(G)}, most_terms);
}

template <class T>
void CudaBackend<T>::add_to_columns(T alpha, ConstView<T> G, std::span<const Index> columns, MatrixView<T> P) {
  const Index* targets = send(columns);
  write_down(
      {.what = Element::add_to_columns, .rows = G.rows, .cols = G.cols, .A = G, .C = P, .to = targets, .alpha = alpha},
      {range(G), range(P)}, {range(P)});
}

template <class T>
void CudaBackend<T>::apply_rank_ones(ConstView<T> u, ConstView<T> beta, MatrixView<T> V) {
  if (V.rows == 0 || V.cols == 0 || u.cols == 0) return;
  constexpr Size warps = cuda::block_size / cuda::warp_size;
  apply_rank_ones_kernel<T><<<cuda::blocks_for(V.cols, warps, 16 * cuda::most_blocks), cuda::block_size, 0, stream()>>>(
      u, beta, u.cols, V, V.rows, V.cols);
  cuda::check_launch("apply_rank_ones_kernel");
}

#define WIDEHEAD_INSTANTIATE(T)                                                                            \
  template void CudaBackend<T>::move_columns(ConstView<T>, std::span<const Index>, std::span<const Index>, \
                                             MatrixView<T>);                                               \
  template void CudaBackend<T>::clear_starts(std::span<const Index>, MatrixView<T>);                       \
  template void CudaBackend<T>::gather(ConstView<T>, const SparseBatch<T>&, MatrixView<T>);                \
  template void CudaBackend<T>::gather(ConstView<T>, const Selection&, ConstView<T>, MatrixView<T>);       \
  template void CudaBackend<T>::add_to_columns(T, ConstView<T>, std::span<const Index>, MatrixView<T>);    \
  template void CudaBackend<T>::apply_rank_ones(ConstView<T>, ConstView<T>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
