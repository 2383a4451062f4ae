#include "widehead/reflection.h"

#include <cmath>

namespace widehead {

/// w = (v − e₁)/‖v − e₁‖ for v = ±direction/‖direction‖, of the sign with which nothing cancels.
template <class T>
void Reflection<T>::aim(ConstView<T> direction) {
  turns_ = false;
  if (direction.empty()) return;
  const double length = std::sqrt(backend_.dot(direction, direction));
  if (!(length > 0) || !std::isfinite(length)) return;
  const double scale = (direction(0, 0) > T(0) ? -1 : 1) / length;
  const double v_1 = scale * static_cast<double>(direction(0, 0));
  const double distance = std::sqrt(2 - 2 * v_1);  // ‖v − e₁‖, at least √2
  for (Size i = 0; i < direction.rows; ++i) {
    w_(i, 0) = static_cast<T>((scale * static_cast<double>(direction(i, 0)) - (i == 0 ? 1 : 0)) / distance);
  }
  turns_ = true;
}

template <class T>
void Reflection<T>::apply(MatrixView<T> Z) {
  if (!turns_) return;
  const auto projections = projections_.scratch(Z.cols, 1);
  backend_.gemm(Op::transpose, Op::none, T(1), Z, w_, T(0), projections);
  backend_.gemm(Op::none, Op::transpose, T(-2), w_, projections, T(1), Z);
}

template class Reflection<float>;
template class Reflection<double>;

}  // namespace widehead
