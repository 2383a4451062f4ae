#include "widehead/deflation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "widehead/errors.h"
#include "widehead/random.h"

namespace widehead {
namespace {

constexpr std::uint32_t probe_stream = 0x70;  // "p"

/// The largest singular value that makes a direction worth a basis of its own: to turn a basis rounds V.
constexpr double small = 0.5;

}  // namespace

template <class T>
Deflation<T>::Deflation(Backend<T>& backend, Size dim, const DeflationOptions& options, std::uint64_t seed)
    : backend_(backend), dim_(dim), options_(options), seed_(seed), pivots_(dim, 1) {
  if (!(options.below >= 0 && options.below < 1)) {
    throw std::invalid_argument(fmt::format("deflation: below = {}, but it must be 0 … 1", options.below));
  }
  if (options.probes < 1) {
    throw std::invalid_argument(fmt::format("deflation: probes = {}, but it must be at least 1", options.probes));
  }
  const Size probes = std::min(options.probes, dim);
  probes_ = Matrix<T>(dim, probes);
  ritz_vectors_ = Matrix<T>(probes, probes);
  squared_sigma_.resize(static_cast<std::size_t>(probes));
  start_probes();
}

template <class T>
void Deflation<T>::start_probes() {
  const Random random(seed_, probe_stream);
  for (Size i = 0; i < probes_.size(); ++i) {
    probes_.data()[i] = static_cast<T>(random.normal(static_cast<std::uint64_t>(i), 0).first);
  }
}

template <class T>
double Deflation<T>::examine(ConstView<T> U_T) {
  rank_ = 0;
  knows_values_ = false;
  const Size d = dim_, p = probes_.cols();
  const auto LU = LU_.scratch(d, d);
  backend_.copy(U_T, LU);
  flops_ += square_flops(d) / 3;
  if (!backend_.lu_factorize(LU, pivots_)) return 0;

  backend_.lu_solve(Op::transpose, LU, pivots_, probes_);  // X ← orth((U Uᵀ)⁻¹ X)
  backend_.lu_solve(Op::none, LU, pivots_, probes_);
  flops_ += square_flops(3 * p);                 // with the images
  if (backend_.find_non_finite(probes_) >= 0) {  // U is as good as singular
    start_probes();
    return 0;
  }
  backend_.qr(probes_, {});
  const auto images = images_.scratch(d, p), ritz = ritz_.scratch(p, p);
  backend_.gemm(Op::none, Op::none, T(1), U_T, probes_, T(0), images);
  backend_.gemm(Op::transpose, Op::none, T(1), images, images, T(0), ritz);  // its eigenvalues: squared Ritz values
  try {
    backend_.svd(ritz, squared_sigma_, ritz_vectors_);
  } catch (const BackendError&) {  // the step is committed by now, and a flip needs no singular values
    start_probes();
    return 0;
  }
  knows_values_ = true;
  return std::sqrt(static_cast<double>(squared_sigma_.back()));
}

template <class T>
Size Deflation<T>::count() const {
  const double limit = options_.below * options_.below;
  return static_cast<Size>(
      std::count_if(squared_sigma_.begin(), squared_sigma_.end(), [&](T s) { return static_cast<double>(s) < limit; }));
}

template <class T>
void Deflation<T>::deflate(ConstView<T> U_T, MatrixView<T> change) {
  const Size d = dim_, p = probes_.cols(), r = rank_ = count();
  if (r == 0) return;
  const auto a = a_.scratch(d, r), b = b_.scratch(d, r), UtUs = Q_tilde_T_.scratch(d, r), R = R_.scratch(r, r);
  backend_.gemm(Op::none, Op::none, T(1), probes_, ritz_vectors_.view().columns(p - r, r), T(0), a);  // U_s
  backend_.qr(a, {});                                                    // orthonormal to rounding
  backend_.gemm(Op::none, Op::none, T(1), U_T, a, T(0), UtUs);           // UᵀU_s = Q̃ᵀBᵀ
  backend_.gemm(Op::none, Op::transpose, T(-1), UtUs, a, T(1), change);  // U′ᵀ − Uᵀ = −UᵀU_s U_sᵀ …
  backend_.qr(UtUs, R);                                                  // Q̃ᵀ, and Bᵀ in R
  backend_.gemm(Op::none, Op::transpose, T(1), UtUs, a, T(1), change);   // … + Q̃ᵀU_sᵀ
  for (Size k = 0; k < r; ++k) R(k, k) -= T(1);
  backend_.gemm(Op::none, Op::none, T(1), a, R, T(0), b);  // U_s (B − I)ᵀ
}

/// (Projections on r directions are kept as columns of r: GEMM libraries are ten times slower at r rows.)
template <class T>
void Deflation<T>::apply(MatrixView<T> Z) {
  if (rank_ == 0) return;
  const auto projections = projections_.scratch(Z.cols, rank_);
  backend_.gemm(Op::transpose, Op::none, T(1), Z, a(), T(0), projections);
  backend_.gemm(Op::none, Op::transpose, T(1), b(), projections, T(1), Z);
}

/// By the LU factors of Uᵀ. U⁻ᵀ alone would blow up the directions that are deflated, and the rounding
/// errors of that would stay behind in all others. But U_sᵀU′ = Q̃, so the part of X in the rows of Q̃ needs no
/// inverse: X = Q̃ᵀQ̃X + X⊥,  U′⁻ᵀX = U_s Q̃X + Rᵀ(U⁻ᵀX⊥).
template <class T>
void Deflation<T>::multiply_by_inverse(MatrixView<T> X) {
  flops_ += square_flops(X.cols);
  const auto LU = LU_.scratch(dim_, dim_);
  if (rank_ == 0) {
    backend_.lu_solve(Op::none, LU, pivots_, X);
    return;
  }
  const auto Q_tilde_T = Q_tilde_T_.scratch(dim_, rank_), QX_T = QX_T_.scratch(X.cols, rank_);
  backend_.gemm(Op::transpose, Op::none, T(1), X, Q_tilde_T, T(0), QX_T);
  backend_.gemm(Op::none, Op::transpose, T(-1), Q_tilde_T, QX_T, T(1), X);
  backend_.lu_solve(Op::none, LU, pivots_, X);
  apply(X);
  backend_.gemm(Op::none, Op::transpose, T(1), a(), QX_T, T(1), X);
}

/// Uᵀx for the probes' x with the smallest ‖Uᵀx‖.
template <class T>
ConstView<T> Deflation<T>::smallest() {
  if (!knows_values_ || static_cast<double>(squared_sigma_.back()) > small * small) return {};
  const Size p = probes_.cols();
  const auto direction = smallest_.scratch(dim_, 1);
  backend_.gemm(Op::none, Op::none, T(1), images_.scratch(dim_, p), ritz_vectors_.view().columns(p - 1, 1), T(0),
                direction);
  return direction;
}

template <class T>
void Deflation<T>::visit_state(StateVisitor& visitor) {
  visitor.scalar("seed", seed_);
  visitor.block("probes", probes_.view());
  visitor.scalar("flops", flops_);
}

template class Deflation<float>;
template class Deflation<double>;

}  // namespace widehead
