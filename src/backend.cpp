/// Operations of a backend that are made of others.

#include "widehead/backend.h"

#include <chrono>
#include <vector>

namespace widehead {
namespace {

/// On the host numbers are where they are, until they change.
class HostReadback final : public Readback {
 public:
  void send(ConstView<double> values) override { values_.assign(values.data, values.data + values.rows); }
  std::span<const double> receive() override { return values_; }

 private:
  std::vector<double> values_;
};

/// What the host is asked for is done.
class HostStopwatch final : public Stopwatch {
 public:
  void mark() override { marks_.push_back(Clock::now()); }
  std::vector<double> take_laps() override {
    std::vector<double> laps;
    for (std::size_t k = 1; k < marks_.size(); ++k) {
      laps.push_back(std::chrono::duration<double>(marks_[k] - marks_[k - 1]).count());
    }
    marks_.clear();
    return laps;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> marks_;
};

}  // namespace

template <class T>
std::unique_ptr<Readback> Backend<T>::make_readback() {
  return std::make_unique<HostReadback>();
}

template <class T>
std::unique_ptr<Stopwatch> Backend<T>::make_stopwatch() {
  return std::make_unique<HostStopwatch>();
}

/// Column by column, with room of its own: only tests keep products on a CPU.
template <class T>
void Backend<T>::express_columns(ConstView<T> V, std::span<const Index> rows, ConstView<T> matrices,
                                 std::span<const Index> matrix, bool adds, MatrixView<T> Z) {
  const Size d = Z.rows;
  Matrix<T> column(d, 1, memory());
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const auto z = Z.columns(static_cast<Size>(k), 1);
    move_columns(V, rows.subspan(k, 1), {}, column);
    if (rows[k] != no_column && matrix[k] != no_column) {
      gemm(Op::none, Op::none, T(1), matrices.columns(matrix[k] * d, d), column, adds ? T(1) : T(0), z);
    } else if (adds) {
      add(T(1), column, T(1), z, z);
    } else {
      copy(column, z);
    }
  }
}

template <class T>
void Backend<T>::observe_targets(ConstView<T> H, ConstView<T> H_hat, ConstView<T> UH, ConstView<T> Z, ConstView<T> sums,
                                 const RowGroups<T>& Y, MatrixView<double> q, MatrixView<double> o) {
  column_dots(H, H_hat, q);
  dots_at(Z, Y, UH, 0, o);
  if (!sums.empty()) dots_at(sums, Y, H, 1, o);
}

template <class T>
void Backend<T>::combine_targets(ConstView<T> Z, ConstView<T> sums, const RowGroups<T>& Y, ConstView<T> values,
                                 MatrixView<T> G, MatrixView<T> F) {
  clear(G);
  add_combination(Z, Y, values, G);
  if (sums.empty()) return;
  if (!F.empty()) clear(F);
  add_combination(sums, Y, values, F.empty() ? G : F);
}

template <class T>
void Backend<T>::split_gradient_at_targets(ConstView<T> a, ConstView<T> Z, ConstView<T> sums, const RowGroups<T>& Y,
                                           ConstView<T> values, MatrixView<T> Gamma_hat, T c, MatrixView<T> H_hat,
                                           MatrixView<T> grad, MatrixView<T> C) {
  combine_targets(Z, sums, Y, values, Gamma_hat, {});
  split_gradient(a, Gamma_hat, c, H_hat, grad, C);
}

template <class T>
void Backend<T>::add_combined(T alpha, const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X,
                              std::span<const Index> columns, Size known, MatrixView<T> Z, MatrixView<T> P) {
  clear(P.columns(known, P.cols - known));
  combine(Y, values, X, Z);
  add_to_columns(alpha, Z, columns, P);
}

template <class T>
void Backend<T>::add_with_gram(T alpha, ConstView<T> A, ConstView<T> B, ConstView<T> H, const RowGroups<T>& Y,
                               ConstView<T> values, MatrixView<T> N, MatrixView<T> C) {
  gram(Y, values, N);
  add_products(alpha, A, B, H, N, C);
}

template <class T>
void Backend<T>::add_products(T alpha, ConstView<T> A, ConstView<T> B, ConstView<T> F, ConstView<T> G,
                              MatrixView<T> C) {
  gemm(Op::none, Op::none, alpha, A, B, T(1), C);
  gemm(Op::none, Op::none, alpha, F, G, T(1), C);
}

template <class T>
void Backend<T>::carry_over(MatrixView<T> low, MatrixView<T> S) {
  Matrix<T> sum(S.rows, S.cols, memory());
  add(T(1), S, T(1), low, sum);
  carry(sum, S, low);
}

template <class T>
void Backend<T>::commit_stack(T eta, ConstView<T> H, ConstView<T> SH, ConstView<T> high, MatrixView<T> low,
                              MatrixView<T> S) {
  const Size d = H.rows, m = H.cols, height = SH.rows, n = height - 2 * d;
  gemm(Op::none, Op::transpose, -2 * eta, H, SH.block(0, 0, 2 * d, m), T(1), low);
  if (n > 0) gemm(Op::none, Op::transpose, -2 * eta, H, SH.block(2 * d, 0, n, m), T(1), S.columns(2 * d, n));
  finish_stack(eta, H, high, low, S.columns(0, 2 * d), S.columns(height, S.cols - height));
}

template <class T>
void Backend<T>::commit_stack_by_rows(T eta, ConstView<T> H, ConstView<T> H_T, ConstView<T> P, ConstView<T> UEH_T,
                                      MatrixView<T> low, MatrixView<T> S) {
  const Size d = H.rows, n = UEH_T.cols - d, height = 2 * d + n;
  gemm(Op::none, Op::none, -2 * eta, P, H_T, T(1), low.columns(0, d));
  gemm(Op::none, Op::none, -2 * eta, H, UEH_T.columns(0, d), T(1), low.columns(d, d));
  if (n > 0) gemm(Op::none, Op::none, -2 * eta, H, UEH_T.columns(d, n), T(1), S.columns(2 * d, n));
  const auto both = S.columns(0, 2 * d);
  finish_stack(eta, H, both, low, both, S.columns(height, S.cols - height));
}

template <class T>
void Backend<T>::commit_rows(T eta, ConstView<T> H, ConstView<T> UH_T, MatrixView<T> low, MatrixView<T> S) {
  gemm(Op::none, Op::none, -2 * eta, H, UH_T, T(1), low);
  carry_over(low, S);
}

template class Backend<float>;
template class Backend<double>;

}  // namespace widehead
