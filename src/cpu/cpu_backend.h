#pragma once
/// Backend on the CPU. All threads are OpenMP's: a product is cut into stripes, one per thread, and
/// each stripe is a single-threaded vendor call, so vendor threads and ours never compete.

#include <vector>

#include "blas.h"
#include "widehead/backend.h"

namespace widehead {

template <class T>
class CpuBackend final : public Backend<T> {
 public:
  explicit CpuBackend(int threads);

  std::string device() const override { return "cpu"; }
  int threads() const override { return threads_; }

  void gemm(Op op_a, Op op_b, T alpha, ConstView<T> A, ConstView<T> B, T beta, MatrixView<T> C) override;
  void symmetrize(MatrixView<T> A) override;
  void transpose(ConstView<T> A, MatrixView<T> C) override;
  void add(T alpha, ConstView<T> A, T beta, ConstView<T> B, MatrixView<T> C) override;
  void copy(ConstView<T> A, MatrixView<T> C) override;
  void scale(T alpha, MatrixView<T> A) override;
  void add_columns(T alpha, ConstView<T> A, std::span<const T> a, T beta, ConstView<T> B, MatrixView<T> C) override;
  void scale_columns(std::span<const T> a, MatrixView<T> A) override;
  void add_to_rows(std::span<const T> b, MatrixView<T> A) override;
  void carry(ConstView<T> S, MatrixView<T> high, MatrixView<T> low) override;

  double dot(ConstView<T> A, ConstView<T> B) override;
  void column_dots(ConstView<T> A, ConstView<T> B, std::span<double> out) override;
  void add_row_moments(ConstView<T> A, std::span<double> sums, std::span<double> squares) override;
  T rough_squared_norm(ConstView<T> A) override;
  Size find_non_finite(ConstView<T> A) override;

  T solve_shifted(T s, MatrixView<T> G, T limit, MatrixView<T> X) override;
  bool lu_factorize(MatrixView<T> A, std::span<int> pivots) override;
  void lu_solve(Op op, ConstView<T> factors, std::span<const int> pivots, MatrixView<T> X) override;
  bool invert(MatrixView<T> A) override;
  void svd(MatrixView<T> A, std::span<T> sigma, MatrixView<T> left) override;
  void qr(MatrixView<T> X, MatrixView<T> R) override;

  void select(ConstView<T> V, std::span<const Index> rows, MatrixView<T> Z) override;
  void gather(ConstView<T> V, const SparseBatch<T>& Y, MatrixView<T> G) override;
  void add_combination(ConstView<T> Z, const RowGroups<T>& Y, MatrixView<T> G) override;
  void dots_at(ConstView<T> Z, const RowGroups<T>& Y, ConstView<T> X, std::span<double> out) override;
  void scatter(T alpha, const RowGroups<T>& Y, ConstView<T> X, MatrixView<T> V) override;
  void add_gram(const RowGroups<T>& Y, MatrixView<T> M) override;

  void activate(Activation s, std::span<const T> b, MatrixView<T> A) override;
  void activate_backward(Activation s, ConstView<T> A, MatrixView<T> G) override;
  void sum_columns(ConstView<T> A, std::span<T> out) override;
  void combine(const RowGroups<T>& Y, ConstView<T> X, MatrixView<T> Z) override;
  void adam(const AdamStep& step, std::span<const Index> columns, ConstView<T> G, MatrixView<T> P, MatrixView<T> M,
            MatrixView<T> S) override;

  void apply_rank_ones(ConstView<T> u, std::span<const T> beta, MatrixView<T> V) override;
  Size rows_per_block(Size dim) const override;

 private:
  void reserve_work(Size n);
  /// Threads worth waking for a pass over so many elements.
  int team_for(Size elements) const;

  int threads_;
  std::vector<double> partial_sums_;  // one per thread
  std::vector<int> pivots_;           // of the last factorisation
  std::vector<int> iwork_;
  std::vector<T> work_;
  std::vector<T> qr_work_;
  blas::SvdRoom<T> svd_room_;
  Matrix<T> activation_room_;  // a column for each thread
};

}  // namespace widehead
