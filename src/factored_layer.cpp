#include "widehead/factored_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "widehead/errors.h"

namespace widehead {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

template <class T>
FactoredLayer<T>::FactoredLayer(const LayerOptions& options, const FactoredOptions& factored,
                                std::shared_ptr<Backend<T>> backend)
    : OutputLayer<T>(options, std::move(backend)),
      factored_(factored),
      V_(options.dim, options.outputs),
      S_(3 * options.dim, options.dim),
      stabilizer_(factored.stabilizer, options.dim),
      pivots_(static_cast<std::size_t>(options.dim)) {
  if (factored.refresh_every < 1) {
    throw std::invalid_argument(
        fmt::format("factored layer: refresh_every = {}, but it must be at least 1", factored.refresh_every));
  }
  set_identity(U());
  set_identity(U_inv_T());
  this->fill_initial(V_);
  if (options.initial != Initial::zero) {
    this->gram_of_rows(V_, Q());
    V_bound_ = infinity;
  }
}

/// Alg. 2 steps 2, 5 and 6 as far as the loss needs them: Ŷ, C = Ĥ/2 − Ŷ and
/// L = Σⱼ hⱼᵀ(ĥⱼ − 2ŷⱼ) + ‖yⱼ‖² = 2 tr(HᵀC) + tr(YᵀY), summed in double.
template <class T>
double FactoredLayer<T>::squared_error(ConstView<T> H, const SparseBatch<T>& targets, ConstView<T> H_hat) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols;
  groups_.assign(targets);
  const auto VtY = VtY_.scratch(d, m), Y_hat = Y_hat_.scratch(d, m), C = C_.scratch(d, m);
  backend.gather(V_, targets, VtY);
  backend.gemm(Op::transpose, Op::none, T(1), U(), VtY, T(0), Y_hat);  // step 2: Ŷ = Uᵀ(VᵀY)
  backend.add(T(0.5), H_hat, T(-1), Y_hat, C);
  return 2 * backend.dot(H, C) + groups_.squared_norm();
}

template <class T>
double FactoredLayer<T>::compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) {
  auto& backend = this->backend();
  const auto H_hat = T_.scratch(this->dim(), H.cols);
  backend.gemm(Op::none, Op::none, T(1), Q(), H, T(0), H_hat);  // step 1
  const double L = squared_error(H, targets, H_hat);
  if (!grad_H.empty()) backend.add(T(2), H_hat, T(-2), Y_hat_.scratch(H.rows, H.cols), grad_H);  // steps 3, 4
  return L;
}

/// X ← −U_new⁻ᵀH, given U⁻ᵀH in X where U⁻ᵀ is kept. With A = cI − 2ηHHᵀ and U_new = U A,
///   U_new⁻ᵀH = U⁻ᵀA⁻¹H = U⁻ᵀH (cI − 2ηHᵀH)⁻¹.
/// The m x m solve that Woodbury needs anyway (Alg. 2 step 8) so gives the factor of step 9; the
/// sign of the shift turns it into −U_new⁻ᵀH, which the stacked product of the commit half wants.
/// Returns the reciprocal condition of cI − 2ηHᵀH.
template <class T>
T FactoredLayer<T>::compute_U_inv_T_H(ConstView<T> H, T eta, T c, MatrixView<T> X) {
  auto& backend = this->backend();
  const Size m = H.cols;
  if (!keeps_inverse()) {
    const auto LU = square_.scratch(this->dim(), this->dim());
    backend.copy(U(), LU);
    backend.copy(H, X);
    if (!backend.lu_factorize(LU, pivots_)) {
      throw NumericalError(fmt::format("step {}: U has become singular to working precision; the step was not taken",
                                       this->steps() + 1));
    }
    backend.lu_solve(Op::transpose, LU, pivots_, X);
  }
  const auto G = G_.scratch(m, m);
  backend.gemm(Op::transpose, Op::none, 2 * eta, H, H, T(0), G);
  return backend.solve_shifted(-c, G, 4 * std::numeric_limits<T>::epsilon(), X);
}

