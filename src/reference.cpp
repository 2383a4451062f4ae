#include "widehead/reference.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "widehead/errors.h"

namespace widehead {
namespace {

using Vector = Reference::Vector;
using Table = Reference::Table;

Table table(std::size_t rows, std::size_t cols) { return Table(rows, Vector(cols)); }

Table identity(std::size_t n) {
  Table I = table(n, n);
  for (std::size_t i = 0; i < n; ++i) I[i][i] = 1;
  return I;
}

Table transposed(const Table& A) {
  Table B = table(A[0].size(), A.size());
  for (std::size_t i = 0; i < A.size(); ++i) {
    for (std::size_t j = 0; j < A[0].size(); ++j) B[j][i] = A[i][j];
  }
  return B;
}

Table product(const Table& A, const Table& B) {
  Table C = table(A.size(), B[0].size());
  for (std::size_t i = 0; i < A.size(); ++i) {
    for (std::size_t k = 0; k < B.size(); ++k) {
      for (std::size_t j = 0; j < B[0].size(); ++j) C[i][j] += A[i][k] * B[k][j];
    }
  }
  return C;
}

/// A + s B
Table sum(const Table& A, double s, const Table& B) {
  Table C = A;
  for (std::size_t i = 0; i < A.size(); ++i) {
    for (std::size_t j = 0; j < A[0].size(); ++j) C[i][j] += s * B[i][j];
  }
  return C;
}

Vector product(const Table& A, const Vector& x) {
  Vector y(A.size());
  for (std::size_t i = 0; i < A.size(); ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) y[i] += A[i][j] * x[j];
  }
  return y;
}

double dot(const Vector& x, const Vector& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

/// A += s x yᵀ
void add_outer(Table& A, double s, const Vector& x, const Vector& y) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < y.size(); ++j) A[i][j] += s * x[i] * y[j];
  }
}

/// A⁻¹ by Gauss-Jordan elimination with row exchanges.
Table inverse(Table A) {
  const std::size_t n = A.size();
  Table B = identity(n);
  for (std::size_t k = 0; k < n; ++k) {
    std::size_t pivot = k;
    for (std::size_t i = k + 1; i < n; ++i) {
      if (std::abs(A[i][k]) > std::abs(A[pivot][k])) pivot = i;
    }
    if (!(std::abs(A[pivot][k]) > 0)) throw NumericalError("reference: a matrix to be inverted is singular");
    std::swap(A[k], A[pivot]);
    std::swap(B[k], B[pivot]);
    const double scale = 1 / A[k][k];
    for (std::size_t j = 0; j < n; ++j) A[k][j] *= scale, B[k][j] *= scale;
    for (std::size_t i = 0; i < n; ++i) {
      const double factor = A[i][k];
      if (i == k || factor == 0) continue;
      for (std::size_t j = 0; j < n; ++j) A[i][j] -= factor * A[k][j], B[i][j] -= factor * B[k][j];
    }
  }
  return B;
}

/// Left singular vectors (rows of the result) and singular values of A by one-sided Jacobi
/// rotations of its rows, which end up orthogonal: J A = diag(σ) V̄ᵀ, so Ū = Jᵀ.
Table left_singular_vectors(Table A, Vector& sigma) {
  const std::size_t n = A.size();
  Table J = identity(n);
  bool rotated = true;
  for (int sweep = 0; rotated && sweep < 60; ++sweep) {
    rotated = false;
    for (std::size_t p = 0; p + 1 < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        const double a = dot(A[p], A[p]), b = dot(A[q], A[q]), c = dot(A[p], A[q]);
        if (std::abs(c) <= 1e-15 * std::sqrt(a * b)) continue;
        rotated = true;
        const double zeta = (b - a) / (2 * c);
        const double t = (zeta >= 0 ? 1 : -1) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
        const double cosine = 1 / std::sqrt(1 + t * t), sine = cosine * t;
        for (Table* rows : {&A, &J}) {
          for (std::size_t j = 0; j < n; ++j) {
            const double x = (*rows)[p][j], y = (*rows)[q][j];
            (*rows)[p][j] = cosine * x - sine * y;
            (*rows)[q][j] = sine * x + cosine * y;
          }
        }
      }
    }
  }
  sigma.resize(n);
  for (std::size_t k = 0; k < n; ++k) sigma[k] = std::sqrt(dot(A[k], A[k]));
  return J;
}

}  // namespace

