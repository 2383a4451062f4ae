#pragma once
/// A square piece of a matrix in the processor's registers, which can be turned there: element by element a transpose
/// takes longer than all else that is done with a matrix on the way.

#include <cstddef>
#include <cstring>
#include <utility>

#include "widehead/matrix.h"

namespace widehead {

#if defined(__AVX512F__)
inline constexpr std::size_t register_bytes = 64;
#elif defined(__AVX__)
inline constexpr std::size_t register_bytes = 32;
#else
inline constexpr std::size_t register_bytes = 16;
#endif

template <class T>
class RegisterTile {
 public:
  static constexpr Size edge = register_bytes / sizeof(T);

  static RegisterTile load(const T* corner, Size stride) {
    RegisterTile tile;
    for (Size k = 0; k < edge; ++k) std::memcpy(&tile.columns_[k], corner + k * stride, register_bytes);
    return tile;
  }
  void store(T* corner, Size stride) const {
    for (Size k = 0; k < edge; ++k) std::memcpy(corner + k * stride, &columns_[k], register_bytes);
  }
  /// A ← (A + B)/2.
  void average_with(const RegisterTile& other) {
    for (Size k = 0; k < edge; ++k) columns_[k] = (columns_[k] + other.columns_[k]) / T(2);
  }
  /// Blocks of edge/2 change places across the diagonal, then inside each block those of edge/4, and so on.
  void transpose() { exchange<edge / 2>(); }

 private:
  using Register [[gnu::vector_size(register_bytes)]] = T;

  template <Size block>
  void exchange() {
    for (Size k = 0; k < edge; ++k) {
      if ((k & block) != 0) continue;
      const Register left = columns_[k], right = columns_[k + block];
      columns_[k] = upper_halves<block>(left, right, std::make_index_sequence<edge>());
      columns_[k + block] = lower_halves<block>(left, right, std::make_index_sequence<edge>());
    }
    if constexpr (block > 1) exchange<block / 2>();
  }
  /// Of two columns, block for block: the upper ones, the right column's in the place of the left one's lower ones.
  template <Size block, std::size_t... I>
  static Register upper_halves(Register left, Register right, std::index_sequence<I...> /*rows*/) {
    return __builtin_shufflevector(left, right, ((I & block) == 0 ? I : I - block + edge)...);
  }
  template <Size block, std::size_t... I>
  static Register lower_halves(Register left, Register right, std::index_sequence<I...> /*rows*/) {
    return __builtin_shufflevector(left, right, ((I & block) == 0 ? I + block : I + edge)...);
  }

  Register columns_[edge];  // NOLINT(modernize-avoid-c-arrays): indexed by Size
};

}  // namespace widehead
