#pragma once
/// eˣ for x ≤ 0, as a softmax needs it once the largest logit is taken off.

#include "widehead/matrix.h"

namespace widehead {

/// x ← eˣ for n values x ≤ 0, to 2 ε (a test, over the whole range). What would be smaller is the smallest normal
/// number, 2⁻¹²⁶ or 2⁻¹⁰²², e^−∞ too; a NaN stays one.
template <class T>
void exp_of_non_positive(Size n, T* x);

}  // namespace widehead
