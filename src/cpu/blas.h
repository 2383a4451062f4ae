#pragma once
/// The vendors' linear algebra, on one thread: the only room that knows which library does the work.
/// Single precision products go to oneDNN where the build found it, everything else to the BLAS and
/// LAPACK that CMake found (BLA_VENDOR chooses).

#include <span>
#include <string>
#include <vector>

#include "widehead/backend.h"

namespace widehead::blas {

/// Makes vendor threads stand back (all parallelism is OpenMP's, above these calls) and, where
/// OpenBLAS did not recognise the CPU and took slow kernels, switches it to fast ones. Idempotent.
void initialize();

template <class T>
void gemm(Op op_a, Op op_b, T alpha, MatrixView<const T> A, MatrixView<const T> B, T beta, MatrixView<T> C);

/// B ← B A⁻¹ with A's triangle (`uplo` 'U' or 'L', unit diagonal if `unit`).
template <class T>
void trsm_right(char uplo, bool unit, MatrixView<const T> A, MatrixView<T> B);
/// The triangles of an LU: the lower one has a diagonal of ones that is not stored.
enum class Triangle { unit_lower, upper };
/// B ← op(A)⁻¹ B with one of A's triangles.
template <class T>
void trsm_left(Triangle kind, Op op, MatrixView<const T> A, MatrixView<T> B);

/// LU factors of A in place; returns LAPACK's info (> 0: exactly singular).
template <class T>
int getrf(MatrixView<T> A, std::span<int> pivots);
/// Reciprocal condition number in the 1-norm of the matrix whose LU factors are in A.
template <class T>
T gecon(MatrixView<const T> A, T norm, std::span<T> work, std::span<int> iwork);
/// Householder QR of A in place, and its Q̃ from that.
template <class T>
void geqrf(MatrixView<T> A, std::span<T> tau, std::span<T> work);
template <class T>
void orgqr(MatrixView<T> A, std::span<const T> tau, std::span<T> work);
/// A ← A⁻¹ from A's LU factors.
template <class T>
int getri(MatrixView<T> A, std::span<const int> pivots, std::span<T> work);
/// Room that svd works in, kept between calls.
template <class T>
struct SvdRoom {
  std::vector<T> right, work;
  std::vector<int> iwork;
};
/// Singular values of A and (unless empty) left vectors; A is destroyed. Returns LAPACK's info.
template <class T>
int svd(MatrixView<T> A, std::span<T> sigma, MatrixView<T> left, SvdRoom<T>& room);

struct Description {
  std::string sgemm_library;  ///< who multiplies float matrices
  std::string blas_library;   ///< who does double products and LAPACK
  std::string kernels;        ///< the kernel set the BLAS runs on, where it tells
  std::string warning;        ///< non-empty when the BLAS runs on slow kernels
};
Description describe();

}  // namespace widehead::blas
