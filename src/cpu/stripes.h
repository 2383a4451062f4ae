#pragma once
/// How work is shared out among OpenMP's threads: disjoint stripes of the result, so that no two threads meet
/// and every sum keeps its order.

#include <omp.h>

#include <algorithm>
#include <exception>

#include "widehead/matrix.h"

namespace widehead {

/// Work below which waking a second thread costs more than it saves.
inline constexpr double min_parallel_flops = 2e6;
inline constexpr Size min_parallel_elements = 1 << 16;

/// Stripes start at multiples of this many rows or columns, the width of a vendor's register tile.
inline constexpr Size stripe_granule = 16;

/// Rows of V ahead of the one at work whose first lines are fetched early: they are scattered over
/// gigabytes, and the hardware cannot guess them.
inline constexpr Size prefetch_distance = 4;

template <class T>
void prefetch_row(const T* row, Size dim) {
  constexpr Size line = 64 / sizeof(T);
  for (Size i = 0; i < std::min(dim, 8 * line); i += line) __builtin_prefetch(row + i);
}

/// y += a x, n values.
template <class T>
void axpy(Size n, T a, const T* x, T* y) {
#pragma omp simd
  for (Size i = 0; i < n; ++i) y[i] += a * x[i];
}

/// A vendor library that would start its own OpenMP team is told to use one thread meanwhile.
class OneVendorThread {
 public:
  OneVendorThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  OneVendorThread(const OneVendorThread&) = delete;
  OneVendorThread& operator=(const OneVendorThread&) = delete;
  ~OneVendorThread() { omp_set_num_threads(before_); }

 private:
  int before_;
};

/// Calls work(first, count) on every thread of a team, with consecutive stripes of [0, extent) that
/// start at multiples of `granule`. What a stripe throws is thrown again once all have ended.
template <class Work>
void for_each_stripe(int threads, Size extent, Size granule, const Work& work) {
  if (threads == 1) {
    const OneVendorThread guard;
    if (extent > 0) work(Size{0}, extent);
    return;
  }
  const Size granules = (extent + granule - 1) / granule;
  std::exception_ptr failure;
#pragma omp parallel num_threads(threads)
  {
    const Size team = omp_get_num_threads(), rank = omp_get_thread_num();
    const Size first = std::min(extent, granules * rank / team * granule);
    const Size last = std::min(extent, granules * (rank + 1) / team * granule);
    try {
      if (last > first) work(first, last - first);
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace widehead
