/// Sparse targets: the pattern of a minibatch on the device, and values by its entries.

#include "column_sums.h"
#include "cuda_backend.h"
#include "kernels.h"

namespace widehead {

using cuda::device_view;
using cuda::Term;

namespace {

/// Column j of M ← itself + YᵀY, a block for each example j. Within a group each example has one entry, so threads keep
/// to their own elements; groups follow one another in their order.
template <class T>
__global__ void add_gram_kernel(cuda::Pattern<T> Y, cuda::DeviceView<const T> values, cuda::DeviceView<T> M) {
  const Size j = blockIdx.x;
  const Index last = Y.example_starts[j + 1];
  for (Index k = Y.example_starts[j]; k < last; ++k) {
    const Index e = Y.by_example[k], group = Y.groups[e];
    const T value = values[e];
    const Index end = Y.starts[group + 1];
    for (Index other = Y.starts[group] + static_cast<Index>(threadIdx.x); other < end;
         other += static_cast<Index>(blockDim.x)) {
      M(Y.examples[other], j) += values[other] * value;
    }
    __syncthreads();  // the next group may give this element to another thread
  }
}

}  // namespace

template <class T>
void CudaBackend<T>::add_combination(ConstView<T> Z, const RowGroups<T>& Y, ConstView<T> values, MatrixView<T> G) {
  const auto y = pattern(Y);
  const auto z = device_view(Z), value = device_view(values);
  const auto g = device_view(G);
  cuda::sum_columns<T>(
      stream(), G.cols, G.rows, y.example_starts,
      [=] __device__(Index k) {
        const Index e = y.by_example[k];
        return Term<T>{value[e], &z(0, y.groups[e])};
      },
      [=] __device__(Size j) { return &g(0, j); }, true);
}

template <class T>
void CudaBackend<T>::scatter(T alpha, const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X, MatrixView<T> V) {
  const auto y = pattern(Y);
  const auto x = device_view(X), value = device_view(values);
  const auto v = device_view(V);
  cuda::sum_columns<T>(
      stream(), Y.count(), V.rows, y.starts,
      [=] __device__(Index e) {
        return Term<T>{alpha * value[e], &x(0, y.examples[e])};
      },
      [=] __device__(Size group) { return &v(0, y.rows[group]); }, true);
}

template <class T>
void CudaBackend<T>::combine(const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X, MatrixView<T> Z) {
  const auto y = pattern(Y);
  const auto x = device_view(X), value = device_view(values);
  const auto z = device_view(Z);
  cuda::sum_columns<T>(
      stream(), Y.count(), Z.rows, y.starts,
      [=] __device__(Index e) {
        return Term<T>{value[e], &x(0, y.examples[e])};
      },
      [=] __device__(Size group) { return &z(0, group); }, false);
}

template <class T>
void CudaBackend<T>::dots_at(ConstView<T> Z, const RowGroups<T>& Y, ConstView<T> X, double beta,
                             MatrixView<double> out) {
  const auto y = pattern(Y);
  const auto z = device_view(Z), x = device_view(X);
  const auto dots = device_view(out);
  cuda::sum_by_warp(
      stream(), Y.nonzeros(), X.rows,
      [=] __device__(Size e, Size i) {
        return static_cast<double>(z(i, y.groups[e])) * static_cast<double>(x(i, y.examples[e]));
      },
      [=] __device__(Size e, double sum) { dots[e] = beta == 0 ? sum : beta * dots[e] + sum; });
}

template <class T>
void CudaBackend<T>::add_by_example(ConstView<double> t, const RowGroups<T>& Y, MatrixView<double> out) {
  const auto y = pattern(Y);
  const auto summand = device_view(t);
  const auto result = device_view(out);
  cuda::for_each(stream(), Y.nonzeros(), 1, [=] __device__(Size e, Size) { result[e] += summand[y.examples[e]]; });
}

template <class T>
void CudaBackend<T>::add_gram(const RowGroups<T>& Y, ConstView<T> values, MatrixView<T> M) {
  if (Y.nonzeros() == 0) return;
  const auto y = pattern(Y);
  add_gram_kernel<T><<<static_cast<unsigned>(Y.examples()), 128, 0, stream()>>>(y, values, M);
  cuda::check_launch("add_gram_kernel");
}

template <class T>
void CudaBackend<T>::read_at(ConstView<T> O, Size first, const RowGroups<T>& Y, MatrixView<double> out) {
  const auto y = pattern(Y);
  const auto o = device_view(O);
  const auto result = device_view(out);
  const Size from = Y.first_entry(Y.first_group(first)), to = Y.first_entry(Y.first_group(first + O.cols));
  cuda::for_each(stream(), to - from, 1, [=] __device__(Size k, Size) {
    const Size e = from + k;
    result[e] = static_cast<double>(o(y.examples[e], y.rows[y.groups[e]] - first));
  });
}

template <class T>
void CudaBackend<T>::add_at(const RowGroups<T>& Y, ConstView<T> values, Size first, MatrixView<T> O) {
  const auto y = pattern(Y);
  const auto value = device_view(values);
  const auto o = device_view(O);
  const Size from = Y.first_entry(Y.first_group(first)), to = Y.first_entry(Y.first_group(first + O.cols));
  cuda::for_each(stream(), to - from, 1, [=] __device__(Size k, Size) {
    const Size e = from + k;
    o(y.examples[e], y.rows[y.groups[e]] - first) += value[e];
  });
}

#define WIDEHEAD_INSTANTIATE(T)                                                                                       \
  template void CudaBackend<T>::add_combination(ConstView<T>, const RowGroups<T>&, ConstView<T>, MatrixView<T>);      \
  template void CudaBackend<T>::scatter(T, const RowGroups<T>&, ConstView<T>, ConstView<T>, MatrixView<T>);           \
  template void CudaBackend<T>::combine(const RowGroups<T>&, ConstView<T>, ConstView<T>, MatrixView<T>);              \
  template void CudaBackend<T>::dots_at(ConstView<T>, const RowGroups<T>&, ConstView<T>, double, MatrixView<double>); \
  template void CudaBackend<T>::add_by_example(ConstView<double>, const RowGroups<T>&, MatrixView<double>);           \
  template void CudaBackend<T>::add_gram(const RowGroups<T>&, ConstView<T>, MatrixView<T>);                           \
  template void CudaBackend<T>::read_at(ConstView<T>, Size, const RowGroups<T>&, MatrixView<double>);                 \
  template void CudaBackend<T>::add_at(const RowGroups<T>&, ConstView<T>, Size, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
