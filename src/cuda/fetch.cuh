#pragma once
/// The way from global to shared memory: past the registers, but by way of the L1 cache, which is faster than past
/// that, too. Written in PTX: CUDA's own wrapper takes the number of bytes that are there as a constant, and branches
/// where it is none.

namespace widehead::cuda {

/// 16 bytes, of which the first `valid` elements (0 … 16 bytes of them) are there and the others become 0. `wide`: both
/// ends are aligned to 16 bytes.
template <bool wide, class T>
__device__ __forceinline__ void fetch_piece(T* to, const T* from, int valid) {
  constexpr int each = 16 / static_cast<int>(sizeof(T));
  const auto target = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (wide) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(from),
                 "r"(valid * static_cast<int>(sizeof(T)))
                 : "memory");
  } else {
#pragma unroll
    for (int k = 0; k < each; ++k) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target + k * static_cast<int>(sizeof(T))),
                   "l"(k < valid ? from + k : from), "n"(sizeof(T)), "r"(k < valid ? static_cast<int>(sizeof(T)) : 0)
                   : "memory");
    }
  }
}

/// `count` floats, 1 or 4, or zeros, for which nothing is read. Both ends are aligned to as many.
template <int count>
__device__ __forceinline__ void fetch_floats(float* to, const float* from, bool exist) {
  asm volatile(
      "{\n\t"
      ".reg .pred nothing;\n\t"
      "setp.eq.s32 nothing, %2, 0;\n\t"
      "cp.async.ca.shared.global [%0], [%1], %3, nothing;\n\t"
      "}" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(static_cast<int>(exist)), "n"(count * sizeof(float))
      : "memory");
}

/// What was fetched since the last call is one batch.
__device__ __forceinline__ void close_batch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// All batches of this thread but the last `but` have arrived.
template <int but>
__device__ __forceinline__ void wait_for_batches() {
  asm volatile("cp.async.wait_group %0;" ::"n"(but) : "memory");
}

}  // namespace widehead::cuda
