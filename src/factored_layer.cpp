#include "widehead/factored_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "widehead/device_state.h"
#include "widehead/errors.h"

namespace widehead {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

template <class T>
FactoredLayer<T>::FactoredLayer(const LayerOptions& options, const FactoredOptions& factored,
                                std::shared_ptr<Backend<T>> backend)
    : SphericalLayer<T>(options, std::move(backend)),
      factored_(factored),
      V_(options.dim, options.outputs, this->backend().memory()),
      S_(3 * options.dim, options.dim, this->backend().memory()),
      common_(this->backend(), options.outputs, options.dim, this->uses_sum()),
      stabilizer_(this->backend(), factored.stabilizer, options.dim),
      gram_update_(this->backend()),
      pivots_(options.dim, 1, this->backend().memory()) {
  if (factored.refresh_every < 1) {
    throw std::invalid_argument(
        fmt::format("factored layer: refresh_every = {}, but it must be at least 1", factored.refresh_every));
  }
  for (auto* scratch : {&T_, &Z_, &VtG_, &Gamma_hat_, &G_, &UH_, &square_}) {
    *scratch = Matrix<T>(this->backend().memory());
  }
  this->backend().set_identity(U());
  this->backend().set_identity(U_inv_T());
  this->fill_initial(V_);
  if (options.initial != Initial::zero) {
    this->gram_of_rows(V_, Q());
    if (common_.in_use()) {
      common_.set_sum_of_rows(this->sum_rows(V_));
    }
    V_bound_ = infinity;
  }
}

/// Alg. 2 step 1, [QH; UH; U⁻ᵀH] by one product, and what the loss depends on:
/// q = diag(HᵀĤ), o_t = V_i·(UH)_j + ωᵀh_j.
template <class T>
void FactoredLayer<T>::observe(ConstView<T> H, const RowGroups<T>& targets, const Statistics& statistics) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols;
  const auto TH = T_.scratch(3 * d, m);
  const auto S = S_.view().block(0, 0, stack_height(), d);
  backend.gemm(Op::none, Op::none, T(1), S, H, T(0), TH.block(0, 0, stack_height(), m));
  backend.column_dots(H, TH.block(0, 0, d, m), statistics.q);

  const auto Z = Z_.scratch(d, targets.count());
  if (targets.count() > 0) backend.move_columns(V_, targets.rows(), {}, Z);
  backend.dots_at(Z, targets, TH.block(d, 0, d, m), 0, statistics.o);
  common_.observe(H, targets, statistics);
}

/// Γ̂ = Uᵀ(VᵀΓ) + ωγᵀ (Alg. 2 steps 2, 3).
template <class T>
MatrixView<T> FactoredLayer<T>::compute_Gamma_hat(Size m, const Derivatives<T>& by) {
  auto& backend = this->backend();
  const Size d = this->dim();
  const auto Z = Z_.scratch(d, by.Gamma.count()), VtG = VtG_.scratch(d, m), Gamma_hat = Gamma_hat_.scratch(d, m);
  backend.clear(VtG);
  backend.add_combination(Z, by.Gamma, by.g, VtG);
  backend.gemm(Op::transpose, Op::none, T(1), U(), VtG, T(0), Gamma_hat);
  common_.add_to_Gamma_hat(by, Gamma_hat);
  return Gamma_hat;
}

/// ∇H = 2Ĥ diag(a) + w̄bᵀ + Γ̂ (step 4).
template <class T>
void FactoredLayer<T>::backpropagate(ConstView<T> H, const Derivatives<T>& by, MatrixView<T> grad_H) {
  const Size d = this->dim(), m = H.cols;
  const auto Gamma_hat = compute_Gamma_hat(m, by);
  const auto H_hat = T_.scratch(3 * d, m).block(0, 0, d, m);
  common_.write_gradient(by, H_hat, Gamma_hat, grad_H);
}