Reference::Reference(Size outputs, Size dim)
    : V(table(static_cast<std::size_t>(outputs), static_cast<std::size_t>(dim))),
      U(identity(static_cast<std::size_t>(dim))),
      U_inv_T(U),
      Q(table(static_cast<std::size_t>(dim), static_cast<std::size_t>(dim))) {}

double Reference::loss(const Vector& h, const Vector& y, Vector& grad_h) const {
  const Vector h_hat = product(Q, h);                                      // ĥ = Qh
  const Vector y_hat = product(transposed(U), product(transposed(V), y));  // ŷ = Uᵀ(Vᵀy)
  grad_h.resize(h.size());
  for (std::size_t i = 0; i < h.size(); ++i) grad_h[i] = 2 * (h_hat[i] - y_hat[i]);  // Eq. 2
  return dot(h, h_hat) - 2 * dot(h, y_hat) + dot(y, y);                              // Eq. 1
}

double Reference::online_step(const Vector& h, const Vector& y, double eta, Vector& grad_h) {
  const double pivot = 1 - 2 * eta * dot(h, h);
  if (std::abs(pivot) <= 4 * std::numeric_limits<double>::epsilon()) {
    throw NumericalError(fmt::format("Algorithm 1 step 7: 1 − 2η‖h‖² = {} is singular (eta = {})", pivot, eta));
  }
  const Vector h_hat = product(Q, h);                                      // Alg. 1 step 1: ĥ = Qh
  const Vector y_hat = product(transposed(U), product(transposed(V), y));  // Alg. 1 step 2: ŷ = Uᵀ(Vᵀy)
  Vector z_hat = h_hat;                                                    // Alg. 1 step 3: ẑ = ĥ − ŷ
  for (std::size_t i = 0; i < h.size(); ++i) z_hat[i] -= y_hat[i];
  grad_h.resize(h.size());  // Alg. 1 step 4: ∇h = 2ẑ
  for (std::size_t i = 0; i < h.size(); ++i) grad_h[i] = 2 * z_hat[i];
  const double L = dot(h, h_hat) - 2 * dot(h, y_hat) + dot(y, y);  // Alg. 1 step 5
  add_outer(U, -2 * eta, product(U, h), h);                        // Alg. 1 step 6, Eq. 3
  add_outer(U_inv_T, 2 * eta / pivot, product(U_inv_T, h), h);     // Alg. 1 step 7, Eq. 5
  add_outer(V, 2 * eta, y, product(U_inv_T, h));                   // Alg. 1 step 8, Eq. 4
  add_outer(Q, -2 * eta, h, z_hat);                                // Alg. 1 step 9, Eq. 6
  add_outer(Q, -2 * eta, z_hat, h);
  add_outer(Q, 4 * eta * eta * L, h, h);
  return L;
}

