/// Sparse targets: the pattern of a minibatch on the device, and values by its entries.

#include "cuda_backend.h"
#include "kernels.h"

namespace widehead {

using cuda::device_view;
using cuda::range;

template <class T>
void CudaBackend<T>::add_combination(ConstView<T> Z, const RowGroups<T>& Y, ConstView<T> values, MatrixView<T> G) {
  const auto& y = pattern(Y);
  write_down({.starts = y.example_starts,
              .order = y.by_example,
              .columns = y.groups,
              .values = values.data,
              .X = Z,
              .Y = G,
              .rows = static_cast<int>(G.rows),
              .add = true},
             G.cols, {range(Z), range(values), range(G)}, {range(G)});
}

template <class T>
void CudaBackend<T>::scatter(T alpha, const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X, MatrixView<T> V) {
  const auto& y = pattern(Y);
  write_down({.starts = y.starts,
              .columns = y.examples,
              .to = y.rows,
              .values = values.data,
              .X = X,
              .Y = V,
              .rows = static_cast<int>(V.rows),
              .alpha = alpha,
              .add = true},
             Y.count(), {range(X), range(values), range(V)}, {range(V)});
}

template <class T>
void CudaBackend<T>::combine(const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X, MatrixView<T> Z) {
  const auto& y = pattern(Y);
  write_down({.starts = y.starts,
              .columns = y.examples,
              .values = values.data,
              .X = X,
              .Y = Z,
              .rows = static_cast<int>(Z.rows)},
             Y.count(), {range(X), range(values)}, {range(Z)});
}

template <class T>
void CudaBackend<T>::dots_at(ConstView<T> Z, const RowGroups<T>& Y, ConstView<T> X, double beta,
                             MatrixView<double> out) {
  const auto& y = pattern(Y);
  const cuda::Dots<T> dots{
      Z, X, y.groups, y.examples, out.data, beta, static_cast<int>(X.rows), static_cast<int>(Y.nonzeros())};
  program().add(cuda::Kind::dots, cuda::dot_tiles(Y.nonzeros()), dots, {range(Z), range(X), range(out)}, {range(out)});
}

template <class T>
void CudaBackend<T>::add_by_example(ConstView<double> t, const RowGroups<T>& Y, MatrixView<double> out) {
  const auto y = pattern(Y);
  const auto summand = device_view(t);
  const auto result = device_view(out);
  cuda::for_each(stream(), Y.nonzeros(), 1, [=] __device__(Size e, Size) { result[e] += summand[y.examples[e]]; });
}

template <class T>
void CudaBackend<T>::gram(const RowGroups<T>& Y, ConstView<T> values, MatrixView<T> M) {
  const cuda::Gram<T> gram{pattern(Y), values.data, M, static_cast<int>(Y.examples())};
  program().add(cuda::Kind::gram, Y.examples(), gram, {range(values)}, {range(M)});
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
  template void CudaBackend<T>::gram(const RowGroups<T>&, ConstView<T>, MatrixView<T>);                               \
  template void CudaBackend<T>::read_at(ConstView<T>, Size, const RowGroups<T>&, MatrixView<double>);                 \
  template void CudaBackend<T>::add_at(const RowGroups<T>&, ConstView<T>, Size, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
