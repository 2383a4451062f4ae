/// What is below the output layer.

#include "cuda_backend.h"
#include "kernels.h"

namespace widehead {

using cuda::device_view;

namespace {

/// s(x). The exponent of σ(x) = 1/(1 + t) or t/(1 + t), t = e^(−|x|), is never positive, so nothing overflows.
template <Activation s, class T>
__device__ T activation_of(T x) {
  if constexpr (s == Activation::relu) {
    return x < T(0) ? T(0) : x;  // a NaN stays one
  } else if constexpr (s == Activation::tanh) {
    return tanh(x);
  } else if constexpr (s == Activation::sigmoid) {
    const T t = exp(x < T(0) ? x : -x);
    return (x > T(0) ? T(1) : t) / (T(1) + t);
  } else {
    return x;
  }
}
/// s′ from y = s(x).
template <Activation s, class T>
__device__ T slope_of(T y) {
  if constexpr (s == Activation::relu) {
    return y > T(0) ? T(1) : T(0);
  } else if constexpr (s == Activation::tanh) {
    return T(1) - y * y;
  } else if constexpr (s == Activation::sigmoid) {
    return y * (T(1) - y);
  } else {
    return T(1);
  }
}

template <Activation s, class T>
void activate_with(cudaStream_t stream, ConstView<T> b, MatrixView<T> A) {
  const auto a = device_view(A);
  const auto bias = device_view(b);
  cuda::for_each(stream, A.rows, A.cols, [=] __device__(Size i, Size j) {
    a(i, j) = activation_of<s>(bias.data == nullptr ? a(i, j) : a(i, j) + bias[i]);
  });
}
template <Activation s, class T>
void multiply_by_slope(cudaStream_t stream, ConstView<T> A, MatrixView<T> G) {
  const auto a = device_view(A);
  const auto g = device_view(G);
  cuda::for_each(stream, G.rows, G.cols, [=] __device__(Size i, Size j) { g(i, j) *= slope_of<s>(a(i, j)); });
}

}  // namespace

template <class T>
void CudaBackend<T>::activate(Activation s, ConstView<T> b, MatrixView<T> A) {
  switch (s) {
    case Activation::relu: return activate_with<Activation::relu, T>(stream(), b, A);
    case Activation::tanh: return activate_with<Activation::tanh, T>(stream(), b, A);
    case Activation::sigmoid: return activate_with<Activation::sigmoid, T>(stream(), b, A);
    case Activation::identity:
      if (!b.empty()) add_to_rows(b, A);
      return;
  }
}

template <class T>
void CudaBackend<T>::activate_backward(Activation s, ConstView<T> A, MatrixView<T> G) {
  switch (s) {
    case Activation::relu: return multiply_by_slope<Activation::relu, T>(stream(), A, G);
    case Activation::tanh: return multiply_by_slope<Activation::tanh, T>(stream(), A, G);
    case Activation::sigmoid: return multiply_by_slope<Activation::sigmoid, T>(stream(), A, G);
    case Activation::identity: return;
  }
}

template <class T>
void CudaBackend<T>::sum_columns(ConstView<T> A, MatrixView<T> out) {
  const auto a = device_view(A);
  const auto sums = device_view(out);
  auto* room = scratch_.room<double>(static_cast<std::size_t>(A.rows * cuda::row_slices(A.cols)));
  cuda::reduce_rows(
      stream(), A.rows, A.cols, [=] __device__(Size i, Size j) { return static_cast<double>(a(i, j)); }, cuda::Plus{},
      0.0, [=] __device__(Size i, double sum) { sums[i] = static_cast<T>(sum); }, room);
}

template <class T>
void CudaBackend<T>::adam(const AdamStep& step, std::span<const Index> columns, ConstView<T> G, MatrixView<T> P,
                          MatrixView<T> M, MatrixView<T> S) {
  const auto beta1 = static_cast<T>(step.beta1), beta2 = static_cast<T>(step.beta2);
  const auto rest1 = static_cast<T>((1 - step.beta1) * step.scale);
  const auto rest2 = static_cast<T>((1 - step.beta2) * step.scale * step.scale);
  const auto rate = static_cast<T>(step.rate), epsilon = static_cast<T>(step.epsilon);
  const Index* names = send(columns);
  const auto gradient = device_view(G);
  const auto p = device_view(P), first = device_view(M), second = device_view(S);
  cuda::for_each(stream(), G.rows, G.cols, [=] __device__(Size i, Size k) {
    const Size column = names == nullptr ? k : names[k];
    const T g = gradient(i, k);
    const T m = beta1 * first(i, column) + rest1 * g, s = beta2 * second(i, column) + rest2 * g * g;
    first(i, column) = m;
    second(i, column) = s;
    p(i, column) -= rate * m / (sqrt(s) + epsilon);
  });
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
