#pragma once
/// The parts of a two-level softmax on the device: a mirror of SoftmaxParts, made once each time they are, with the
/// rows of every part cut into tiles.

#include <memory>
#include <utility>
#include <vector>

#include "context.h"
#include "widehead/softmax_parts.h"

namespace widehead::cuda {

inline constexpr Size tile_rows = 16;    ///< rows that a block has at once
inline constexpr Size most_tiles = 128;  ///< of a part; where it has more rows, a block takes several turns

struct Part {
  Size first_row, rows, first_pair, pairs, first_entry, entries, offset;
  Size tiles;
  Size
      first_partial;  ///< column of the gradients by tile and pair: those of tile t and pair p are t · pairs + p behind
};
/// What one block goes over, within a part.
struct Tile {
  Index part, number;
  Size first, rows;
};

/// SoftmaxParts in a kernel.
template <class T>
struct Parts {
  const Part* parts;
  const Tile* tiles;  // part after part
  const typename SoftmaxParts<T>::Pair* pairs;
  const typename SoftmaxParts<T>::Entry* entries;
};

template <class T>
struct PartsCopy final : DeviceCopy {
  explicit PartsCopy(std::shared_ptr<Context> owner) : context(std::move(owner)) {}
  std::shared_ptr<Context> context;  ///< of the backend that made it
  std::uint64_t version = 0;
  std::uint64_t program = 0;  ///< whose lists they are among
  Parts<T> parts = {};
  std::vector<Size> tile_starts, partial_starts;  ///< on the host: of every part, and their numbers
};

}  // namespace widehead::cuda
