#pragma once
/// How Q = WᵀW follows a step of W, for every loss of the family:
///   Q ← c²Q − η (PHᵀ + HPᵀ),   P = c∇H − (η/2) H N,
///   N = RᵀR = 4 diag(a)HᵀĤ diag(a) + ΓᵀΓ + 2(K + Kᵀ) + [terms of b],   K = diag(a)HᵀΓ̂,
/// with R = 2WH diag(a) + 1bᵀ + Γ, the gradient by the outputs. Only the symmetric part of H N Hᵀ enters
/// Q, so N may be any matrix with that symmetric part, and
///   N = 4 F + ΓᵀΓ + …,   F = diag(a)Hᵀ(Ĥ diag(a) + Γ̂),
/// takes one product. Where products are done side by side (Backend::overlaps) one more is dear only if it waits for
/// others, and H N is not made from N, but as K C + H (N − 4 F), with K = 4 H diag(a) Hᵀ and C = Ĥ diag(a) + Γ̂: K is
/// there before C is. For the squared error N = 4M, P = 2(cẐ − ηHM) with the M of Alg. 2 step 5.

#include "widehead/common_part.h"

namespace widehead {

template <class T>
class GramUpdate {
 public:
  explicit GramUpdate(Backend<T>& backend)
      : H_a_(backend.memory()), C_(backend.memory()), N_(backend.memory()), K_(backend.memory()) {}

  /// H_hat ← P, and grad_H ← ∇H = 2Ĥ diag(a) + w̄bᵀ + Γ̂ on the way. Γ̂ is at hand, or made of W's rows at the targets,
  /// W + apart, where these are given. So may be Hᵀ, m x d: then F is made as its factors lie where a = 1.
  void replace_by_P(Backend<T>& backend, ConstView<T> H, ConstView<T> H_T, const Derivatives<T>& by,
                    CommonPart<T>& common, MatrixView<T> Gamma_hat, ConstView<T> W, ConstView<T> apart, T eta, T c,
                    MatrixView<T> H_hat, MatrixView<T> grad_H);
  /// Room for so many examples, which replace_by_P then does not ask for.
  void reserve(Size d, Size m) {
    H_a_.scratch(d, m);
    C_.scratch(d, m);
    N_.scratch(m, m);
  }
  /// H diag(a), as of the last call; a view of H where a = 1.
  ConstView<T> H_a() const { return H_a_view_; }

 private:
  Matrix<T> H_a_;  // d x m
  ConstView<T> H_a_view_;
  Matrix<T> C_;  // d x m: Ĥ diag(a) + Γ̂
  Matrix<T> N_;  // m x m
  Matrix<T> K_;  // d x d
};

}  // namespace widehead
