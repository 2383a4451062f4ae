#pragma once
/// The whole boundary between the algorithms and a device: a short list of operations, each of at
/// least O(md) work, so that a virtual call costs nothing and every layer is written once.
///
/// Views passed to a backend point to its memory(); spans and sparse patterns are the host's on every device. Vectors
/// are views of one column. Outputs never alias inputs unless the operation says "in place". Nothing here allocates
/// after the first call with a given shape.
///
/// A device may still be at work when an operation returns, or may not have begun, and does them in order; what returns
/// a number, or `transfer`s it, waits.

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "widehead/activation.h"
#include "widehead/adam.h"
#include "widehead/loss.h"
#include "widehead/matrix.h"
#include "widehead/softmax_parts.h"
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

/// Which columns are added up, with which of some values: what column j of a result is the sum of stands at
/// offsets[j] … offsets[j+1] − 1.
struct Selection {
  std::span<const std::int64_t> offsets;
  std::span<const Index> columns;
  std::span<const Index> entries;  ///< positions among the values
};

/// What a loss depends on, and what it answers, for a minibatch.
template <class T>
struct Judged {
  ConstView<double> q, s;     ///< m; s is read where the loss uses it
  ConstView<double> o;        ///< outputs at the targets, by entry of the RowGroups
  MatrixView<T> a, b, gamma;  ///< m: ∂L/∂q, ∂L/∂s, γ = Γᵀ1
  MatrixView<T> g;            ///< ∂L/∂o by entry: the values of Γ
};
struct Verdict {
  double L = 0;           ///< summed over the minibatch
  double largest_a = 0;   ///< in magnitude
  bool a_is_one = false;  ///< a is 1 for all examples; where nobody has looked, false
  Size bad = -1;          ///< the first example with something not finite, and then:
  LossValue at_bad = {};
};

/// Numbers on their way from a device to the host, which does not wait for them until it wants them.
class Readback {
 public:
  Readback() = default;
  Readback(const Readback&) = delete;
  Readback& operator=(const Readback&) = delete;
  virtual ~Readback() = default;

  /// Sends `values` (n x 1), as they are when the device has come to this.
  virtual void send(ConstView<double> values) = 0;
  /// What was sent last, once it is there; valid until the next is. Later work is not waited for.
  virtual std::span<const double> receive() = 0;
};

/// When a device came to certain points of what it was asked for; the host does not wait until it wants to know.
class Stopwatch {
 public:
  Stopwatch() = default;
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  virtual ~Stopwatch() = default;

  /// The next point: all that was asked for so far is done.
  virtual void mark() = 0;
  /// Seconds from each point to the next, once the last has been reached. The points are forgotten then.
  virtual std::vector<double> take_laps() = 0;
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

  /// Returns when all that was asked for so far is done.
  virtual void wait() = 0;
  /// All that was asked for so far begins now, if it has not: a device may put off what is better done together.
  virtual void submit() {}
  /// Does both, at the same time where there are threads for it: neither may need what the other writes, and only one
  /// of them may ask for factorisations.
  virtual void side_by_side(const std::function<void()>& first, const std::function<void()>& second) {
    first();
    second();
  }
  /// work(first, count) for pieces that make up [0, extent), which start at multiples of `granule`, and task() once:
  /// two things that do not depend on each other. Who has threads lets one begin with the task, all others with
  /// pieces; which pieces there are does not depend on who is faster. Calls from within stay on their thread.
  /// @param flops  of all pieces: few are not worth a second thread
  virtual void share(Size extent, [[maybe_unused]] Size granule, [[maybe_unused]] double flops,
                     const std::function<void(Size, Size)>& work, const std::function<void()>& task) {
    task();
    work(0, extent);
  }
  /// Whether a product of this shape is done beside others that it does not need, and they beside it: a few more
  /// products then cost less than one that waits for another.
  virtual bool overlaps(const GemmShape&) const { return false; }