/// X ← −U_new⁻ᵀH, given U⁻ᵀH in X where U⁻ᵀ is kept. With A = cI − 2ηH diag(a) Hᵀ and U_new = U A,
///   U_new⁻ᵀH = U⁻ᵀA⁻¹H = U⁻ᵀH (cI − 2η diag(a) HᵀH)⁻¹.
/// The m x m solve that Woodbury needs anyway (Alg. 2 step 8) so gives the factor of step 9; the
/// sign of the shift turns it into −U_new⁻ᵀH, which the stacked product of the commit half wants.
/// Returns the reciprocal condition of cI − 2η diag(a) HᵀH.
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
  backend.gemm(Op::transpose, Op::none, 2 * eta, gram_update_.H_a(), H, T(0), G);
  return backend.solve_shifted(-c, G, 4 * std::numeric_limits<T>::epsilon(), X);
}

/// Whether the commit half stays finite. The stack grows by 2η‖TH‖‖H_a‖ at most (and by 1/c), V by
/// η‖TH‖Σ|g|; the bounds follow, and the norms themselves are taken only where the bounds do not settle it.
template <class T>
bool FactoredLayer<T>::fits(ConstView<T> H, const Derivatives<T>& by, ConstView<T> S, ConstView<T> TH, T eta, T c) {
  auto& backend = this->backend();
  const double limit = static_cast<double>(std::numeric_limits<T>::max()) / 1024;
  const double factor = 2 * static_cast<double>(eta) * std::sqrt(backend.dot(TH, TH));
  double sum_Gamma = 0;
  const auto g = this->template on_host<T>(by.g, host_g_);
  for (Size e = 0; e < g.rows; ++e) sum_Gamma += std::abs(static_cast<double>(g(e, 0)));
  const double stack_growth = factor * std::sqrt(backend.dot(H, H)) * std::max(1.0, by.largest_a);
  const double V_growth = factor * sum_Gamma;
  const auto stack_after = [&] { return (stack_bound_ + stack_growth) / static_cast<double>(c); };
  if (!(stack_after() < limit)) stack_bound_ = std::sqrt(backend.dot(S, S));
  if (!(V_bound_ + V_growth < limit)) V_bound_ = std::sqrt(backend.dot(V_, V_));
  if (!(stack_after() < limit) || !(V_bound_ + V_growth < limit)) return false;
  stack_bound_ = stack_after();
  V_bound_ += V_growth;
  return true;
}

template <class T>
void FactoredLayer<T>::update(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) {
  compute_Gamma_hat(H.cols, by);
  update_after_backpropagate(H, by, eta, grad_H);
}