/// Whether the commit half stays finite. The stack grows by 2η‖TH‖‖H‖ at most (and by 1/c), V by
/// 2η‖TH‖Σ|y|; the bounds follow, and the norms themselves are taken only where the bounds do not settle it.
template <class T>
bool FactoredLayer<T>::fits(ConstView<T> H, const SparseBatch<T>& targets, ConstView<T> S, ConstView<T> TH, T eta,
                            T c) {
  auto& backend = this->backend();
  const double limit = static_cast<double>(std::numeric_limits<T>::max()) / 1024;
  const double factor = 2 * static_cast<double>(eta) * std::sqrt(backend.dot(TH, TH));
  const double stack_growth = factor * std::sqrt(backend.dot(H, H)), V_growth = factor * sum_of_magnitudes(targets);
  const auto stack_after = [&] { return (stack_bound_ + stack_growth) / static_cast<double>(c); };
  if (!(stack_after() < limit)) stack_bound_ = std::sqrt(backend.dot(S, S));
  if (!(V_bound_ + V_growth < limit)) V_bound_ = std::sqrt(backend.dot(V_, V_));
  if (!(stack_after() < limit) || !(V_bound_ + V_growth < limit)) return false;
  stack_bound_ = stack_after();
  V_bound_ += V_growth;
  return true;
}

template <class T>
double FactoredLayer<T>::take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols;
  const T c = this->shrinkage(eta);

  // ── the read-only half ────────────────────────────────────────────────────────────────────────
  const auto TH = T_.scratch(3 * d, m);
  const auto S = S_.view().block(0, 0, stack_height(), d);
  backend.gemm(Op::none, Op::none, T(1), S, H, T(0), TH.block(0, 0, stack_height(), m));  // [QH; UH; U⁻ᵀH]
  const auto H_hat = TH.block(0, 0, d, m);                                                // step 1: Ĥ = QH
  const auto X = TH.block(2 * d, 0, d, m);
  const double L = squared_error(H, targets, H_hat);  // steps 2, 6
  const auto Y_hat = Y_hat_.scratch(d, m), C = C_.scratch(d, m);
  if (!std::isfinite(L)) {
    throw NumericalError(
        fmt::format("step {}: the loss is {} (eta = {}); the step was not taken", this->steps() + 1, L, eta));
  }

  const auto M = M_.scratch(m, m);  // step 5: M = HᵀĤ − HᵀŶ − ŶᵀH + YᵀY = HᵀC + CᵀH + YᵀY
  backend.gemm(Op::transpose, Op::none, T(2), H, C, T(0), M);
  backend.symmetrize(M);
  backend.add_gram(groups_, M);

  const T rcond = compute_U_inv_T_H(H, eta, c, X);  // steps 8, 9: X = −U_new⁻ᵀH
  if (!(rcond >= 4 * std::numeric_limits<T>::epsilon())) {
    throw NumericalError(fmt::format(
        "step {}: {}I − 2ηHᵀH is singular (reciprocal condition {:.3g}, eta = {}, 2η‖H‖² = {:.9g}): U has no inverse after "
        "this step, which was not taken; any other eta will do",
        this->steps() + 1, c, rcond, eta, 2 * static_cast<double>(eta) * backend.dot(H, H)));
  }

  // Ĥ becomes 2P, P = cẐ − ηHM with Ẑ = Ĥ − Ŷ, so that (step 10)
  //   Q_new = c²Q − 2η(HPᵀ + PHᵀ) is the symmetric part of c²Q − 2η(2P)Hᵀ.
  if (!grad_H.empty()) backend.add(T(2), H_hat, T(-2), Y_hat, grad_H);  // steps 3, 4: ∇H = 2Ẑ
  const auto two_P = H_hat;
  backend.add(2 * c, H_hat, -2 * c, Y_hat, two_P);
  backend.gemm(Op::none, Op::none, -2 * eta, H, M, T(1), two_P);
  if (!fits(H, targets, S, TH, eta, c)) {
    throw NumericalError(fmt::format("step {}: the update overflows (loss = {}, eta = {}); the step was not taken",
                                     this->steps() + 1, L, eta));
  }

  // ── the commit half: [Q; U; U⁻ᵀ] ← [c²Q; cU; U⁻ᵀ] − 2η [2P; UH; X] Hᵀ ─────────────────────────
  backend.scale(c * c, Q());
  backend.scale(c, U());
  backend.gemm(Op::none, Op::transpose, -2 * eta, TH.block(0, 0, stack_height(), m), H, T(1), S);  // steps 7, 8, 10
  backend.symmetrize(Q());
  if (keeps_inverse()) backend.scale(1 / c, U_inv_T());  // A⁻¹ = (I + 2ηH(cI − 2ηHᵀH)⁻¹Hᵀ)/c
  backend.scatter(-2 * eta, groups_, X, V_);             // step 9: V_new = V + 2ηY(U_new⁻ᵀH)ᵀ
  maintain(this->steps() + 1);
  return L;
}