  // ── memory ────────────────────────────────────────────────────────────────────────────────────
  virtual Memory& memory() = 0;
  /// Memory of the host's that `move_columns`, and of all operations that one alone, may be given as well: what a
  /// device has no room for, and fetches from there by columns. memory() itself where that is the host's.
  virtual Memory& column_memory() { return memory(); }
  /// Bytes of memory() that are still to be had; where nobody knows, more than there are.
  virtual std::size_t free_memory() const { return std::numeric_limits<std::size_t>::max(); }
  /// Whether operations may be given this address.
  virtual bool can_reach(const void* address) const = 0;
  /// `count` pieces of `width` bytes, in either memory, copied when it returns.
  virtual void transfer_bytes(const void* from, std::size_t from_stride, void* to, std::size_t to_stride,
                              std::size_t width, std::size_t count) = 0;
  /// to ← from, each in either memory.
  template <class U>
  void transfer(MatrixView<const U> from, MatrixView<U> to) {
    transfer_bytes(from.data, static_cast<std::size_t>(from.stride) * sizeof(U), to.data,
                   static_cast<std::size_t>(to.stride) * sizeof(U), static_cast<std::size_t>(to.rows) * sizeof(U),
                   static_cast<std::size_t>(to.cols));
  }
  /// A itself where operations can be given it, else a copy in `room`, which is of this memory.
  template <class U>
  MatrixView<const U> reach(MatrixView<const U> A, Matrix<U>& room) {
    if (can_reach(A.data)) return A;
    const auto copy = room.scratch(A.rows, A.cols);
    transfer<U>(A, copy);
    return copy;
  }
  template <class U>
  MatrixView<const U> reach(std::span<const U> values, Matrix<U>& room) {
    return reach<U>(MatrixView<const U>(values.data(), static_cast<Size>(values.size()), 1), room);
  }
  /// For numbers of memory(), each on its way by itself.
  virtual std::unique_ptr<Readback> make_readback();
  virtual std::unique_ptr<Stopwatch> make_stopwatch();

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
  /// A ← 0, whatever it held.
  virtual void clear(MatrixView<T> A) = 0;
  virtual void clear_in_double(MatrixView<double> A) = 0;
  /// A ← I.
  virtual void set_identity(MatrixView<T> A) = 0;
  /// A ← α A, in place.
  virtual void scale(T alpha, MatrixView<T> A) = 0;
  /// C ← α A diag(a) + β B. C may be A or B.
  virtual void add_columns(T alpha, ConstView<T> A, ConstView<T> a, T beta, ConstView<T> B, MatrixView<T> C) = 0;
  /// A ← A diag(a), in place.
  virtual void scale_columns(ConstView<T> a, MatrixView<T> A) = 0;
  /// A ← A + b1ᵀ, in place.
  virtual void add_to_rows(ConstView<T> b, MatrixView<T> A) = 0;
  /// With S = high + low, rounded: low ← (high + low) − S, exactly; high ← S.
  virtual void carry(ConstView<T> S, MatrixView<T> high, MatrixView<T> low) = 0;
  /// S ← S + low, rounded; low ← what that leaves over, exactly.
  virtual void carry_over(MatrixView<T> low, MatrixView<T> S);
  /// C ← op(A) B + β X, all but A in double: for a few columns that must not round. With β = 0, X is not read.
  virtual void multiply_in_double(Op op_a, ConstView<T> A, ConstView<double> B, double beta, ConstView<double> X,
                                  MatrixView<double> C) = 0;
  /// C ← A, rounded.
  virtual void round(ConstView<double> A, MatrixView<T> C) = 0;

