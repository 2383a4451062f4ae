#pragma once
/// Columns that are sums of other columns: gather, scatter and their kin. A block has one column (or a part of it) and
/// adds what belongs there in a fixed order.

#include "kernels.h"

namespace widehead::cuda {

/// A summand: value · column.
template <class T>
struct Term {
  T value;
  const T* column;
};

template <class T, class TermAt, class Target>
__global__ void sum_columns_kernel(const Index* starts, TermAt term, Target target, bool add, Size rows) {
  const Size i = static_cast<Size>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (i >= rows) return;
  T* result = target(static_cast<Size>(blockIdx.x)) + i;
  T sum = add ? *result : T(0);
  const Index last = starts[blockIdx.x + 1];
  for (Index k = starts[blockIdx.x]; k < last; ++k) {
    const Term<T> x = term(k);
    sum += x.value * x.column[i];
  }
  *result = sum;
}

/// Column target(c) ← Σₖ term(k), k = starts[c] … starts[c+1] − 1, added to what is there if `add`.
template <class T, class TermAt, class Target>
void sum_columns(cudaStream_t stream, Size columns, Size rows, const Index* starts, const TermAt& term,
                 const Target& target, bool add) {
  if (columns <= 0 || rows <= 0) return;
  constexpr int threads = 128;
  const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>((rows + threads - 1) / threads));
  sum_columns_kernel<T><<<grid, threads, 0, stream>>>(starts, term, target, add, rows);
  check_launch("sum_columns_kernel");
}

}  // namespace widehead::cuda
