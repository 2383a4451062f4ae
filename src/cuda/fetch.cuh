#pragma once
/// The way from global to shared memory, past the registers (cp.async).

#include <cuda_pipeline_primitives.h>

namespace widehead::cuda {

/// 16 bytes, of which the first `valid` elements are there and the others become 0. `wide`: both ends are aligned to 16
/// bytes.
template <class T>
__device__ __forceinline__ void fetch_piece(T* to, const T* from, int valid, bool wide) {
  constexpr int each = 16 / static_cast<int>(sizeof(T));
  valid = valid < 0 ? 0 : valid > each ? each : valid;
  if (wide) {
    __pipeline_memcpy_async(to, from, 16, static_cast<std::size_t>(each - valid) * sizeof(T));
    return;
  }
#pragma unroll
  for (int k = 0; k < each; ++k) {
    __pipeline_memcpy_async(to + k, k < valid ? from + k : from, sizeof(T), k < valid ? 0 : sizeof(T));
  }
}

}  // namespace widehead::cuda
