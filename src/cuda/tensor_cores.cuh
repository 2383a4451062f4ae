#pragma once
/// Products of float32 by tensor cores, which multiply numbers of 8 bits (bfloat16) exactly and add them up in float32.
/// A factor is split into three of those, x = x₁ + x₂ + x₃, with nothing left over. Six of the nine products are taken:
/// x₂y₃, x₃y₂ and x₃y₃ are below 2⁻²⁶ of the whole. A factor that has 8 bits, as 1 and 0 have, is multiplied without
/// any rounding: I A is A. The cores cut sums off instead of rounding them, so they add up sixteen products at a
/// time only, which are then added as any other floats are.

#include <cstdint>

namespace widehead::cuda {

inline constexpr int factor_parts = 3;
/// Two floats, in three parts; the first of them is in the lower halves.
struct Split {
  std::uint32_t part[factor_parts];
};
/// Parts are rounded, not cut off, so that what remains has either sign and errs to neither side. Of what is no number
/// (or so large that it rounds to infinity) the second part is none.
__device__ __forceinline__ Split split(float2 x) {
  Split result;
#pragma unroll
  for (int p = 0; p < factor_parts; ++p) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result.part[p]) : "f"(x.y), "f"(x.x));
    x.x -= __uint_as_float(result.part[p] << 16);
    x.y -= __uint_as_float(result.part[p] & 0xffff0000U);
  }
  return result;
}

/// C ← A B + C for 16 x 8 elements, sixteen deep. A thread gives two steps of the depth of (row) and (row + 8) of A, of
/// the first eight and of the others, and of (row) of B, the same of both, where its lane is 4 · row + (which two).
__device__ __forceinline__ void multiply_add(float (&C)[4], const std::uint32_t (&A)[4], const std::uint32_t (&B)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(C[0]), "+f"(C[1]), "+f"(C[2]), "+f"(C[3])
      : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
}

/// What a warp adds up of 16 · tall x 8 · broad elements.
template <int tall, int broad>
struct Sums {
  float of[tall][broad][4];
};

/// f(row, column, sum) for those of this lane.
template <int tall, int broad, class F>
__device__ __forceinline__ void for_each_of_sums(int lane, const Sums<tall, broad>& sums, const F& f) {
#pragma unroll
  for (int m = 0; m < tall; ++m) {
#pragma unroll
    for (int n = 0; n < broad; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) f(16 * m + e / 2 * 8 + lane / 4, 8 * n + lane % 4 * 2 + e % 2, sums.of[m][n][e]);
    }
  }
}

/// sums += A B, sixteen deep. A thread gives of rows 8 n + lane / 4 of A, and of such columns of B, two steps of the
/// depth of each half, by number; which two is all the same as long as the threads of a quad have different ones. Small
/// products come first, and four go in turns, so that none waits long for another; with more there are not registers
/// enough.
/// @param read_A, read_B  (half, n)
template <int tall, int broad, class A, class B>
__device__ __forceinline__ void add_product(Sums<tall, broad>& sums, const A& read_A, const B& read_B) {
  std::uint32_t of_A[factor_parts][tall][4];
#pragma unroll
  for (int m = 0; m < tall; ++m) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const Split pair = split(read_A(e / 2, 2 * m + e % 2));
#pragma unroll
      for (int p = 0; p < factor_parts; ++p) of_A[p][m][e] = pair.part[p];
    }
  }
  constexpr int at_once = 2;
#pragma unroll
  for (int first = 0; first < broad; first += at_once) {
    std::uint32_t of_B[factor_parts][at_once][2];
#pragma unroll
    for (int n = 0; n < at_once; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Split pair = split(read_B(half, first + n));
#pragma unroll
        for (int p = 0; p < factor_parts; ++p) of_B[p][n][half] = pair.part[p];
      }
    }
    float C[tall][at_once][4] = {};
#pragma unroll
    for (int order = factor_parts - 1; order >= 0; --order) {  // part p of A, part order − p of B
#pragma unroll
      for (int p = 0; p <= order; ++p) {
#pragma unroll
        for (int m = 0; m < tall; ++m) {
#pragma unroll
          for (int n = 0; n < at_once; ++n) multiply_add(C[m][n], of_A[p][m], of_B[order - p][n]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < tall; ++m) {
#pragma unroll
      for (int n = 0; n < at_once; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.of[m][first + n][e] += C[m][n][e];
      }
    }
  }
}

}  // namespace widehead::cuda
