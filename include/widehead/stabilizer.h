#pragma once
/// Algorithm 3 of the paper: keeping the singular values of U in a safe range without changing W = V U.

#include <cstdint>
#include <vector>

#include "widehead/backend.h"
#include "widehead/matrix.h"
#include "widehead/state.h"

namespace widehead {

enum class Stabilize {
  never,
  pristine,  ///< V ← V U, U ← I whenever a singular value has left the range: O(Dd²)
  svd,       ///< fix every offending singular value, found by a full SVD of U: O(d³) + O(Dd) a fix
  power,     ///< fix them one by one, found by power iteration: O(d²) an iteration + O(Dd) a fix
};

struct StabilizerOptions {
  Stabilize kind = Stabilize::power;
  double sigma_low = 0.001;    ///< the paper's example; 0.5 … 2 every 10 steps is what float32 needs
  double sigma_high = 100;     ///< (docs/algorithm.md)
  std::int64_t n_check = 100;  ///< steps between two checks
  int iterations = 100;        ///< of the power method, as in the paper
};

/// The state Algorithm 3 acts on; V is held as d x D.
template <class T>
struct Factors {
  MatrixView<T> V;
  MatrixView<T> U;
  MatrixView<T> U_inv_T;
};

template <class T>
class Stabilizer {
 public:
  struct Account {
    std::int64_t checks = 0;
    std::int64_t fixes = 0;     ///< singular values brought back to 1
    std::int64_t restores = 0;  ///< times the pristine state was restored
    double seconds = 0;         ///< spent in all of this
  };

  /// @throws std::invalid_argument for an empty range, one without 1 in it, or counts below 1
  Stabilizer(Backend<T>& backend, const StabilizerOptions& options, Size dim);

  bool due(std::int64_t steps) const { return options_.kind != Stabilize::never && steps % options_.n_check == 0; }

  /// SINGULAR-STABILIZE. U⁻ᵀ is computed afresh first, and again after fixes. Returns a factor by which
  /// the norm of V has grown at most.
  double check(Backend<T>& backend, Factors<T> factors);

  /// V ← V U, U ← I, U⁻ᵀ ← I.
  void restore_pristine(Backend<T>& backend, Factors<T> factors);

  const StabilizerOptions& options() const { return options_; }
  const Account& account() const { return account_; }
  /// The account, which also seeds the power iterations of each check.
  void visit_state(StateVisitor& visitor);

 private:
  void check_by_svd(Backend<T>& backend, Factors<T> factors);
  void check_by_power_iteration(Backend<T>& backend, Factors<T> factors);
  bool is_unsafe(double sigma) const { return sigma < options_.sigma_low || sigma > options_.sigma_high; }
  /// FIX-SINGULAR-VALUE(σ, u, 1) on U and U⁻ᵀ; V's part is kept for apply_to_V.
  void fix_singular_value(Backend<T>& backend, Factors<T> factors, double sigma, ConstView<T> u);
  void apply_to_V(Backend<T>& backend, MatrixView<T> V);

  StabilizerOptions options_;
  Account account_;
  double V_growth_ = 1;  // of the present check
  Matrix<T> scratch_;    // d x d
  Matrix<T> left_;       // d x d: left singular vectors
  Matrix<T> vectors_;    // d x 3: u, and two products
  Matrix<T> fixed_u_;    // d x (fixes of this check)
  std::vector<T> fixed_beta_;
  Matrix<T> fixed_beta_room_;  // the same in the backend's memory
  std::vector<T> sigma_;
  Matrix<T> start_vector_;  // d, on the host
};

/// U_inv_T ← U⁻ᵀ from scratch, by LU. Returns false, and leaves it alone, when U is singular.
template <class T>
bool invert_afresh(Backend<T>& backend, ConstView<T> U, Matrix<T>& scratch, MatrixView<T> U_inv_T);

}  // namespace widehead
