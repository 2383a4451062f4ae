/// The backend's factorisations. Where the vendor of products is faster than that of factorisations, most of an LU and
/// of its solves is made of products.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "blas.h"
#include "cpu_backend.h"
#include "stripes.h"
#include "widehead/errors.h"

namespace widehead {
namespace {

/// Columns of an LU's panel.
constexpr Size lu_panel = 48;

/// Edge of a triangle that the vendor solves with.
constexpr Size triangle = 48;

/// Largest column sum of |A|.
template <class T>
T one_norm(MatrixView<const T> A) {
  T norm = 0;
  for (Size j = 0; j < A.cols; ++j) {
    T sum = 0;
    const T* a = A.column(j);
#pragma omp simd reduction(+ : sum)
    for (Size i = 0; i < A.rows; ++i) sum += std::abs(a[i]);
    if (sum > norm || std::isnan(sum)) norm = sum;  // a NaN stays
  }
  return norm;
}

/// The exchanges that LAPACK's pivots of rows `first` … name, without those of a row with itself: of a U as layers have
/// it, one or two of three hundred are left, and the vendor's routine does all of them.
template <class Pivots>
void list_exchanges(Size first, Size count, const Pivots& pivot, std::vector<std::pair<Size, Size>>& exchanges) {
  exchanges.clear();
  exchanges.reserve(static_cast<std::size_t>(count));
  for (Size k = first; k < first + count; ++k) {
    if (const Size other = pivot(k) - 1; other != k) exchanges.emplace_back(k, other);
  }
}

template <class T>
void exchange_rows(const std::vector<std::pair<Size, Size>>& exchanges, MatrixView<T> A) {
  if (exchanges.empty()) return;
  for (Size j = 0; j < A.cols; ++j) {
    T* a = A.column(j);
    for (const auto& [k, other] : exchanges) std::swap(a[k], a[other]);
  }
}

/// B ← op(A)⁻¹ B with a triangle of A, by halves: the larger it is, the more of it is a product. Halves end where the
/// vendor's register tiles do.
template <class T>
void solve_triangle(blas::Triangle kind, Op op, MatrixView<const T> A, MatrixView<T> B) {
  const Size n = A.rows;
  if (n <= triangle) {
    blas::trsm_left<T>(kind, op, A, B);
    return;
  }
  const Size half = (n / 2 + stripe_granule - 1) / stripe_granule * stripe_granule, rest = n - half;
  const auto top = B.block(0, 0, half, B.cols), bottom = B.block(half, 0, rest, B.cols);
  const bool is_lower = kind == blas::Triangle::unit_lower;
  const auto beside = is_lower ? A.block(half, 0, rest, half) : A.block(0, half, half, rest);
  const auto solve_top = [&] { solve_triangle<T>(kind, op, A.block(0, 0, half, half), top); };
  const auto solve_bottom = [&] { solve_triangle<T>(kind, op, A.block(half, half, rest, rest), bottom); };
  if (is_lower == (op == Op::none)) {
    solve_top();
    blas::gemm<T>(op, Op::none, T(-1), beside, top, T(1), bottom);
    solve_bottom();
  } else {
    solve_bottom();
    blas::gemm<T>(op, Op::none, T(-1), beside, bottom, T(1), top);
    solve_top();
  }
}

}  // namespace

template <class T>
void CpuBackend<T>::reserve_work(Size n) {
  const auto size = static_cast<std::size_t>(n);
  if (pivots_.size() >= size) return;
  pivots_.resize(size);
  iwork_.resize(size);
  work_.resize(64 * size);
}

/// By panels, for which the vendor is fast, and its products; at some hundred columns its own LU is slower. Right of a
/// panel: exchanges, U₁₂ = L₁₁⁻¹A₁₂, A₂₂ − L₂₁U₁₂. (Sharing these out among threads costs more than it saves.)
template <class T>
bool CpuBackend<T>::lu_factorize(MatrixView<T> A, MatrixView<int> pivots) {
  const OneVendorThread guard;
  const Size n = A.rows;
  const auto pivot = [&](Size row) { return pivots(row, 0); };
  for (Size first = 0; first < n; first += lu_panel) {
    const Size width = std::min(lu_panel, n - first), end = first + width, rest = n - end;
    const auto panel = A.block(first, first, n - first, width);
    const std::span<int> of_panel(&pivots(first, 0), static_cast<std::size_t>(width));
    if (blas::getrf<T>(panel, of_panel) != 0) return false;
    for (int& row : of_panel) row += static_cast<int>(first);
    list_exchanges(first, width, pivot, exchanges_);
    exchange_rows(exchanges_, A.columns(0, first));
    if (rest == 0) break;
    const auto right = A.columns(end, rest);
    const auto U = right.block(first, 0, width, rest);
    exchange_rows(exchanges_, right);
    blas::trsm_left<T>(blas::Triangle::unit_lower, Op::none, panel.block(0, 0, width, width), U);
    blas::gemm<T>(Op::none, Op::none, T(-1), panel.block(width, 0, rest, width), U, T(1),
                  right.block(end, 0, rest, rest));
  }
  return true;
}

/// With A = P L R: X ← R⁻¹ L⁻¹ Pᵀ X, or P L⁻ᵀ R⁻ᵀ X.
template <class T>
void CpuBackend<T>::lu_solve(Op op, ConstView<T> factors, ConstView<int> pivots, MatrixView<T> X) {
  list_exchanges(
      0, pivots.rows, [&](Size row) { return pivots(row, 0); }, exchanges_);
  if (op == Op::transpose) std::reverse(exchanges_.begin(), exchanges_.end());
  const int team = factors.size() * X.cols > static_cast<Size>(min_parallel_flops) ? threads_ : 1;
  for_each_stripe(team, X.cols, stripe_granule, [&](Size first, Size count) {
    const auto columns = X.columns(first, count);
    if (op == Op::none) {
      exchange_rows(exchanges_, columns);
      solve_triangle<T>(blas::Triangle::unit_lower, op, factors, columns);
      solve_triangle<T>(blas::Triangle::upper, op, factors, columns);
    } else {
      solve_triangle<T>(blas::Triangle::upper, op, factors, columns);
      solve_triangle<T>(blas::Triangle::unit_lower, op, factors, columns);
      exchange_rows(exchanges_, columns);
    }
  });
}

template <class T>
T CpuBackend<T>::solve_shifted(T s, MatrixView<T> G, T limit, MatrixView<T> X) {
  const Size m = G.rows;
  const T norm_G = one_norm<T>(G), norm = std::abs(s) + norm_G;
  for (Size j = 0; j < m; ++j) G(j, j) += s;
  // P (sI + G) = L R with row exchanges P, so X (sI + G)⁻¹ = X R⁻¹ L⁻¹ P.
  reserve_work(m);
  if (blas::getrf<T>(G, pivots_) > 0) return 0;
  // Where G is small, ‖(sI + G)⁻¹‖₁ ≤ 1/(|s| − ‖G‖₁) says enough; else LAPACK estimates it.
  const T rcond = norm_G <= std::abs(s) / 2 ? (std::abs(s) - norm_G) / norm : blas::gecon<T>(G, norm, work_, iwork_);
  if (!(rcond >= limit)) return rcond;
  const int team = X.rows * m * m > static_cast<Size>(min_parallel_flops) ? threads_ : 1;
  for_each_stripe(team, X.rows, stripe_granule, [&](Size first, Size count) {
    const auto stripe = X.block(first, 0, count, m);
    blas::trsm_right<T>('U', false, G, stripe);
    blas::trsm_right<T>('L', true, G, stripe);
    for (Size k = m - 1; k >= 0; --k) {
      const Size other = pivots_[static_cast<std::size_t>(k)] - 1;
      if (other != k) std::swap_ranges(stripe.column(k), stripe.column(k) + count, stripe.column(other));
    }
  });
  return rcond;
}

template <class T>
bool CpuBackend<T>::invert(MatrixView<T> A) {
  reserve_work(A.rows);
  return blas::getrf<T>(A, pivots_) == 0 && blas::getri<T>(A, pivots_, work_) == 0;
}

template <class T>
void CpuBackend<T>::svd(MatrixView<T> A, std::span<T> sigma, MatrixView<T> left) {
  const int info = blas::svd<T>(A, sigma, left, svd_room_);
  if (info != 0) throw BackendError(fmt::format("LAPACK gesdd({} x {}) failed with info = {}", A.rows, A.cols, info));
}

template <class T>
void CpuBackend<T>::qr(MatrixView<T> X, MatrixView<T> R) {
  const auto r = static_cast<std::size_t>(X.cols);
  if (qr_work_.size() < 65 * r) qr_work_.resize(65 * r);
  const std::span<T> tau(qr_work_.data(), r), work(qr_work_.data() + r, 64 * r);
  blas::geqrf<T>(X, tau, work);
  for (Size j = 0; j < R.cols; ++j) {
    for (Size i = 0; i < R.rows; ++i) R(i, j) = i <= j ? X(i, j) : T(0);
  }
  blas::orgqr<T>(X, tau, work);
}

#define WIDEHEAD_INSTANTIATE(T)                                                           \
  template void CpuBackend<T>::reserve_work(Size);                                        \
  template T CpuBackend<T>::solve_shifted(T, MatrixView<T>, T, MatrixView<T>);            \
  template bool CpuBackend<T>::lu_factorize(MatrixView<T>, MatrixView<int>);              \
  template void CpuBackend<T>::lu_solve(Op, ConstView<T>, ConstView<int>, MatrixView<T>); \
  template bool CpuBackend<T>::invert(MatrixView<T>);                                     \
  template void CpuBackend<T>::svd(MatrixView<T>, std::span<T>, MatrixView<T>);           \
  template void CpuBackend<T>::qr(MatrixView<T>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
