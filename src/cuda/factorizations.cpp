/// Factorisations: cuBLAS's batched LU, of which a batch of one is taken; the host's LAPACK for what is small or rare.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "../cpu/blas.h"
#include "cuda_backend.h"
#include "widehead/errors.h"

namespace widehead {

using cuda::check;

namespace {

int to_int(Size n) {
  if (n > std::numeric_limits<int>::max()) {
    throw BackendError(fmt::format("cuBLAS: an extent of {} is beyond its 32-bit integers", n));
  }
  return static_cast<int>(n);
}
/// A matrix of one column may come with any stride.
template <class T>
int leading(MatrixView<T> A) {
  return to_int(std::max<Size>(A.stride, std::max<Size>(A.rows, 1)));
}

cublasStatus_t getrf(cublasHandle_t handle, int n, float* const* A, int lda, int* pivots, int* info) {
  return cublasSgetrfBatched(handle, n, A, lda, pivots, info, 1);
}
cublasStatus_t getrf(cublasHandle_t handle, int n, double* const* A, int lda, int* pivots, int* info) {
  return cublasDgetrfBatched(handle, n, A, lda, pivots, info, 1);
}
cublasStatus_t getrs(cublasHandle_t handle, cublasOperation_t op, int n, int columns, const float* const* A, int lda,
                     const int* pivots, float* const* X, int ldx, int* info) {
  return cublasSgetrsBatched(handle, op, n, columns, A, lda, pivots, X, ldx, info, 1);
}
cublasStatus_t getrs(cublasHandle_t handle, cublasOperation_t op, int n, int columns, const double* const* A, int lda,
                     const int* pivots, double* const* X, int ldx, int* info) {
  return cublasDgetrsBatched(handle, op, n, columns, A, lda, pivots, X, ldx, info, 1);
}
cublasStatus_t getri(cublasHandle_t handle, int n, const float* const* A, int lda, const int* pivots, float* const* C,
                     int ldc, int* info) {
  return cublasSgetriBatched(handle, n, A, lda, pivots, C, ldc, info, 1);
}
cublasStatus_t getri(cublasHandle_t handle, int n, const double* const* A, int lda, const int* pivots, double* const* C,
                     int ldc, int* info) {
  return cublasDgetriBatched(handle, n, A, lda, pivots, C, ldc, info, 1);
}
/// B ← B A⁻¹ with a triangle of A.
cublasStatus_t trsm_right(cublasHandle_t handle, cublasFillMode_t uplo, cublasDiagType_t diagonal, int rows, int n,
                          const float* A, int lda, float* B, int ldb) {
  const float one = 1;
  return cublasStrsm(handle, CUBLAS_SIDE_RIGHT, uplo, CUBLAS_OP_N, diagonal, rows, n, &one, A, lda, B, ldb);
}
cublasStatus_t trsm_right(cublasHandle_t handle, cublasFillMode_t uplo, cublasDiagType_t diagonal, int rows, int n,
                          const double* A, int lda, double* B, int ldb) {
  const double one = 1;
  return cublasDtrsm(handle, CUBLAS_SIDE_RIGHT, uplo, CUBLAS_OP_N, diagonal, rows, n, &one, A, lda, B, ldb);
}

/// Largest column sum of |A|, on the host.
template <class T>
T one_norm(MatrixView<T> A) {
  T norm = 0;
  for (Size j = 0; j < A.cols; ++j) {
    T sum = 0;
    for (Size i = 0; i < A.rows; ++i) sum += std::abs(A(i, j));
    if (sum > norm || std::isnan(sum)) norm = sum;  // a NaN stays
  }
  return norm;
}

}  // namespace

/// G is m x m and the condition a number that the host waits for anyway, so its LU is the host's: by far the smaller
/// part of the work, and the one that leaves a GPU idle. What is O(dm²) stays on the device.
template <class T>
T CudaBackend<T>::solve_shifted(T s, MatrixView<T> G, T limit, MatrixView<T> X) {
  const Size m = G.rows;
  const auto LU = download<T>(G, matrix_on_host_);
  synchronize();
  const T norm_G = one_norm(LU), norm = std::abs(s) + norm_G;
  for (Size j = 0; j < m; ++j) LU(j, j) += s;
  // P (sI + G) = L R with row exchanges P, so X (sI + G)⁻¹ = X R⁻¹ L⁻¹ P.
  const auto size = static_cast<std::size_t>(m);
  pivots_.resize(std::max(pivots_.size(), size));
  iwork_.resize(std::max(iwork_.size(), size));
  work_.resize(std::max(work_.size(), 4 * size));
  if (blas::getrf<T>(LU, pivots_) > 0) return 0;
  // Where G is small, ‖(sI + G)⁻¹‖₁ ≤ 1/(|s| − ‖G‖₁) says enough; else LAPACK estimates it.
  const T rcond = norm_G <= std::abs(s) / 2 ? (std::abs(s) - norm_G) / norm : blas::gecon<T>(LU, norm, work_, iwork_);
  if (!(rcond >= limit)) return rcond;
  enqueue_copy<T>(LU, G);
  const int rows = to_int(X.rows), n = to_int(m), ldg = leading(G), ldx = leading(X);
  check(trsm_right(blas(), CUBLAS_FILL_MODE_UPPER, CUBLAS_DIAG_NON_UNIT, rows, n, G.data, ldg, X.data, ldx),
        "cublas trsm");
  check(trsm_right(blas(), CUBLAS_FILL_MODE_LOWER, CUBLAS_DIAG_UNIT, rows, n, G.data, ldg, X.data, ldx), "cublas trsm");
  // All exchanges of columns at once: column j of the result is column origin_[j].
  origin_.resize(size);
  std::iota(origin_.begin(), origin_.end(), 0);
  for (std::size_t k = size; k-- > 0;) std::swap(origin_[k], origin_[static_cast<std::size_t>(pivots_[k]) - 1]);
  const auto room = exchanged_.scratch(X.rows, m);
  move_columns(X, origin_, {}, room);
  copy(room, X);
  return rcond;
}

template <class T>
int CudaBackend<T>::factorize(MatrixView<T> A, int* pivots) {
  T* const* matrix = send(std::span<T* const>(&A.data, 1));
  int* info = scratch_.room<int>(1);
  check(getrf(blas(), to_int(A.rows), matrix, leading(A), pivots, info), "cublas getrfBatched");
  return fetch(static_cast<const int*>(info));
}

template <class T>
bool CudaBackend<T>::lu_factorize(MatrixView<T> A, MatrixView<int> pivots) {
  return factorize(A, pivots.data) == 0;
}

template <class T>
void CudaBackend<T>::lu_solve(Op op, ConstView<T> factors, ConstView<int> pivots, MatrixView<T> X) {
  if (X.rows == 0 || X.cols == 0) return;
  auto lists = program().lists(2 * cuda::Lists::bytes<T*>(1));
  const T* const* matrix = lists.put(std::span<const T* const>(&factors.data, 1));
  T* const* columns = lists.put(std::span<T* const>(&X.data, 1));
  int info = 0;
  check(getrs(blas(), op == Op::none ? CUBLAS_OP_N : CUBLAS_OP_T, to_int(X.rows), to_int(X.cols), matrix,
              leading(factors), pivots.data, columns, leading(X), &info),
        "cublas getrsBatched");
  if (info != 0) throw BackendError(fmt::format("cublas getrsBatched failed with info = {}", info));
}

template <class T>
bool CudaBackend<T>::invert(MatrixView<T> A) {
  const auto n = static_cast<std::size_t>(A.rows);
  int* room = scratch_.room<int>(n + 1);  // the status first: factorize has it there, too
  int* pivots = room + 1;
  if (factorize(A, pivots) != 0) return false;
  const auto inverse = exchanged_.scratch(A.rows, A.cols);
  auto lists = program().lists(2 * cuda::Lists::bytes<T*>(1));
  const ConstView<T> factors = A;
  const T* const* matrix = lists.put(std::span<const T* const>(&factors.data, 1));
  T* const* result = lists.put(std::span<T* const>(&inverse.data, 1));
  check(getri(blas(), to_int(A.rows), matrix, leading(A), pivots, result, leading(inverse), room),
        "cublas getriBatched");
  const int info = fetch(static_cast<const int*>(room));
  copy(inverse, A);
  return info == 0;
}

/// The host's: it is asked for in diagnostics and, by the stabiliser of choice, now and then.
template <class T>
void CudaBackend<T>::svd(MatrixView<T> A, std::span<T> sigma, MatrixView<T> left) {
  const auto here = download<T>(A, matrix_on_host_);
  synchronize();
  if (left.empty()) return cpu_->svd(here, sigma, {});
  const auto vectors = host_room(second_on_host_, left.rows, left.cols);
  cpu_->svd(here, sigma, vectors);
  enqueue_copy<T>(vectors, left);
  synchronize();
}

/// The host's, too: X has a few columns.
template <class T>
void CudaBackend<T>::qr(MatrixView<T> X, MatrixView<T> R) {
  const auto here = download<T>(X, matrix_on_host_);
  synchronize();
  const auto triangle = R.empty() ? MatrixView<T>() : host_room(second_on_host_, R.rows, R.cols);
  cpu_->qr(here, triangle);
  enqueue_copy<T>(here, X);
  if (!R.empty()) enqueue_copy<T>(triangle, R);
  synchronize();
}

#define WIDEHEAD_INSTANTIATE(T)                                                            \
  template T CudaBackend<T>::solve_shifted(T, MatrixView<T>, T, MatrixView<T>);            \
  template int CudaBackend<T>::factorize(MatrixView<T>, int*);                             \
  template bool CudaBackend<T>::lu_factorize(MatrixView<T>, MatrixView<int>);              \
  template void CudaBackend<T>::lu_solve(Op, ConstView<T>, ConstView<int>, MatrixView<T>); \
  template bool CudaBackend<T>::invert(MatrixView<T>);                                     \
  template void CudaBackend<T>::svd(MatrixView<T>, std::span<T>, MatrixView<T>);           \
  template void CudaBackend<T>::qr(MatrixView<T>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