  // ── reductions, accumulated in double unless they say otherwise ───────────────────────────────
  /// Σ A∘B = tr(AᵀB).
  virtual double dot(ConstView<T> A, ConstView<T> B) = 0;
  /// out = diag(AᵀB).
  virtual void column_dots(ConstView<T> A, ConstView<T> B, MatrixView<double> out) = 0;
  /// sums ← sums + A1, squares ← squares + diag(AAᵀ).
  virtual void add_row_moments(ConstView<T> A, MatrixView<double> sums, MatrixView<double> squares) = 0;
  /// out ← β out + ‖A‖_F² (1 x 1), without waiting. With β = 0, out is not read.
  virtual void squared_norm(ConstView<T> A, double beta, MatrixView<double> out) = 0;
  /// ‖A‖_F² in T's own precision, fast: not finite where A is not, or where it overflows.
  virtual T rough_squared_norm(ConstView<T> A) = 0;
  /// Position (in A's column-major numbering) of the first value that is NaN or infinite, or −1.
  virtual Size find_non_finite(ConstView<T> A) = 0;

  // ── factorisations ────────────────────────────────────────────────────────────────────────────
  /// Whether an LU takes about as long as its flops say. Where not, whoever can do without does.
  virtual bool factorizes_fast() const = 0;
  /// X ← X (sI + G)⁻¹; G (m x m) is destroyed. The condition is taken at the scale |s| + ‖G‖₁, so
  /// that a sum which cancels to rounding noise counts as singular (also for m = 1). Returns its
  /// reciprocal; when that is below `limit`, X is left as it was.
  virtual T solve_shifted(T s, MatrixView<T> G, T limit, MatrixView<T> X) = 0;
  /// A ← its LU factors, in place, with the row exchanges in pivots (A.rows of them). False when A is
  /// exactly singular, and then there are no factors.
  virtual bool lu_factorize(MatrixView<T> A, MatrixView<int> pivots) = 0;
  /// X ← op(A)⁻¹ X from the factors of A.
  virtual void lu_solve(Op op, ConstView<T> factors, ConstView<int> pivots, MatrixView<T> X) = 0;
  /// A ← A⁻¹, in place. False when A is exactly singular, and then A is lost.
  virtual bool invert(MatrixView<T> A) = 0;
  /// Singular values of A in decreasing order and, unless `left` is empty, its left singular
  /// vectors as columns; A is destroyed.
  virtual void svd(MatrixView<T> A, std::span<T> sigma, MatrixView<T> left) = 0;

  /// X = Q̃ R (X: d x r, r ≤ d): X ← Q̃ with orthonormal columns, R (r x r) upper triangular unless empty.
  virtual void qr(MatrixView<T> X, MatrixView<T> R) = 0;

  // ── columns here and there ────────────────────────────────────────────────────────────────────
  static constexpr Index no_column = -1;
  /// Column to[k] of C ← column from[k] of A, or 0 where that is no_column. No `from` or no `to` means 0, 1, 2, …
  virtual void move_columns(ConstView<T> A, std::span<const Index> from, std::span<const Index> to,
                            MatrixView<T> C) = 0;
  /// The first counts[j] elements of column j ← 0.
  virtual void clear_starts(std::span<const Index> counts, MatrixView<T> A) = 0;
  /// G ← VᵀY (d x m): column j is the sum of the rows of V (held as d x D) that example j names, times its values.
  virtual void gather(ConstView<T> V, const SparseBatch<T>& Y, MatrixView<T> G) = 0;
  /// The same where the values are a result.
  virtual void gather(ConstView<T> V, const Selection& Y, ConstView<T> values, MatrixView<T> G) = 0;

  // ── sparse targets: the pattern of Y, and values by its entries ───────────────────────────────
  /// G ← G + Z Y (d x m), column g of Z standing for the output of group g.
  virtual void add_combination(ConstView<T> Z, const RowGroups<T>& Y, ConstView<T> values, MatrixView<T> G) = 0;
  /// out[e] ← β out[e] + z_g · x_j for every entry e = (output of group g, example j) of Y: ZᵀX where Y has values.
  virtual void dots_at(ConstView<T> Z, const RowGroups<T>& Y, ConstView<T> X, double beta, MatrixView<double> out) = 0;
  /// out[e] ← out[e] + t_j for every entry e of example j.
  virtual void add_by_example(ConstView<double> t, const RowGroups<T>& Y, MatrixView<double> out) = 0;
  /// V ← V + α Y Xᵀ (X: d x m): only the rows that Y names.
  virtual void scatter(T alpha, const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X, MatrixView<T> V) = 0;
  /// M ← YᵀY (m x m), which is 0 but for pairs of examples that share an output.
  virtual void gram(const RowGroups<T>& Y, ConstView<T> values, MatrixView<T> M) = 0;
  /// O (m x n) holds the outputs first … first + n − 1, an example a row: out[e] ← O where Y has entries there.
  virtual void read_at(ConstView<T> O, Size first, const RowGroups<T>& Y, MatrixView<double> out) = 0;
  /// And back: O ← O + values.
  virtual void add_at(const RowGroups<T>& Y, ConstView<T> values, Size first, MatrixView<T> O) = 0;

