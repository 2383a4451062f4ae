#include "widehead/stabilizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "widehead/random.h"

namespace widehead {
namespace {

constexpr std::uint32_t start_vector_stream = 0x75;  // "u"

/// x ← x/‖x‖; returns ‖x‖.
template <class T>
double normalize(Backend<T>& backend, MatrixView<T> x) {
  const double norm = std::sqrt(backend.dot(x, x));
  backend.scale(static_cast<T>(1 / norm), x);
  return norm;
}

}  // namespace

template <class T>
bool invert_afresh(Backend<T>& backend, ConstView<T> U, Matrix<T>& scratch, MatrixView<T> U_inv_T) {
  const auto inverse = scratch.scratch(U.rows, U.cols);
  backend.transpose(U, inverse);
  if (!backend.invert(inverse) || backend.find_non_finite(inverse) >= 0) return false;
  backend.copy(inverse, U_inv_T);
  return true;
}

template <class T>
Stabilizer<T>::Stabilizer(Backend<T>& backend, const StabilizerOptions& options, Size dim)
    : options_(options),
      scratch_(backend.memory()),
      left_(backend.memory()),
      vectors_(dim, 3, backend.memory()),
      fixed_u_(backend.memory()),
      fixed_beta_room_(backend.memory()),
      sigma_(static_cast<std::size_t>(dim)),
      start_vector_(dim, 1) {
  if (!(options.sigma_low > 0 && options.sigma_low < 1 && options.sigma_high > 1)) {
    throw std::invalid_argument(
        fmt::format("stabilizer: the safe range is [{}, {}], but it must have 0 < low < 1 < high", options.sigma_low,
                    options.sigma_high));
  }
  if (options.n_check < 1) {
    throw std::invalid_argument(fmt::format("stabilizer: n_check = {}, but it must be at least 1", options.n_check));
  }
  if (options.iterations < 1) {
    throw std::invalid_argument(
        fmt::format("stabilizer: iterations = {}, but it must be at least 1", options.iterations));
  }
}

template <class T>
double Stabilizer<T>::check(Backend<T>& backend, Factors<T> factors) {
  const auto start = std::chrono::steady_clock::now();
  ++account_.checks;
  const auto fixes_before = account_.fixes;
  invert_afresh<T>(backend, factors.U, scratch_, factors.U_inv_T);
  const double norm_U = std::sqrt(backend.dot(factors.U, factors.U));
  V_growth_ = 1;
  if (norm_U > 0.01 / static_cast<double>(std::numeric_limits<T>::epsilon())) {
    restore_pristine(backend, factors);  // so far out, a rank-one fix would be lost in rounding
    V_growth_ = norm_U;
  } else if (options_.kind == Stabilize::power) {
    check_by_power_iteration(backend, factors);
  } else {
    check_by_svd(backend, factors);
  }
  if (account_.fixes > fixes_before) {
    apply_to_V(backend, factors.V);
    // The inverse of the U before the fixes was only as good as its condition: take it once more.
    invert_afresh<T>(backend, factors.U, scratch_, factors.U_inv_T);
  }
  account_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return V_growth_;
}

template <class T>
void Stabilizer<T>::check_by_svd(Backend<T>& backend, Factors<T> factors) {
  const Size d = factors.U.rows;
  const auto copy = scratch_.scratch(d, d);
  backend.copy(factors.U, copy);
  const bool restore = options_.kind == Stabilize::pristine;
  const auto left = restore ? MatrixView<T>{} : left_.scratch(d, d);
  backend.svd(copy, sigma_, left);
  if (restore) {
    if (is_unsafe(sigma_.front()) || is_unsafe(sigma_.back())) {
      restore_pristine(backend, factors);
      V_growth_ = std::max(1.0, static_cast<double>(sigma_.front()));
    }
    return;
  }
  for (Size k = 0; k < d; ++k) {
    const double sigma = sigma_[static_cast<std::size_t>(k)];
    if (is_unsafe(sigma)) fix_singular_value(backend, factors, sigma, left.columns(k, 1));
  }
}

/// Smallest first: x ← U⁻ᵀU⁻¹x tends to the left singular vector of the smallest singular value,
/// x ← U Uᵀ x to that of the largest. Either is repeated until it finds a safe value.
template <class T>
void Stabilizer<T>::check_by_power_iteration(Backend<T>& backend, Factors<T> factors) {
  const Size d = factors.U.rows;
  const auto u = vectors_.view().columns(0, 1), product = vectors_.view().columns(1, 1);
  for (const auto& A : {factors.U_inv_T, factors.U}) {
    for (Size fixes = 0; fixes <= 2 * d; ++fixes) {  // a bound against rounding that never settles
      const Random random(static_cast<std::uint64_t>(account_.checks), start_vector_stream);
      for (Size i = 0; i < d; ++i) {
        start_vector_(i, 0) = static_cast<T>(random.normal(static_cast<std::uint64_t>(i), 0).first);
      }
      backend.template transfer<T>(start_vector_.view(), u);
      normalize(backend, u);
      for (int iteration = 0; iteration < options_.iterations; ++iteration) {
        backend.gemm(Op::transpose, Op::none, T(1), A, u, T(0), product);  // Aᵀu
        backend.gemm(Op::none, Op::none, T(1), A, product, T(0), u);       // A Aᵀu
        normalize(backend, u);
      }
      // σ from U itself: with an unconverged u, 1/‖U⁻¹u‖ underestimates it and the fix overshoots.
      backend.gemm(Op::transpose, Op::none, T(1), factors.U, u, T(0), product);
      const double sigma = std::sqrt(backend.dot(product, product));
      if (!is_unsafe(sigma)) break;
      fix_singular_value(backend, factors, sigma, u);
    }
  }
}

/// For any unit vector u, (I + α u uᵀ)⁻¹ = I + β u uᵀ with β = −α/(1+α), so W = V U is unchanged by
///   U ← (I + α u uᵀ) U,   V ← V (I + β u uᵀ),   U⁻ᵀ ← (I + β u uᵀ) U⁻ᵀ,
/// and σ = ‖Uᵀu‖ becomes σ* = 1 with α = (σ* − σ)/σ.
template <class T>
void Stabilizer<T>::fix_singular_value(Backend<T>& backend, Factors<T> factors, double sigma, ConstView<T> u) {
  if (!(sigma > 0)) return;  // exactly singular: nothing to rescale, and the next step will say so
  const double alpha = (1 - sigma) / sigma;
  const double beta = sigma - 1;  // −α/(1+α), without the cancellation
  const auto product = vectors_.view().columns(2, 1);
  backend.gemm(Op::transpose, Op::none, T(1), factors.U, u, T(0), product);  // Uᵀu
  backend.gemm(Op::none, Op::transpose, static_cast<T>(alpha), u, product, T(1), factors.U);
  backend.gemm(Op::transpose, Op::none, T(1), factors.U_inv_T, u, T(0), product);  // U⁻¹u
  backend.gemm(Op::none, Op::transpose, static_cast<T>(beta), u, product, T(1), factors.U_inv_T);

  const Size pending = static_cast<Size>(fixed_beta_.size());
  if (pending == fixed_u_.cols()) {
    Matrix<T> larger(u.rows, std::max<Size>(8, 2 * pending), backend.memory());
    if (pending > 0) backend.copy(fixed_u_, larger.view().columns(0, pending));
    fixed_u_ = std::move(larger);
  }
  backend.copy(u, fixed_u_.view().columns(pending, 1));
  fixed_beta_.push_back(static_cast<T>(beta));
  V_growth_ *= std::max(1.0, sigma);  // ‖I + β u uᵀ‖ = max(1, σ)
  ++account_.fixes;
}

/// V ← V ∏ (I + βₖ uₖ uₖᵀ): one pass over V for all fixes of a check instead of one for each.
template <class T>
void Stabilizer<T>::apply_to_V(Backend<T>& backend, MatrixView<T> V) {
  backend.apply_rank_ones(fixed_u_.view().columns(0, static_cast<Size>(fixed_beta_.size())),
                          backend.template reach<T>(std::span<const T>(fixed_beta_), fixed_beta_room_), V);
  fixed_beta_.clear();
}

template <class T>
void Stabilizer<T>::restore_pristine(Backend<T>& backend, Factors<T> factors) {
  const Size d = factors.U.rows, D = factors.V.cols, block = std::min(D, backend.rows_per_block(d));
  Matrix<T> W(d, block, backend.memory());
  for (Size first = 0; first < D; first += block) {
    const auto V = factors.V.columns(first, std::min(block, D - first));
    const auto W_block = W.view().columns(0, V.cols);
    backend.gemm(Op::transpose, Op::none, T(1), factors.U, V, T(0), W_block);  // (V U)ᵀ = UᵀVᵀ
    backend.copy(W_block, V);
  }
  backend.set_identity(factors.U);
  backend.set_identity(factors.U_inv_T);
  ++account_.restores;
}

template <class T>
void Stabilizer<T>::visit_state(StateVisitor& visitor) {
  visitor.count("checks", account_.checks);
  visitor.count("fixes", account_.fixes);
  visitor.count("restores", account_.restores);
}

template class Stabilizer<float>;
template class Stabilizer<double>;
template bool invert_afresh(Backend<float>&, ConstView<float>, Matrix<float>&, MatrixView<float>);
template bool invert_afresh(Backend<double>&, ConstView<double>, Matrix<double>&, MatrixView<double>);

}  // namespace widehead
