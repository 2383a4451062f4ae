/// Sums and searches, two kernels each: parts, then their sum in a fixed order.

#include <limits>

#include "cuda_backend.h"
#include "kernels.h"

namespace widehead {

using cuda::device_view;

namespace {

struct Moments {
  double sum, squares;
  __device__ Moments operator+(const Moments& other) const { return {sum + other.sum, squares + other.squares}; }
};

}  // namespace

template <class T>
double CudaBackend<T>::dot(ConstView<T> A, ConstView<T> B) {
  const auto a = device_view(A), b = device_view(B);
  double* room = scratch_.room<double>(cuda::reduce_blocks + 1);
  return fetch(cuda::reduce(
      stream(), A.rows, A.cols,
      [=] __device__(Size i, Size j) { return static_cast<double>(a(i, j)) * static_cast<double>(b(i, j)); },
      cuda::Plus{}, 0.0, room));
}

template <class T>
void CudaBackend<T>::column_dots(ConstView<T> A, ConstView<T> B, MatrixView<double> out) {
  const cuda::Dots<T> dots{A, B, nullptr, nullptr, out.data, 0, static_cast<int>(A.rows), static_cast<int>(A.cols)};
  program().add(cuda::Kind::dots, cuda::dot_tiles(A.cols), dots, {cuda::range(A), cuda::range(B)}, {cuda::range(out)});
}

template <class T>
void CudaBackend<T>::add_row_moments(ConstView<T> A, MatrixView<double> sums, MatrixView<double> squares) {
  if (A.cols == 0) return;
  const auto a = device_view(A);
  const auto total = device_view(sums), total_squares = device_view(squares);
  auto* room = scratch_.room<Moments>(static_cast<std::size_t>(A.rows * cuda::row_slices(A.cols)));
  cuda::reduce_rows(
      stream(), A.rows, A.cols,
      [=] __device__(Size i, Size j) {
        const auto value = static_cast<double>(a(i, j));
        return Moments{value, value * value};
      },
      cuda::Plus{}, Moments{0, 0},
      [=] __device__(Size i, const Moments& moments) {
        total[i] += moments.sum;
        total_squares[i] += moments.squares;
      },
      room);
}

template <class T>
T CudaBackend<T>::rough_squared_norm(ConstView<T> A) {
  const auto a = device_view(A);
  T* room = scratch_.room<T>(cuda::reduce_blocks + 1);
  return fetch(cuda::reduce(
      stream(), A.rows, A.cols, [=] __device__(Size i, Size j) { return a(i, j) * a(i, j); }, cuda::Plus{}, T(0),
      room));
}

template <class T>
Size CudaBackend<T>::find_non_finite(ConstView<T> A) {
  constexpr Size nowhere = std::numeric_limits<Size>::max();
  const auto a = device_view(A);
  const Size rows = A.rows;
  Size* room = scratch_.room<Size>(cuda::reduce_blocks + 1);
  const Size first = fetch(cuda::reduce(
      stream(), A.rows, A.cols, [=] __device__(Size i, Size j) { return isfinite(a(i, j)) ? nowhere : i + j * rows; },
      cuda::Smaller{}, nowhere, room));
  return first == nowhere ? -1 : first;
}

#define WIDEHEAD_INSTANTIATE(T)                                                                        \
  template double CudaBackend<T>::dot(ConstView<T>, ConstView<T>);                                     \
  template void CudaBackend<T>::column_dots(ConstView<T>, ConstView<T>, MatrixView<double>);           \
  template void CudaBackend<T>::add_row_moments(ConstView<T>, MatrixView<double>, MatrixView<double>); \
  template T CudaBackend<T>::rough_squared_norm(ConstView<T>);                                         \
  template Size CudaBackend<T>::find_non_finite(ConstView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
