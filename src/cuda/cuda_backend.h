#pragma once
/// Backend on an NVIDIA GPU: cuBLAS for large products, our own kernels for the rest, all on one stream. What a step
/// is made of is written down and done by one kernel (program.h); all else is launched by itself, after what has been
/// written so far. The host waits only where an operation returns a number. What is rare and small (singular values,
/// QR, the LU of solve_shifted) is done by the host's LAPACK.

#include <vector>

#include "../judge.h"
#include "context.h"
#include "instructions.h"
#include "parts.h"
#include "pattern.h"
#include "widehead/backend.h"

namespace widehead {

template <class T>
class CudaBackend final : public Backend<T> {
 public:
  explicit CudaBackend(const CudaOptions& options);
  ~CudaBackend() override;

  std::string device() const override;
  int threads() const override { return 1; }
  void wait() override { synchronize(); }
  void submit() override {
    context_->program.start();
    context_->program.hurry();
  }
  /// The stream for a launch, after all that was written down; on a thread whose current device is this one. Lists must
  /// be complete by then.
  cudaStream_t stream() const {
    context_->device.make_current();
    context_->program.start();
    return context_->stream.get();
  }

  Memory& memory() override { return context_->memory; }
  Memory& column_memory() override { return context_->columns; }
  std::size_t free_memory() const override;
  bool can_reach(const void* address) const override;
  void transfer_bytes(const void* from, std::size_t from_stride, void* to, std::size_t to_stride, std::size_t width,
                      std::size_t count) override;
  std::unique_ptr<Readback> make_readback() override;
  std::unique_ptr<Stopwatch> make_stopwatch() override;

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
  void multiply_in_double(Op op_a, ConstView<T> A, ConstView<double> B, double beta, ConstView<double> X,
                          MatrixView<double> C) override;
  void round(ConstView<double> A, MatrixView<T> C) override;

  double dot(ConstView<T> A, ConstView<T> B) override;
  void column_dots(ConstView<T> A, ConstView<T> B, MatrixView<double> out) override;
  void add_row_moments(ConstView<T> A, MatrixView<double> sums, MatrixView<double> squares) override;
  void squared_norm(ConstView<T> A, double beta, MatrixView<double> out) override;
  T rough_squared_norm(ConstView<T> A) override;
  Size find_non_finite(ConstView<T> A) override;

  bool factorizes_fast() const override { return false; }
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

  bool takes_parts_at_once() const override { return true; }
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
  void combine_own(const RowGroups<T>& Y, ConstView<T> X, MatrixView<T> Z) override;
  void limit_norm(ConstView<double> n, double limit, MatrixView<T> A) override;
  void add_to_columns(T alpha, ConstView<T> G, std::span<const Index> columns, MatrixView<T> P) override;
  void adam(const AdamStep& step, std::span<const Index> columns, ConstView<T> G, MatrixView<T> P, MatrixView<T> M,
            MatrixView<T> S) override;

  void express_columns(ConstView<T> V, std::span<const Index> rows, ConstView<T> matrices,
                       std::span<const Index> matrix, bool adds, MatrixView<T> Z) override;
  void observe_targets(ConstView<T> H, ConstView<T> H_hat, ConstView<T> UH, ConstView<T> Z, ConstView<T> sums,
                       const RowGroups<T>& Y, MatrixView<double> q, MatrixView<double> o) override;
  void combine_targets(ConstView<T> Z, ConstView<T> sums, const RowGroups<T>& Y, ConstView<T> values, MatrixView<T> G,
                       MatrixView<T> F) override;
  void split_gradient(ConstView<T> a, ConstView<T> Gamma_hat, T c, MatrixView<T> H_hat, MatrixView<T> grad,
                      MatrixView<T> C) override;
  bool overlaps(const GemmShape& product) const override { return is_small(product.m, product.n, product.k); }
  void add_products(T alpha, ConstView<T> A, ConstView<T> B, ConstView<T> F, ConstView<T> G, MatrixView<T> C) override;
  void finish_stack(T eta, ConstView<T> H, ConstView<T> high, MatrixView<T> low, MatrixView<T> S,
                    MatrixView<T> E) override;
  void add_with_gram(T alpha, ConstView<T> A, ConstView<T> B, ConstView<T> H, const RowGroups<T>& Y,
                     ConstView<T> values, MatrixView<T> N, MatrixView<T> C) override;
  void commit_stack(T eta, ConstView<T> H, ConstView<T> SH, ConstView<T> high, MatrixView<T> low,
                    MatrixView<T> S) override;

