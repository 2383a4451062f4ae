#pragma once
/// Backend on the CPU. All threads are OpenMP's: a product is cut into stripes, one per thread, and
/// each stripe is a single-threaded vendor call, so vendor threads and ours never compete.

#include <utility>
#include <vector>

#include "../judge.h"
#include "blas.h"
#include "widehead/backend.h"

namespace widehead {

template <class T>
class CpuBackend : public Backend<T> {  // tests derive one that enqueues
 public:
  explicit CpuBackend(int threads);

  std::string device() const override { return "cpu"; }
  int threads() const override { return threads_; }
  void wait() override {}
  void side_by_side(const std::function<void()>& first, const std::function<void()>& second) override;
  void share(Size extent, Size granule, double flops, const std::function<void(Size, Size)>& work,
             const std::function<void()>& task) override;

  Memory& memory() override { return Memory::host(); }
  bool can_reach(const void*) const override { return true; }
  void transfer_bytes(const void* from, std::size_t from_stride, void* to, std::size_t to_stride, std::size_t width,
                      std::size_t count) override;

  void gemm(Op op_a, Op op_b, T alpha, ConstView<T> A, ConstView<T> B, T beta, MatrixView<T> C) override;
  void symmetrize(MatrixView<T> A) override;
  void transpose(ConstView<T> A, MatrixView<T> C) override;
  void add(T alpha, ConstView<T> A, T beta, ConstView<T> B, MatrixView<T> C) override;
  void copy(ConstView<T> A, MatrixView<T> C) override;
  void clear(MatrixView<T> A) override;
  void clear_in_double(MatrixView<double> A) override;
  void set_identity(MatrixView<T> A) override;
  void scale(T alpha, MatrixView<T> A) override;
  void add_columns(T alpha, ConstView<T> A, ConstView<T> a, T beta, ConstView<T> B, MatrixView<T> C) override;
  void scale_columns(ConstView<T> a, MatrixView<T> A) override;
  void add_to_rows(ConstView<T> b, MatrixView<T> A) override;
  void carry(ConstView<T> S, MatrixView<T> high, MatrixView<T> low) override;
  void carry_over(MatrixView<T> low, MatrixView<T> S) override;
  void multiply_in_double(Op op_a, ConstView<T> A, ConstView<double> B, double beta, ConstView<double> X,
                          MatrixView<double> C) override;
  void round(ConstView<double> A, MatrixView<T> C) override;

  double dot(ConstView<T> A, ConstView<T> B) override;
  void column_dots(ConstView<T> A, ConstView<T> B, MatrixView<double> out) override;
  void add_row_moments(ConstView<T> A, MatrixView<double> sums, MatrixView<double> squares) override;
  void squared_norm(ConstView<T> A, double beta, MatrixView<double> out) override;
  T rough_squared_norm(ConstView<T> A) override;
  Size find_non_finite(ConstView<T> A) override;

  bool factorizes_fast() const override { return true; }
  T solve_shifted(T s, MatrixView<T> G, T limit, MatrixView<T> X) override;
  bool lu_factorize(MatrixView<T> A, MatrixView<int> pivots) override;
  void lu_solve(Op op, ConstView<T> factors, ConstView<int> pivots, MatrixView<T> X) override;
  bool invert(MatrixView<T> A) override;
  void svd(MatrixView<T> A, std::span<T> sigma, MatrixView<T> left) override;
  void qr(MatrixView<T> X, MatrixView<T> R) override;

  void move_columns(ConstView<T> A, std::span<const Index> from, std::span<const Index> to, MatrixView<T> C) override;
  void clear_starts(std::span<const Index> counts, MatrixView<T> A) override;
  void gather(ConstView<T> V, const SparseBatch<T>& Y, MatrixView<T> G) override;
  void gather(ConstView<T> V, const Selection& Y, ConstView<T> values, MatrixView<T> G) override;

  void add_combination(ConstView<T> Z, const RowGroups<T>& Y, ConstView<T> values, MatrixView<T> G) override;
  void dots_at(ConstView<T> Z, const RowGroups<T>& Y, ConstView<T> X, double beta, MatrixView<double> out) override;
  void add_by_example(ConstView<double> t, const RowGroups<T>& Y, MatrixView<double> out) override;
  void scatter(T alpha, const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X, MatrixView<T> V) override;
  void gram(const RowGroups<T>& Y, ConstView<T> values, MatrixView<T> M) override;
  void read_at(ConstView<T> O, Size first, const RowGroups<T>& Y, MatrixView<double> out) override;
  void add_at(const RowGroups<T>& Y, ConstView<T> values, Size first, MatrixView<T> O) override;

