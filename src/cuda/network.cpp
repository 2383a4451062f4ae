/// What is below the output layer.

#include "cuda_backend.h"

namespace widehead {

using cuda::Element;
using cuda::range;

/// Makes of the last instruction, if it is a product that goes to C, one after which something is done with its
/// elements.
template <class T>
bool CudaBackend<T>::add_to_product(cuda::After after, Activation s, ConstView<T> y, MatrixView<T> C) {
  if constexpr (std::is_same_v<T, float>) {
    const auto last = program().last();
    const auto* product = program().template find<cuda::Multiply>(last, cuda::Kind::multiply);
    if (product == nullptr || product->C != C.data || product->C_stride != C.stride || product->rows != C.rows ||
        product->cols != C.cols || product->after != cuda::After::nothing || product->symmetric ||
        product->sum != nullptr) {
      return false;
    }
    auto both = *product;
    both.after = after, both.activation = s;
    both.y = y.data, both.y_stride = static_cast<int>(y.stride);
    return program().extend(last, cuda::Kind::multiply, both, {range(y)}, {range(C)});
  }
  return false;
}

template <class T>
void CudaBackend<T>::activate(Activation s, ConstView<T> b, MatrixView<T> A) {
  if (s == Activation::identity && b.empty()) return;
  if (add_to_product(cuda::After::activate, s, b, A)) return;
  write_down({.what = Element::activate, .activation = s, .rows = A.rows, .cols = A.cols, .C = A, .a = b.data},
             {range(A), range(b)}, {range(A)});
}

template <class T>
void CudaBackend<T>::activate_backward(Activation s, ConstView<T> A, MatrixView<T> G) {
  if (s == Activation::identity || add_to_product(cuda::After::slope, s, A, G)) return;
  write_down({.what = Element::slope, .activation = s, .rows = G.rows, .cols = G.cols, .A = A, .C = G},
             {range(A), range(G)}, {range(G)});
}

template <class T>
void CudaBackend<T>::sum_columns(ConstView<T> A, MatrixView<T> out) {
  const cuda::SumRows<T> sums{A, out.data, static_cast<int>(A.rows), static_cast<int>(A.cols)};
  program().add(cuda::Kind::sum_rows, cuda::sum_rows_tiles(A.rows), sums, {range(A)}, {range(out)});
}

template <class T>
void CudaBackend<T>::adam(const AdamStep& step, std::span<const Index> columns, ConstView<T> G, MatrixView<T> P,
                          MatrixView<T> M, MatrixView<T> S) {
  const Index* names = send(columns);
  write_down({.what = Element::adam,
              .rows = G.rows,
              .cols = G.cols,
              .A = G,
              .C = P,
              .D = M,
              .F = S,
              .to = names,
              .alpha = static_cast<T>(step.rate),
              .beta = static_cast<T>(step.epsilon),
              .beta1 = static_cast<T>(step.beta1),
              .beta2 = static_cast<T>(step.beta2),
              .rest1 = static_cast<T>((1 - step.beta1) * step.scale),
              .rest2 = static_cast<T>((1 - step.beta2) * step.scale * step.scale)},
             {range(G), range(P), range(M), range(S)}, {range(P), range(M), range(S)});
}

#define WIDEHEAD_INSTANTIATE(T)                                                                            \
  template void CudaBackend<T>::activate(Activation, ConstView<T>, MatrixView<T>);                         \
  template void CudaBackend<T>::activate_backward(Activation, ConstView<T>, MatrixView<T>);                \
  template void CudaBackend<T>::sum_columns(ConstView<T>, MatrixView<T>);                                  \
  template void CudaBackend<T>::adam(const AdamStep&, std::span<const Index>, ConstView<T>, MatrixView<T>, \
                                     MatrixView<T>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