  void apply_rank_ones(ConstView<T> u, ConstView<T> beta, MatrixView<T> V) override;
  Size rows_per_block(Size dim) const override;

 private:
  cublasHandle_t blas() {
    stream();
    return blas_.get();
  }
  cuda::Program& program() { return context_->program; }
  /// Something element by element: rows and columns of it, with the sizes of what it reads and writes.
  void write_down(cuda::Elements<T> elements, std::initializer_list<cuda::Range> reads,
                  std::initializer_list<cuda::Range> writes) {
    if (elements.rows > 0 && elements.cols > 0) {
      elements.turns = cuda::element_turns(elements.rows, elements.cols);
      program().add(cuda::Kind::elements, cuda::element_tiles(elements.rows, elements.cols), elements, reads, writes,
                    {elements.turns == 1 ? 0.8F : 2});
    }
  }
  /// The same for columns that are sums of columns, of so many at most or so.
  void write_down(const cuda::SumColumns<T>& sums, Size columns, std::initializer_list<cuda::Range> reads,
                  std::initializer_list<cuda::Range> writes, Size most_terms = 8) {
    if (sums.rows > 0) {
      program().add(cuda::Kind::sum_columns, cuda::sum_tiles(columns, sums.rows), sums, reads, writes,
                    {1.3F, most_terms <= 4 ? 1.3F : 2.5F + static_cast<float>(std::min<Size>(most_terms, 256)) / 25});
    }
  }
  void synchronize() const {
    cuda::check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    context_->program.hurry();
  }
  /// A list of the host's on the device, for the next instruction or launch.
  template <class U>
  const U* send(std::span<const U> list);
  /// A value that the device has come to, once it has.
  template <class U>
  U fetch(const U* value);
  /// to ← from, in the order of the stream; what is the host's is pinned.
  template <class U>
  void enqueue_copy(MatrixView<const U> from, MatrixView<U> to);
  void copy_pieces(const void* from, std::size_t from_stride, void* to, std::size_t to_stride, std::size_t width,
                   std::size_t count);
  /// Pinned room of the host's, nobody being at work on what is given up when it grows.
  template <class U>
  MatrixView<U> host_room(Matrix<U>& room, Size rows, Size cols);
  /// A on the host, in such room.
  template <class U>
  MatrixView<U> download(MatrixView<const U> A, Matrix<U>& room);
  /// The mirror of Y, which is brought up to date first: for the next instruction or launch.
  const cuda::Pattern<T>& pattern(const RowGroups<T>& Y);
  /// The mirror of these lists, likewise.
  const cuda::PartsCopy<T>& mirror(const SoftmaxParts<T>& parts);
  const cuda::Summary* enqueue_judgement(const Loss& loss, Size outputs, const RowGroups<T>& Y,
                                         std::span<const T> weights, const Judged<T>& x, double* ledger);
  /// How many numbers of scratch_ a judgement takes.
  static std::size_t judging_room(const RowGroups<T>& Y) {
    return 3 * static_cast<std::size_t>(Y.nonzeros()) + 6 * static_cast<std::size_t>(Y.examples()) +
           sizeof(cuda::Summary) / sizeof(double);
  }
  Verdict judge_by_the_host(const Loss& loss, Size outputs, const RowGroups<T>& Y, std::span<const T> weights,
                            const Judged<T>& x);
  /// LU in place; 0, or where the first pivot is that is zero.
  int factorize(MatrixView<T> A, int* pivots);
  /// A product as an instruction.
  cuda::Multiply product(Op op_a, Op op_b, T alpha, ConstView<T> A, ConstView<T> B, T beta, MatrixView<T> C) const;
  void write_down(const cuda::Multiply& product, std::initializer_list<cuda::Range> reads,
                  std::initializer_list<cuda::Range> writes);
  bool add_to_product(cuda::After after, Activation s, ConstView<T> y, MatrixView<T> C);
  /// To which another is added, of matrices that lie as its own do, not transposed.
  void add_product(cuda::Multiply& product, ConstView<T> A, ConstView<T> B) const;
  /// After which sum ← high + C.
  void write_sum(cuda::Multiply& product, ConstView<T> high, MatrixView<T> sum) const;
  bool is_small(Size rows, Size cols, Size depth) const;
  /// Whether 16 bytes at a time are possible, and leave nothing over.
  static bool is_wide(ConstView<T> X) {
    return reinterpret_cast<std::uintptr_t>(X.data) % 16 == 0 && X.rows % 4 == 0 && (X.stride % 4 == 0 || X.cols == 1);
  }