double Reference::minibatch_step(const Table& H, const Table& Y, double eta, Table& grad_H) {
  const Table H_T = transposed(H);
  // Alg. 2 step 8 first, because it alone can fail: (HᵀH − I/(2η))⁻¹Hᵀ; η = 0 changes nothing.
  Table update = table(H_T.size(), H.size());
  if (eta > 0) {
    try {
      update = product(inverse(sum(product(H_T, H), -1 / (2 * eta), identity(H_T.size()))), H_T);
    } catch (const NumericalError&) {
      throw NumericalError(fmt::format("Algorithm 2 step 8: HᵀH − I/(2η) is singular (eta = {})", eta));
    }
  }
  const Table H_hat = product(Q, H);                                      // Alg. 2 step 1: Ĥ = QH
  const Table Y_hat = product(transposed(U), product(transposed(V), Y));  // Alg. 2 step 2: Ŷ = Uᵀ(VᵀY)
  const Table Z_hat = sum(H_hat, -1, Y_hat);                              // Alg. 2 step 3: Ẑ = Ĥ − Ŷ
  grad_H = sum(Z_hat, 1, Z_hat);                                          // Alg. 2 step 4: ∇H = 2Ẑ
  const Table M =
      sum(sum(product(H_T, Z_hat), -1, product(transposed(Y_hat), H)), 1, product(transposed(Y), Y));  // Alg. 2 step 5
  double L = 0;  // Alg. 2 step 6: L = tr(M)
  for (std::size_t j = 0; j < M.size(); ++j) L += M[j][j];
  U = sum(U, -2 * eta, product(product(U, H), H_T));                                 // Alg. 2 step 7
  U_inv_T = sum(U_inv_T, -1, product(product(U_inv_T, H), update));                  // Alg. 2 step 8
  V = sum(V, 2 * eta, product(Y, transposed(product(U_inv_T, H))));                  // Alg. 2 step 9
  Q = sum(Q, -2 * eta, sum(product(H, transposed(Z_hat)), 1, product(Z_hat, H_T)));  // Alg. 2 step 10
  Q = sum(Q, 4 * eta * eta, product(product(H, M), H_T));
  return L;
}

void Reference::singular_stabilize(double sigma_low, double sigma_high) {
  U_inv_T = transposed(inverse(U));
  Vector sigma;
  const Table u = left_singular_vectors(U, sigma);
  for (std::size_t k = 0; k < sigma.size(); ++k) {
    if (sigma[k] < sigma_low || sigma[k] > sigma_high) fix_singular_value(sigma[k], u[k], 1);
  }
}

void Reference::fix_singular_value(double sigma, const Vector& u, double sigma_star) {
  const double alpha = (sigma_star - sigma) / sigma;
  const double beta = -alpha / (1 + alpha);
  add_outer(U, alpha, u, product(transposed(U), u));
  add_outer(V, beta, product(V, u), u);
  add_outer(U_inv_T, beta, u, product(transposed(U_inv_T), u));
}

void Reference::restore_pristine() {
  V = W();
  U = identity(U.size());
  U_inv_T = U;
}

bool Reference::is_finite() const {
  double poison = 0;  // stays 0 unless some value is NaN or infinite
  for (const Table* table : {&V, &U, &U_inv_T, &Q}) {
    for (const Vector& row : *table) {
      for (const double value : row) poison += 0 * value;
    }
  }
  return poison == 0;
}

Reference::Table Reference::W() const { return product(V, U); }

// ── behind the interface of all layers ──────────────────────────────────────────────────────────

namespace {

Table to_table(ConstView<double> A) {
  Table B = table(static_cast<std::size_t>(A.rows), static_cast<std::size_t>(A.cols));
  for (Size i = 0; i < A.rows; ++i) {
    for (Size j = 0; j < A.cols; ++j) B[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] = A(i, j);
  }
  return B;
}

/// Y (D x m) with its zeros.
Table to_table(const SparseBatch<double>& batch) {
  Table Y = table(static_cast<std::size_t>(batch.outputs()), static_cast<std::size_t>(batch.examples()));
  for (Size j = 0; j < batch.examples(); ++j) {
    for (Size e = batch.begin(j); e < batch.end(j); ++e) {
      Y[static_cast<std::size_t>(batch.index(e))][static_cast<std::size_t>(j)] += batch.value(e);
    }
  }
  return Y;
}

void write(const Table& A, MatrixView<double> out) {
  if (out.empty()) return;
  for (std::size_t i = 0; i < A.size(); ++i) {
    for (std::size_t j = 0; j < A[0].size(); ++j) out(static_cast<Size>(i), static_cast<Size>(j)) = A[i][j];
  }
}

}  // namespace