/// With Γ̂ at hand.
template <class T>
void FactoredLayer<T>::update_after_backpropagate(ConstView<T> H, const Derivatives<T>& by, T eta,
                                                  MatrixView<T> grad_H) {
  auto& backend = this->backend();
  const Size d = this->dim(), m = H.cols;
  const T c = this->shrinkage(eta);

  // ── the read-only half ────────────────────────────────────────────────────────────────────────
  const auto TH = T_.scratch(3 * d, m);
  const auto S = S_.view().block(0, 0, stack_height(), d);
  const auto H_hat = TH.block(0, 0, d, m), X = TH.block(2 * d, 0, d, m);
  // Ĥ becomes P, so that (step 10) Q_new = c²Q − η(HPᵀ + PHᵀ) is the symmetric part of c²Q − 2ηPHᵀ.
  gram_update_.replace_by_P(backend, H, {}, by, common_, Gamma_hat_.scratch(d, m), {}, {}, eta, c, H_hat, grad_H);
  const T rcond = compute_U_inv_T_H(H, eta, c, X);  // steps 8, 9: X = −U_new⁻ᵀH
  if (!(rcond >= 4 * std::numeric_limits<T>::epsilon())) {
    throw NumericalError(fmt::format(
        "step {}: {}I − 2ηHᵀH is singular (reciprocal condition {:.3g}, eta = {}, 2η‖H‖² = {:.9g}): U has no inverse after "
        "this step, which was not taken; any other eta will do",
        this->steps() + 1, c, rcond, eta, 2 * static_cast<double>(eta) * backend.dot(gram_update_.H_a(), H)));
  }
  common_.prepare(H, static_cast<double>(c));
  if (!fits(H, by, S, TH, eta, c) || !common_.fits()) {
    throw NumericalError(fmt::format("step {}: the update overflows ({}); the step was not taken", this->steps() + 1,
                                     this->describe_rate(H, eta)));
  }

  // ── the commit half: [Q; U; U⁻ᵀ] ← [c²Q; cU; U⁻ᵀ] − 2η [P; UH diag(a); X diag(a)] Hᵀ ──────────
  backend.scatter(eta, by.Gamma, by.g, X, V_);  // step 9: V_new = V − ηΓ(U_new⁻ᵀH)ᵀ, X having the sign
  if (!by.a_is_one) backend.scale_columns(by.a, TH.block(d, 0, stack_height() - d, m));
  backend.scale(c * c, Q());
  backend.scale(c, U());
  backend.gemm(Op::none, Op::transpose, -2 * eta, TH.block(0, 0, stack_height(), m), H, T(1), S);  // steps 7, 8, 10
  backend.symmetrize(Q());
  if (keeps_inverse()) backend.scale(1 / c, U_inv_T());  // A⁻¹ = (I + 2ηH(cI − 2η diag(a)HᵀH)⁻¹diag(a)Hᵀ)/c
  common_.commit();
  maintain(this->steps() + 1);
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

/// U⁻ᵀ is part of it even where each step solves: a check of a singular U falls back on the last one.
template <class T>
void FactoredLayer<T>::visit_own_state(StateVisitor& visitor) {
  visit_block(visitor, this->backend(), "V", V_.view());
  visit_block(visitor, this->backend(), "S", S_.view());
  visitor.scalar("stack_bound", stack_bound_);
  visitor.scalar("V_bound", V_bound_);
  visitor.count("inversions", inversions_);
  common_.visit_state(visitor);
  visitor.part("stabilizer", stabilizer_);
}

template <class T>
void FactoredLayer<T>::begin_scores(ConstView<T> H) {
  UH_scored_ = UH_.scratch(H.rows, H.cols);
  common_.begin_scores(H);
  this->backend().gemm(Op::none, Op::none, T(1), U(), H, T(0), UH_scored_);
}

template <class T>
void FactoredLayer<T>::write_scores(std::span<const Index> rows, MatrixView<T> out) {
  this->multiply_rows(V_, rows, UH_scored_, out);
  common_.add_to_scores(out);
}

template <class T>
void FactoredLayer<T>::write_weights(Size first, MatrixView<T> out) {
  this->backend().gemm(Op::transpose, Op::none, T(1), U(), V_.view().columns(first, out.cols), T(0), out);
  common_.add_to_weights(out);
}

template <class T>
Matrix<T> FactoredLayer<T>::sum_of_rows() {
  return common_.in_use() ? common_.sum_of_rows() : OutputLayer<T>::sum_of_rows();
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
  Matrix<T> copy(d, d, backend.memory());
  backend.copy(U(), copy);
  backend.svd(copy, sigma, {});
  figures.push_back({"sigma_min", static_cast<double>(sigma.back())});
  figures.push_back({"sigma_max", static_cast<double>(sigma.front())});
  if (keeps_inverse()) {
    Matrix<T> product(d, d, backend.memory()), identity(d, d, backend.memory());
    backend.gemm(Op::transpose, Op::none, T(1), U(), U_inv_T(), T(0), product);
    backend.set_identity(identity);
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
      {Op::transpose, Op::none, d, m, d},      // Γ̂
      {Op::transpose, Op::none, m, m, d},      // N
      {Op::transpose, Op::none, m, m, d},      // HᵀH
      {Op::none, Op::none, d, m, m},           // X (…)⁻¹: two triangular solves, as many flops
      {Op::none, Op::none, d, m, m},           // HN
      {Op::none, Op::transpose, stack, d, m},  // the commit
  };
}

template class FactoredLayer<float>;
template class FactoredLayer<double>;

}  // namespace widehead
