#pragma once
/// A reflection I − 2wwᵀ that takes one direction to the first coordinate axis: what a basis of V is turned by, so that
/// what is largest in a row stands in one number of it, and no other is rounded with it (docs/algorithm.md, section 4).

#include "widehead/backend.h"

namespace widehead {

template <class T>
class Reflection {
 public:
  Reflection(Backend<T>& backend, Size dim) : backend_(backend), w_(dim, 1) {}

  /// Of this direction (d x 1, of any length but 0), or none at all: of an empty view, or one that is not finite.
  void aim(ConstView<T> direction);
  /// Z ← (I − 2wwᵀ) Z.
  void apply(MatrixView<T> Z);

 private:
  Backend<T>& backend_;
  Matrix<T> w_;            // d x 1, of length 1
  bool turns_ = false;     // whether there is a w
  Matrix<T> projections_;  // columns x 1
};

}  // namespace widehead