  // ── losses ────────────────────────────────────────────────────────────────────────────────────
  /// The loss of all examples with targets Y. No weights mean 1 for each.
  virtual Verdict judge(const Loss& loss, Size outputs, const RowGroups<T>& Y, std::span<const T> weights,
                        const Judged<T>& x) = 0;
  /// The same without waiting: ledger (2 x 1) gains L, and 1 where an example has something that is not finite.
  virtual void judge_later(const Loss& loss, Size outputs, const RowGroups<T>& Y, std::span<const T> weights,
                           const Judged<T>& x, MatrixView<double> ledger) = 0;
  /// With t = Hᵀω and s = Hᵀw̄ the columns of ts (CommonPart, common_part.h):
  /// factors ← −η [2a∘t + b, 2a∘s + D b + γ],   v ← 4a∘s + 2γ + D b.
  virtual void common_factors(double eta, Size outputs, ConstView<T> a, ConstView<T> b, ConstView<T> gamma,
                              ConstView<double> ts, MatrixView<double> factors, MatrixView<T> v) = 0;
  /// For every row j of A: maxima[j] = maxᵢ A(j, i), A(j, i) ← exp(A(j, i) − maxima[j]), sums[j] = Σᵢ A(j, i) in
  /// double (softmax_kernels.h).
  virtual void exponentiate_rows(MatrixView<T> A, MatrixView<T> maxima, MatrixView<double> sums) = 0;
  /// The same for every column.
  virtual void exponentiate_columns(MatrixView<T> A, MatrixView<T> maxima, MatrixView<double> sums) = 0;
  /// A ← diag(a) A.
  virtual void scale_rows(ConstView<T> a, MatrixView<T> A) = 0;

  // ── two-level softmax: parts of W (softmax_parts.h) ───────────────────────────────────────────
  /// Whether the operations on parts are best given all of them at once. Else a part is best taken from its logits to
  /// its update while its rows are in the cache, by any number of threads with a part each.
  virtual bool takes_parts_at_once() const = 0;
  /// For every part: O ← W_c H, with its rows of W (held as d x rows) and its pairs' columns of H (d x pairs). E is
  /// the logits of all parts.
  virtual void part_logits(const SoftmaxParts<T>& parts, PartRange range, ConstView<T> W, ConstView<T> H,
                           MatrixView<T> E) = 0;
  /// For every pair: O ← exp(O − max O), and what there is to know of it.
  virtual void part_softmax(const SoftmaxParts<T>& parts, PartRange range, MatrixView<T> E,
                            const PartStatistics<T>& out) = 0;
  /// For every part, from the exponentials and their sums: R = exp(O − log Z) diag(s) − Y, which takes their place;
  /// G ← W_cᵀ R (d x pairs) unless it is empty; W_c ← W_c − η R Hᵀ unless η = 0.
  virtual void part_backward(const SoftmaxParts<T>& parts, PartRange range, MatrixView<T> E, ConstView<double> sums,
                             ConstView<T> H, T eta, MatrixView<T> W, MatrixView<T> G) = 0;
  /// total ← total + Σ s log Z over all pairs − Σ Y o over all entries: the cross-entropy of all parts together.
  virtual void add_part_loss(const SoftmaxParts<T>& parts, const PartStatistics<T>& of, MatrixView<double> total) = 0;
  /// A ← A − 1(log Z)ᵀ + 1bᵀ with the log Z of every column: its log softmax, plus b (1 x columns, or empty).
  virtual void log_softmax_columns(ConstView<T> b, MatrixView<T> A) = 0;

