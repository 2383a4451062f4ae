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
inline constexpr Size prefetch_distance = 8;

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

/// Calls work(rank, team) on every thread of a team. What one throws is thrown again once all have ended. Who is in a
/// team already stays alone.
template <class Work>
void for_each_thread(int threads, const Work& work) {
  if (threads == 1 || omp_in_parallel() != 0) {
    const OneVendorThread guard;
    work(Size{0}, Size{1});
    return;
  }
  std::exception_ptr failure;
#pragma omp parallel num_threads(threads)
  {
    try {
      work(static_cast<Size>(omp_get_thread_num()), static_cast<Size>(omp_get_num_threads()));
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

/// The thread's stripe of [0, extent), which starts at a multiple of `granule`: work(first, count), unless it is empty.
template <class Work>
void take_stripe(Size rank, Size team, Size extent, Size granule, const Work& work) {
  const Size granules = (extent + granule - 1) / granule;
  const Size first = std::min(extent, granules * rank / team * granule);
  const Size last = std::min(extent, granules * (rank + 1) / team * granule);
  if (last > first) work(first, last - first);
}

/// work(first, count) on every thread of a team, with its stripe.
template <class Work>
void for_each_stripe(int threads, Size extent, Size granule, const Work& work) {
  for_each_thread(threads, [&](Size rank, Size team) { take_stripe(rank, team, extent, granule, work); });
}

}  // namespace widehead