template <class T>
void FactoredLayer<T>::maintain(std::int64_t steps) {
  if (stabilizer_.due(steps)) {
    V_bound_ *= stabilizer_.check(this->backend(), {V_, U(), U_inv_T()});
    stack_bound_ = infinity;  // to be taken afresh
  } else if (factored_.inverse == Inverse::refresh && steps % factored_.refresh_every == 0) {
    if (invert_afresh<T>(this->backend(), U(), square_, U_inv_T())) ++inversions_;
    stack_bound_ = infinity;
  }
}

template <class T>
void FactoredLayer<T>::begin_scores(ConstView<T> H) {
  UH_scored_ = UH_.scratch(H.rows, H.cols);
  this->backend().gemm(Op::none, Op::none, T(1), U(), H, T(0), UH_scored_);
}

template <class T>
void FactoredLayer<T>::write_scores(std::span<const Index> rows, MatrixView<T> out) {
  this->multiply_rows(V_, rows, UH_scored_, out);
}

template <class T>
void FactoredLayer<T>::write_weights(Size first, MatrixView<T> out) {
  this->backend().gemm(Op::transpose, Op::none, T(1), U(), V_.view().columns(first, out.cols), T(0), out);
}

template <class T>
Diagnostics FactoredLayer<T>::counters() const {
  const auto& account = stabilizer_.account();
  return {{"steps", static_cast<double>(this->steps())}, {"checks", static_cast<double>(account.checks)},
          {"fixes", static_cast<double>(account.fixes)}, {"restores", static_cast<double>(account.restores)},
          {"stabilizer_seconds", account.seconds},       {"inversions", static_cast<double>(inversions_)}};
}

template <class T>
Diagnostics FactoredLayer<T>::diagnostics() {
  auto& backend = this->backend();
  const Size d = this->dim();
  auto figures = counters();
  std::vector<T> sigma(static_cast<std::size_t>(d));
  auto copy = Matrix<T>::copy_of(U());
  backend.svd(copy, sigma, {});
  figures.push_back({"sigma_min", static_cast<double>(sigma.back())});
  figures.push_back({"sigma_max", static_cast<double>(sigma.front())});
  if (keeps_inverse()) {
    Matrix<T> product(d, d);
    backend.gemm(Op::transpose, Op::none, T(1), U(), U_inv_T(), T(0), product);
    const auto identity = Matrix<T>::identity(d);
    backend.add(T(1), product, T(-1), identity, product);
    figures.push_back({"inverse_error", std::sqrt(backend.dot(product, product))});  // ‖UᵀU⁻ᵀ − I‖_F
  }
  figures.push_back({"Q_drift", this->drift_of(Q())});
  return figures;
}

template <class T>
std::vector<GemmShape> FactoredLayer<T>::step_products(Size m) const {
  const Size d = this->dim(), stack = stack_height();
  return {
      {Op::none, Op::none, stack, m, d},       // [QH; UH; U⁻ᵀH]
      {Op::transpose, Op::none, d, m, d},      // Ŷ
      {Op::transpose, Op::none, m, m, d},      // M
      {Op::transpose, Op::none, m, m, d},      // HᵀH
      {Op::none, Op::none, d, m, m},           // X (…)⁻¹: two triangular solves, as many flops
      {Op::none, Op::none, d, m, m},           // HM
      {Op::none, Op::transpose, stack, d, m},  // the commit
  };
}

template class FactoredLayer<float>;
template class FactoredLayer<double>;

}  // namespace widehead