  // ── what is below the output layer ────────────────────────────────────────────────────────────
  /// A ← s(A + b1ᵀ), in place; an empty b is zero.
  virtual void activate(Activation s, ConstView<T> b, MatrixView<T> A) = 0;
  /// G ← G ∘ s′, in place, with s′ expressed by the activations A = s(…).
  virtual void activate_backward(Activation s, ConstView<T> A, MatrixView<T> G) = 0;
  /// out ← A1, the sum of A's columns, in T.
  virtual void sum_columns(ConstView<T> A, MatrixView<T> out) = 0;
  /// Z ← X Yᵀ for the outputs that Y names (d x groups): what scatter adds to each row, by itself.
  virtual void combine(const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X, MatrixView<T> Z) = 0;
  /// The same with Y's own values.
  virtual void combine_own(const RowGroups<T>& Y, ConstView<T> X, MatrixView<T> Z) = 0;
  /// A ← min(1, limit/√n) A, in place, for a squared norm n (1 x 1) of which A is all or a part. A NaN stays one.
  virtual void limit_norm(ConstView<double> n, double limit, MatrixView<T> A) = 0;
  /// Column columns[k] of P ← itself + α times column k of G. Columns are distinct.
  virtual void add_to_columns(T alpha, ConstView<T> G, std::span<const Index> columns, MatrixView<T> P) = 0;
  /// One step of Adam (adam.h) on the columns of P named by `columns`, column k of G being the gradient of P's
  /// column columns[k]; no names mean all columns in order. M and S are the moments, shaped like P.
  virtual void adam(const AdamStep& step, std::span<const Index> columns, ConstView<T> G, MatrixView<T> P,
                    MatrixView<T> M, MatrixView<T> S) = 0;

  // ── several of the above in one go ────────────────────────────────────────────────────────────
  // Each is defined by its parts; those that are not pure are done by them (src/backend.cpp) unless a device has a
  // better way.