  std::shared_ptr<cuda::Context> context_;
  bool tf32_;
  cuda::Blas blas_;
  cuda::Buffer scratch_;             ///< of the operation at work
  cuda::Buffer answer_;              ///< pinned, for fetch
  std::shared_ptr<Backend<T>> cpu_;  ///< for what the host does

  Matrix<T> matrix_on_host_, second_on_host_;                    // factorisations
  std::vector<T> work_;                                          // the same
  std::vector<int> pivots_, iwork_;                              // the same
  std::vector<Index> origin_;                                    // the same
  Matrix<T> exchanged_;                                          // on the device: X with its columns exchanged; A⁻¹
  Matrix<double> q_on_host_, s_on_host_, o_on_host_;             // a loss of the host's
  Matrix<T> a_on_host_, b_on_host_, gamma_on_host_, g_on_host_;  // the same
  JudgeRoom judge_room_;
  cuda::Program::Mark judging_;          ///< the last instruction that observed and judged
  std::vector<Index> by_matrix_, ends_;  // express_columns: columns in order of their matrices, and where each ends
};

template <class T>
template <class U>
const U* CudaBackend<T>::send(std::span<const U> list) {
  return program().lists(cuda::Lists::bytes<U>(list.size())).put(list);
}

template <class T>
template <class U>
U CudaBackend<T>::fetch(const U* value) {
  U* answer = answer_.room<U>(1);
  cuda::check(cudaMemcpyAsync(answer, value, sizeof(U), cudaMemcpyDeviceToHost, stream()), "cudaMemcpyAsync");
  synchronize();
  return *answer;
}

template <class T>
template <class U>
void CudaBackend<T>::enqueue_copy(MatrixView<const U> from, MatrixView<U> to) {
  copy_pieces(from.data, static_cast<std::size_t>(from.stride) * sizeof(U), to.data,
              static_cast<std::size_t>(to.stride) * sizeof(U), static_cast<std::size_t>(to.rows) * sizeof(U),
              static_cast<std::size_t>(to.cols));
}

template <class T>
template <class U>
MatrixView<U> CudaBackend<T>::host_room(Matrix<U>& room, Size rows, Size cols) {
  if (rows * cols > room.size()) synchronize();
  return room.scratch(rows, cols);
}

template <class T>
template <class U>
MatrixView<U> CudaBackend<T>::download(MatrixView<const U> A, Matrix<U>& room) {
  const auto copy = host_room(room, A.rows, A.cols);
  enqueue_copy<U>(A, copy);
  return copy;
}

}  // namespace widehead
