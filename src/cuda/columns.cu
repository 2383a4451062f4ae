/// Columns here and there, by lists of the host's, and what goes over all of V.

#include "column_sums.h"
#include "cuda_backend.h"
#include "kernels.h"

namespace widehead {

using cuda::device_view;
using cuda::Term;
using cuda::Upload;

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
  const auto on_stream = stream();
  auto upload = staging_.begin(Upload::bytes<Index>(from.size()) + Upload::bytes<Index>(to.size()));
  const Index* sources = upload.put(from);
  const Index* targets = upload.put(to);
  upload.send(on_stream);
  const auto a = device_view(A);
  const auto c = device_view(C);
  cuda::for_each(
      on_stream, C.rows, static_cast<Size>(from.empty() ? to.size() : from.size()), [=] __device__(Size i, Size k) {
        const Size source = sources == nullptr ? k : sources[k], target = targets == nullptr ? k : targets[k];
        c(i, target) = source < 0 ? T(0) : a(i, source);
      });
}

template <class T>
void CudaBackend<T>::clear_tops(std::span<const Index> counts, MatrixView<T> A) {
  const Index* tops = send(counts);
  const auto a = device_view(A);
  cuda::for_each(stream(), A.rows, static_cast<Size>(counts.size()), [=] __device__(Size i, Size k) {
    if (i < tops[k]) a(i, k) = T(0);
  });
}

template <class T>
void CudaBackend<T>::gather(ConstView<T> V, const SparseBatch<T>& Y, MatrixView<T> G) {
  const auto on_stream = stream();
  const auto examples = static_cast<std::size_t>(Y.examples()), entries = static_cast<std::size_t>(Y.nonzeros());
  auto upload =
      staging_.begin(Upload::bytes<Index>(examples + 1) + Upload::bytes<Index>(entries) + Upload::bytes<T>(entries));
  const auto starts = upload.template take<Index>(examples + 1), columns = upload.template take<Index>(entries);
  const auto values = upload.template take<T>(entries);
  for (Size j = 0; j < Y.examples(); ++j) starts.host[j] = static_cast<Index>(Y.begin(j));
  starts.host[examples] = static_cast<Index>(entries);
  for (Size e = 0; e < Y.nonzeros(); ++e) {
    columns.host[e] = Y.index(e);
    values.host[e] = Y.value(e);
  }
  upload.send(on_stream);
  const Index* column = columns.device;
  const T* value = values.device;
  const auto v = device_view(V);
  const auto g = device_view(G);
  cuda::sum_columns<T>(
      on_stream, G.cols, G.rows, starts.device,
      [=] __device__(Index k) {
        return Term<T>{value[k], &v(0, column[k])};
      },
      [=] __device__(Size j) { return &g(0, j); }, false);
}

template <class T>
void CudaBackend<T>::gather(ConstView<T> V, const Selection& Y, ConstView<T> values, MatrixView<T> G) {
  const auto on_stream = stream();
  auto upload = staging_.begin(Upload::bytes<Index>(Y.offsets.size()) + Upload::bytes<Index>(Y.columns.size()) +
                               Upload::bytes<Index>(Y.entries.size()));
  const auto starts = upload.template take<Index>(Y.offsets.size());
  for (std::size_t j = 0; j < Y.offsets.size(); ++j) starts.host[j] = static_cast<Index>(Y.offsets[j]);
  const Index* column = upload.put(Y.columns);
  const Index* entry = upload.put(Y.entries);
  upload.send(on_stream);
  const auto v = device_view(V), value = device_view(values);
  const auto g = device_view(G);
  cuda::sum_columns<T>(
      on_stream, G.cols, G.rows, starts.device,
      [=] __device__(Index k) {
        return Term<T>{value[entry[k]], &v(0, column[k])};
      },
      [=] __device__(Size j) { return &g(0, j); }, false);
}

template <class T>
void CudaBackend<T>::add_to_columns(T alpha, ConstView<T> G, std::span<const Index> columns, MatrixView<T> P) {
  const Index* targets = send(columns);
  const auto g = device_view(G);
  const auto p = device_view(P);
  cuda::for_each(stream(), G.rows, G.cols, [=] __device__(Size i, Size k) { p(i, targets[k]) += alpha * g(i, k); });
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
  template void CudaBackend<T>::clear_tops(std::span<const Index>, MatrixView<T>);                         \
  template void CudaBackend<T>::gather(ConstView<T>, const SparseBatch<T>&, MatrixView<T>);                \
  template void CudaBackend<T>::gather(ConstView<T>, const Selection&, ConstView<T>, MatrixView<T>);       \
  template void CudaBackend<T>::add_to_columns(T, ConstView<T>, std::span<const Index>, MatrixView<T>);    \
  template void CudaBackend<T>::apply_rank_ones(ConstView<T>, ConstView<T>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