  /// Column k of Z ← M column rows[k] of V, where M is matrix number matrix[k] (d x d) among `matrices` (d x nd), or I
  /// where that is no_column; 0 where rows[k] is. `adds`: to what Z holds.
  virtual void express_columns(ConstView<T> V, std::span<const Index> rows, ConstView<T> matrices,
                               std::span<const Index> matrix, bool adds, MatrixView<T> Z);
  /// q ← diag(HᵀĤ);  o ← Z·UH where Y has entries, + sums·H where `sums` is not empty.
  virtual void observe_targets(ConstView<T> H, ConstView<T> H_hat, ConstView<T> UH, ConstView<T> Z, ConstView<T> sums,
                               const RowGroups<T>& Y, MatrixView<double> q, MatrixView<double> o);
  /// G ← Z Y and, where `sums` is not empty, F ← sums Y; where F is empty then, G ← (Z + sums) Y.
  virtual void combine_targets(ConstView<T> Z, ConstView<T> sums, const RowGroups<T>& Y, ConstView<T> values,
                               MatrixView<T> G, MatrixView<T> F);
  /// grad ← 2Ĥ diag(a) + Γ̂,  C ← Ĥ diag(a) + Γ̂,  Ĥ ← c grad. An empty a is 1.
  virtual void split_gradient(ConstView<T> a, ConstView<T> Gamma_hat, T c, MatrixView<T> H_hat, MatrixView<T> grad,
                              MatrixView<T> C) = 0;
  /// Both: Γ̂ is room for (Z + sums) Y, which a host does not make before it is used.
  virtual void split_gradient_at_targets(ConstView<T> a, ConstView<T> Z, ConstView<T> sums, const RowGroups<T>& Y,
                                         ConstView<T> values, MatrixView<T> Gamma_hat, T c, MatrixView<T> H_hat,
                                         MatrixView<T> grad, MatrixView<T> C);
  /// Column columns[g] of P ← itself, or nothing from column `known` on, + α times the sum of X's columns by the
  /// entries of Y's group g; Z is room for these sums. Columns are distinct, and those from `known` on are all among
  /// them.
  virtual void add_combined(T alpha, const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X,
                            std::span<const Index> columns, Size known, MatrixView<T> Z, MatrixView<T> P);
  /// C ← C + α (A B + H YᵀY), Y with these values; N (m x m) is room for YᵀY.
  virtual void add_with_gram(T alpha, ConstView<T> A, ConstView<T> B, ConstView<T> H, const RowGroups<T>& Y,
                             ConstView<T> values, MatrixView<T> N, MatrixView<T> C);
  /// C ← C + α (A B + F G).
  virtual void add_products(T alpha, ConstView<T> A, ConstView<T> B, ConstView<T> F, ConstView<T> G, MatrixView<T> C);
  /// The first d of low's columns become symmetric (d x d); S ← high + low; E ← −ηH. On a host `high` may be S itself:
  /// carry_over(low, S) takes the place of the sum then.
  virtual void finish_stack(T eta, ConstView<T> H, ConstView<T> high, MatrixView<T> low, MatrixView<T> S,
                            MatrixView<T> E) = 0;
  /// The commit of the stack S = [Q; U; E]ᵀ, whose first 2d columns are high + low: low ← low − 2ηH [P; UH]ᵀ, and it is
  /// finished as above; E ← E − 2ηH (EH)ᵀ, and −ηH is appended where S has m columns more. SH = [P; UH; EH].
  virtual void commit_stack(T eta, ConstView<T> H, ConstView<T> SH, ConstView<T> high, MatrixView<T> low,
                            MatrixView<T> S);
  /// The same where the stack itself is the high part, as on a host, whose libraries are fastest where factors lie in
  /// memory as they are multiplied: Hᵀ (m x d) is at hand, P by itself, and of the rows of U and E there is (SH)ᵀ,
  /// m x (d + n). Of Q, low ← low − 2ηP Hᵀ has the same symmetric part.
  virtual void commit_stack_by_rows(T eta, ConstView<T> H, ConstView<T> H_T, ConstView<T> P, ConstView<T> UEH_T,
                                    MatrixView<T> low, MatrixView<T> S);
  /// And some rows of U alone: low ← low − 2ηH (UH)ᵀ, carry_over(low, S).
  virtual void commit_rows(T eta, ConstView<T> H, ConstView<T> UH_T, MatrixView<T> low, MatrixView<T> S);

  // ── whole-matrix operations on V, O(D) ────────────────────────────────────────────────────────
  /// V ← V ∏ₖ (I + βₖ uₖ uₖᵀ), uₖ the columns of `u`, in one pass over V.
  virtual void apply_rank_ones(ConstView<T> u, ConstView<T> beta, MatrixView<T> V) = 0;

  /// Rows of V that are best treated at once when streaming through all D of them.
  virtual Size rows_per_block(Size dim) const = 0;
};

/// Dense linear algebra on the CPU: oneDNN's or the BLAS's GEMM, LAPACK, OpenMP.
/// @param threads  1 or more; 0 means one per available core.
template <class T>
std::shared_ptr<Backend<T>> make_cpu_backend(int threads = 0);

struct CudaOptions {
  int device = 0;     ///< its number, as CUDA counts them
  bool tf32 = false;  ///< float products with 11 bits of the factors, on the tensor cores
};
/// Dense linear algebra on an NVIDIA GPU: cuBLAS, and kernels of our own.
/// @throws BackendError in a build without CUDA, or where there is no such GPU
template <class T>
std::shared_ptr<Backend<T>> make_cuda_backend(const CudaOptions& options = {});
/// GPUs that make_cuda_backend could take; 0 in a build without CUDA.
int cuda_devices();

}  // namespace widehead
