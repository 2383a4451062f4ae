#pragma once
/// D outputs cut into consecutive classes, as a two-level softmax needs them. Vocabularies are sorted by frequency, so
/// that neighbours are about equally frequent.

#include <span>
#include <vector>

#include "widehead/matrix.h"

namespace widehead {

class OutputClasses {
 public:
  /// `count` classes whose sizes differ by 1 at most; 0 means √D of them, rounded.
  /// @throws std::invalid_argument unless 0 ≤ count ≤ outputs
  static OutputClasses of_equal_size(Size outputs, Size count = 0);
  /// `count` classes of about equal total frequency, none of them empty: each is closed once it has its share of what
  /// the classes before it left.
  /// @throws std::invalid_argument for a frequency that is negative or not finite, or if all are 0
  static OutputClasses of_equal_frequency(std::span<const double> frequencies, Size count = 0);

  Size count() const { return static_cast<Size>(starts_.size()) - 1; }
  Size outputs() const { return starts_.back(); }  ///< D
  Size first(Size c) const { return starts_[static_cast<std::size_t>(c)]; }
  Size size(Size c) const { return first(c + 1) - first(c); }
  /// The class of an output: O(log count).
  Size of(Index output) const;

 private:
  explicit OutputClasses(std::vector<Size> starts) : starts_(std::move(starts)) {}

  std::vector<Size> starts_;  // count + 1, from 0 to D
};

}  // namespace widehead
