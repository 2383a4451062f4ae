#pragma once
/// What is done about U when a window of the windowed layer closes: U is factored, the few directions in
/// which it has become small are found, and taken out of it. W = V U = (V R) U′ stays as it is: with U_s
/// (d x r) an orthonormal basis of those directions, and the QR factors U_sᵀU = B Q̃,
///   U′ = U + U_s (Q̃ − U_sᵀU),   R = I + U_s (B − I) U_sᵀ.
/// Any orthonormal U_s keeps W; that it spans nearly the right left singular vectors only matters to the
/// condition of U′. So a few **probes** do: they follow the directions in which U is smallest by one step of
/// inverse iteration a window, with the LU at hand, from where the last window left them. No SVD of U is taken.

#include <cstdint>
#include <span>
#include <vector>

#include "widehead/backend.h"
#include "widehead/state.h"

namespace widehead {

struct DeflationOptions {
  double below = 0.1;  ///< directions in which U is smaller than this are deflated
  Size probes = 4;     ///< directions examined per window
};

template <class T>
class Deflation {
 public:
  Deflation(Backend<T>& backend, Size dim, const DeflationOptions& options, std::uint64_t seed);

  /// Factors U and looks at it. Returns its smallest singular value, from above; 0 where it is singular,
  /// and then there is no inverse.
  double examine(ConstView<T> U_T);
  /// Directions that call for deflation.
  Size count() const;
  /// Whether nothing else does: with every probe calling for it, there may be more.
  bool sees_all() const { return count() < probes_.cols() || probes_.cols() == dim_; }

  /// Takes them out of the U examined: adds U′ᵀ − Uᵀ to `change`.
  void deflate(ConstView<T> U_T, MatrixView<T> change);
  Size rank() const { return rank_; }  ///< r of this window; 0 where nothing was deflated
  /// The columns z of Vᵀ become Rᵀz = (I + b aᵀ) z.
  ConstView<T> a() { return a_.scratch(dim_, rank_); }
  ConstView<T> b() { return b_.scratch(dim_, rank_); }
  void apply(MatrixView<T> Z);
  /// X ← U′⁻ᵀX.
  void multiply_by_inverse(MatrixView<T> X);

  /// The direction of h in which the U examined is smallest (d x 1); empty where it is hardly smaller than in others,
  /// or nobody knows, as of a singular U.
  ConstView<T> smallest();

  double flops() const { return flops_; }  ///< of everything so far
  /// The probes, which go on from window to window, and what they saw; all else is made anew by examine.
  void visit_state(StateVisitor& visitor);

 private:
  void start_probes();
  /// Flops of a d x d matrix, or its LU factors, against so many columns.
  double square_flops(Size columns) const { return GemmShape{Op::none, Op::none, dim_, columns, dim_}.flops(); }

  Backend<T>& backend_;
  Size dim_;
  DeflationOptions options_;
  std::uint64_t seed_;
  Size rank_ = 0;
  bool knows_values_ = false;  // whether the singular values on the probes are those of the U examined
  double flops_ = 0;

  Matrix<T> LU_;                   // d x d, of Uᵀ
  Matrix<int> pivots_;             // d
  Matrix<T> probes_, images_;      // d x probes
  Matrix<T> ritz_, ritz_vectors_;  // probes x probes
  std::vector<T> squared_sigma_;   // of U on the probes, decreasing
  Matrix<T> a_, b_, Q_tilde_T_;    // d x r
  Matrix<T> R_;                    // r x r
  Matrix<T> projections_, QX_T_;   // columns x r
  Matrix<T> smallest_;             // d x 1
};

}  // namespace widehead