ReferenceLayer::ReferenceLayer(const LayerOptions& options, const StabilizerOptions& stabilizer,
                               std::shared_ptr<Backend<double>> backend)
    : OutputLayer<double>(options, std::move(backend)),
      reference_(options.outputs, options.dim),
      stabilizer_(stabilizer),
      W_(options.dim, options.outputs) {
  const Stabilizer<double> checked(this->backend(), stabilizer, options.dim);  // refuses bad options
  if (options.weight_decay != 0) {
    throw std::invalid_argument(
        fmt::format("reference layer: weight_decay = {}, but the paper's algorithms have none", options.weight_decay));
  }
  if (!std::holds_alternative<SquaredError>(options.loss)) {
    throw std::invalid_argument(fmt::format(
        "reference layer: loss {}, but the paper's algorithms are for squared error", name_of(options.loss)));
  }
  fill_initial(W_);
  reference_.V = transposed(to_table(W_));
  reference_.Q = product(transposed(reference_.V), reference_.V);
}

double ReferenceLayer::take_step(ConstView<double> H, const SparseBatch<double>& targets, double eta,
                                 MatrixView<double> grad_H) {
  return with_weights_folded(H, targets, grad_H, [&](ConstView<double> H_w, const SparseBatch<double>& Y) {
    return take_unweighted_step(H_w, Y, eta, grad_H);
  });
}

double ReferenceLayer::take_unweighted_step(ConstView<double> H, const SparseBatch<double>& targets, double eta,
                                            MatrixView<double> grad_H) {
  const Table h = to_table(H), y = to_table(targets);
  Table grad;
  double L = 0;
  const Reference before = reference_;
  if (H.cols == 1) {
    Vector grad_h;
    L = reference_.online_step(transposed(h)[0], transposed(y)[0], eta, grad_h);
    grad = transposed(Table{grad_h});
  } else {
    L = reference_.minibatch_step(h, y, eta, grad);
  }
  write(grad, grad_H);
  if (stabilizer_.kind != Stabilize::never && (steps() + 1) % stabilizer_.n_check == 0) {
    reference_.singular_stabilize(stabilizer_.sigma_low, stabilizer_.sigma_high);
  }
  if (!reference_.is_finite()) {
    reference_ = before;
    throw NumericalError(fmt::format("step {}: the update overflows (loss = {}, eta = {}); the step was not taken",
                                     steps() + 1, L, eta));
  }
  return L;
}

double ReferenceLayer::compute_loss(ConstView<double> H, const SparseBatch<double>& targets,
                                    MatrixView<double> grad_H) {
  return with_weights_folded(H, targets, grad_H, [&](ConstView<double> H_w, const SparseBatch<double>& Y) {
    const Table h = transposed(to_table(H_w)), y = transposed(to_table(Y));
    double L = 0;
    Table grad(h.size());
    for (std::size_t j = 0; j < h.size(); ++j) L += reference_.loss(h[j], y[j], grad[j]);
    write(transposed(grad), grad_H);
    return L;
  });
}

void ReferenceLayer::visit_own_state(StateVisitor& visitor) {
  const auto visit = [&](const char* name, Table& table) {
    Matrix<double> copy(static_cast<Size>(table.size()), dim());
    write(table, copy);
    visitor.block(name, copy.view());
    table = to_table(copy);
  };
  visit("V", reference_.V);
  visit("U", reference_.U);
  visit("U_inv_T", reference_.U_inv_T);
  visit("Q", reference_.Q);
}

void ReferenceLayer::refresh_W() { write(transposed(reference_.W()), W_); }

void ReferenceLayer::begin_scores(ConstView<double> H) {
  refresh_W();
  H_scored_ = H;
}

void ReferenceLayer::write_scores(std::span<const Index> rows, MatrixView<double> out) {
  multiply_rows(W_, rows, H_scored_, out);
}

void ReferenceLayer::write_weights(Size first, MatrixView<double> out) {
  refresh_W();
  backend().copy(W_.view().columns(first, out.cols), out);
}

Matrix<double> ReferenceLayer::gram() {
  Matrix<double> Q(dim(), dim());
  write(reference_.Q, Q);
  return Q;
}

std::vector<GemmShape> ReferenceLayer::step_products(Size) const { return {}; }

}  // namespace widehead