  Verdict judge(const Loss& loss, Size outputs, const RowGroups<T>& Y, std::span<const T> weights,
                const Judged<T>& x) override;
  void judge_later(const Loss& loss, Size outputs, const RowGroups<T>& Y, std::span<const T> weights,
                   const Judged<T>& x, MatrixView<double> ledger) override;
  void common_factors(double eta, Size outputs, ConstView<T> a, ConstView<T> b, ConstView<T> gamma,
                      ConstView<double> ts, MatrixView<double> factors, MatrixView<T> v) override;
  void exponentiate_rows(MatrixView<T> A, MatrixView<T> maxima, MatrixView<double> sums) override;
  void exponentiate_columns(MatrixView<T> A, MatrixView<T> maxima, MatrixView<double> sums) override;
  void scale_rows(ConstView<T> a, MatrixView<T> A) override;

  bool takes_parts_at_once() const override { return false; }
  void part_logits(const SoftmaxParts<T>& parts, PartRange range, ConstView<T> W, ConstView<T> H,
                   MatrixView<T> E) override;
  void part_softmax(const SoftmaxParts<T>& parts, PartRange range, MatrixView<T> E,
                    const PartStatistics<T>& out) override;
  void part_backward(const SoftmaxParts<T>& parts, PartRange range, MatrixView<T> E, ConstView<double> sums,
                     ConstView<T> H, T eta, MatrixView<T> W, MatrixView<T> G) override;
  void add_part_loss(const SoftmaxParts<T>& parts, const PartStatistics<T>& of, MatrixView<double> total) override;
  void log_softmax_columns(ConstView<T> b, MatrixView<T> A) override;

  void activate(Activation s, ConstView<T> b, MatrixView<T> A) override;
  void activate_backward(Activation s, ConstView<T> A, MatrixView<T> G) override;
  void sum_columns(ConstView<T> A, MatrixView<T> out) override;
  void combine(const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X, MatrixView<T> Z) override;
  void combine_own(const RowGroups<T>& Y, ConstView<T> X, MatrixView<T> Z) override {
    combine(Y, MatrixView<const T>(Y.values().data(), Y.nonzeros(), 1), X, Z);
  }
  void limit_norm(ConstView<double> n, double limit, MatrixView<T> A) override;
  void add_to_columns(T alpha, ConstView<T> G, std::span<const Index> columns, MatrixView<T> P) override;
  void adam(const AdamStep& step, std::span<const Index> columns, ConstView<T> G, MatrixView<T> P, MatrixView<T> M,
            MatrixView<T> S) override;

  void split_gradient(ConstView<T> a, ConstView<T> Gamma_hat, T c, MatrixView<T> H_hat, MatrixView<T> grad,
                      MatrixView<T> C) override;
  void split_gradient_at_targets(ConstView<T> a, ConstView<T> Z, ConstView<T> sums, const RowGroups<T>& Y,
                                 ConstView<T> values, MatrixView<T> Gamma_hat, T c, MatrixView<T> H_hat,
                                 MatrixView<T> grad, MatrixView<T> C) override;
  void add_combined(T alpha, const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X, std::span<const Index> columns,
                    Size known, MatrixView<T> Z, MatrixView<T> P) override;
  void finish_stack(T eta, ConstView<T> H, ConstView<T> high, MatrixView<T> low, MatrixView<T> S,
                    MatrixView<T> E) override;
  void commit_stack_by_rows(T eta, ConstView<T> H, ConstView<T> H_T, ConstView<T> P, ConstView<T> UEH_T,
                            MatrixView<T> low, MatrixView<T> S) override;
  void commit_rows(T eta, ConstView<T> H, ConstView<T> UH_T, MatrixView<T> low, MatrixView<T> S) override;

  void apply_rank_ones(ConstView<T> u, ConstView<T> beta, MatrixView<T> V) override;
  Size rows_per_block(Size dim) const override;

 private:
  void reserve_work(Size n);
  /// Threads worth waking for a pass over so many elements.
  int team_for(Size elements) const;

  int threads_;
  std::vector<double> partial_sums_;  // one per thread
  std::vector<int> pivots_;           // of the last factorisation
  std::vector<int> iwork_;
  std::vector<std::pair<Size, Size>> exchanges_;  // of rows, in a solve
  std::vector<T> work_;
  std::vector<T> qr_work_;
  JudgeRoom judge_room_;
  blas::SvdRoom<T> svd_room_;
  Matrix<T> activation_room_;  // a column for each thread
  Matrix<T> softmax_room_;     // log_softmax_columns: the exponentials
  std::vector<T> maxima_;      // the same
  std::vector<double> sums_;   // the same
};

}  // namespace widehead
