#pragma once
/// The whole boundary between the algorithms and a device: a short list of operations, each of at
/// least O(md) work, so that a virtual call costs nothing and every layer is written once.
///
/// Views passed to a backend point to memory it can reach. Outputs never alias inputs unless the
/// operation says "in place". Nothing here allocates after the first call with a given shape.

#include <memory>
#include <span>
#include <string>

#include "widehead/activation.h"
#include "widehead/adam.h"
#include "widehead/matrix.h"
#include "widehead/sparse_batch.h"

namespace widehead {

enum class Op { none, transpose };

/// One matrix product C (m x n) = op(A) (m x k) · op(B) (k x n), as benchmarks and cost models name it.
struct GemmShape {
  Op op_a;
  Op op_b;
  Size m, n, k;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

template <class T>
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  virtual std::string device() const = 0;  ///< "cpu"
  virtual int threads() const = 0;

  // ── dense products ────────────────────────────────────────────────────────────────────────────
  /// C ← α op(A) op(B) + β C. With β = 0, C is not read.
  virtual void gemm(Op op_a, Op op_b, T alpha, ConstView<T> A, ConstView<T> B, T beta, MatrixView<T> C) = 0;
  /// A ← (A + Aᵀ)/2, in place.
  virtual void symmetrize(MatrixView<T> A) = 0;
  /// C ← Aᵀ.
  virtual void transpose(ConstView<T> A, MatrixView<T> C) = 0;
  /// C ← α A + β B. C may be A or B.
  virtual void add(T alpha, ConstView<T> A, T beta, ConstView<T> B, MatrixView<T> C) = 0;
  /// C ← A.
  virtual void copy(ConstView<T> A, MatrixView<T> C) = 0;
  /// A ← α A, in place.
  virtual void scale(T alpha, MatrixView<T> A) = 0;
  /// C ← α A diag(a) + β B. C may be A or B.
  virtual void add_columns(T alpha, ConstView<T> A, std::span<const T> a, T beta, ConstView<T> B, MatrixView<T> C) = 0;
  /// A ← A diag(a), in place.
  virtual void scale_columns(std::span<const T> a, MatrixView<T> A) = 0;
  /// A ← A + b1ᵀ, in place.
  virtual void add_to_rows(std::span<const T> b, MatrixView<T> A) = 0;
  /// With S = high + low, rounded: low ← (high + low) − S, exactly; high ← S.
  virtual void carry(ConstView<T> S, MatrixView<T> high, MatrixView<T> low) = 0;

  // ── reductions, accumulated in double unless they say otherwise ───────────────────────────────
  /// Σ A∘B = tr(AᵀB).
  virtual double dot(ConstView<T> A, ConstView<T> B) = 0;
  /// out = diag(AᵀB).
  virtual void column_dots(ConstView<T> A, ConstView<T> B, std::span<double> out) = 0;
  /// sums ← sums + A1, squares ← squares + diag(AAᵀ).
  virtual void add_row_moments(ConstView<T> A, std::span<double> sums, std::span<double> squares) = 0;
  /// ‖A‖_F² in T's own precision, fast: not finite where A is not, or where it overflows.
  virtual T rough_squared_norm(ConstView<T> A) = 0;
  /// Position (in A's column-major numbering) of the first value that is NaN or infinite, or −1.
  virtual Size find_non_finite(ConstView<T> A) = 0;

  // ── factorisations ────────────────────────────────────────────────────────────────────────────
  /// X ← X (sI + G)⁻¹; G (m x m) is destroyed. The condition is taken at the scale |s| + ‖G‖₁, so
  /// that a sum which cancels to rounding noise counts as singular (also for m = 1). Returns its
  /// reciprocal; when that is below `limit`, X is left as it was.
  virtual T solve_shifted(T s, MatrixView<T> G, T limit, MatrixView<T> X) = 0;
  /// A ← its LU factors, in place, with the row exchanges in pivots (A.rows of them). False when A is
  /// exactly singular, and then there are no factors.
  virtual bool lu_factorize(MatrixView<T> A, std::span<int> pivots) = 0;
  /// X ← op(A)⁻¹ X from the factors of A.
  virtual void lu_solve(Op op, ConstView<T> factors, std::span<const int> pivots, MatrixView<T> X) = 0;
  /// A ← A⁻¹, in place. False when A is exactly singular, and then A is lost.
  virtual bool invert(MatrixView<T> A) = 0;
  /// Singular values of A in decreasing order and, unless `left` is empty, its left singular
  /// vectors as columns; A is destroyed.
  virtual void svd(MatrixView<T> A, std::span<T> sigma, MatrixView<T> left) = 0;

