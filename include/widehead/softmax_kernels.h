#pragma once
/// The elementwise part of a softmax, O(D) for each example: exponentials relative to the largest logit, and their sum.
/// For logits with an example per row, as products with all of W come out fastest, or per column.

#include <span>

#include "widehead/matrix.h"

namespace widehead {

/// For every row j: maxima[j] = maxᵢ A(j, i), A(j, i) ← exp(A(j, i) − maxima[j]), sums[j] = Σᵢ A(j, i) in double. A
/// logit of −∞ counts as 0; where there is none above it, the maximum is the lowest number. Not finite where A is not.
/// The result does not depend on the number of threads.
template <class T>
void exponentiate_rows(MatrixView<T> A, int threads, std::span<T> maxima, std::span<double> sums);

/// The same for every column.
template <class T>
void exponentiate_columns(MatrixView<T> A, int threads, std::span<T> maxima, std::span<double> sums);

/// A ← diag(a) A.
template <class T>
void scale_rows(std::span<const T> a, int threads, MatrixView<T> A);

}  // namespace widehead