  /// X = Q̃ R (X: d x r, r ≤ d): X ← Q̃ with orthonormal columns, R (r x r) upper triangular unless empty.
  virtual void qr(MatrixView<T> X, MatrixView<T> R) = 0;

  // ── sparse targets against the rows of V (held as d x D) ──────────────────────────────────────
  /// Z ← the given rows of V (d x rows).
  virtual void select(ConstView<T> V, std::span<const Index> rows, MatrixView<T> Z) = 0;
  /// G ← VᵀY (d x m): column j is the sum of the rows of V that example j names, times its values.
  virtual void gather(ConstView<T> V, const SparseBatch<T>& Y, MatrixView<T> G) = 0;
  /// G ← G + Z Y (d x m), column g of Z standing for the output of group g: the same from gathered rows.
  virtual void add_combination(ConstView<T> Z, const RowGroups<T>& Y, MatrixView<T> G) = 0;
  /// out[e] = z_g · x_j for every entry e = (output of group g, example j) of Y: ZᵀX where Y has values.
  virtual void dots_at(ConstView<T> Z, const RowGroups<T>& Y, ConstView<T> X, std::span<double> out) = 0;
  /// V ← V + α Y Xᵀ (X: d x m): only the rows that Y names.
  virtual void scatter(T alpha, const RowGroups<T>& Y, ConstView<T> X, MatrixView<T> V) = 0;
  /// M ← M + YᵀY (m x m): only pairs of examples that share an output.
  virtual void add_gram(const RowGroups<T>& Y, MatrixView<T> M) = 0;

  // ── what is below the output layer ────────────────────────────────────────────────────────────
  /// A ← s(A + b1ᵀ), in place; an empty b is zero.
  virtual void activate(Activation s, std::span<const T> b, MatrixView<T> A) = 0;
  /// G ← G ∘ s′, in place, with s′ expressed by the activations A = s(…).
  virtual void activate_backward(Activation s, ConstView<T> A, MatrixView<T> G) = 0;
  /// out ← A1, the sum of A's columns, in T.
  virtual void sum_columns(ConstView<T> A, std::span<T> out) = 0;
  /// Z ← X Yᵀ for the outputs that Y names (d x groups): what scatter adds to each row, by itself.
  virtual void combine(const RowGroups<T>& Y, ConstView<T> X, MatrixView<T> Z) = 0;
  /// One step of Adam (adam.h) on the columns of P named by `columns`, column k of G being the gradient of P's
  /// column columns[k]; no names mean all columns in order. M and S are the moments, shaped like P.
  virtual void adam(const AdamStep& step, std::span<const Index> columns, ConstView<T> G, MatrixView<T> P,
                    MatrixView<T> M, MatrixView<T> S) = 0;

  // ── whole-matrix operations on V, O(D) ────────────────────────────────────────────────────────
  /// V ← V ∏ₖ (I + βₖ uₖ uₖᵀ), uₖ the columns of `u`, in one pass over V.
  virtual void apply_rank_ones(ConstView<T> u, std::span<const T> beta, MatrixView<T> V) = 0;

  /// Rows of V that are best treated at once when streaming through all D of them.
  virtual Size rows_per_block(Size dim) const = 0;
};

/// Dense linear algebra on the CPU: oneDNN's or the BLAS's GEMM, LAPACK, OpenMP.
/// @param threads  1 or more; 0 means one per available core.
template <class T>
std::shared_ptr<Backend<T>> make_cpu_backend(int threads = 0);

}  // namespace widehead
