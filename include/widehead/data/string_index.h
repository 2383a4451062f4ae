#pragma once
/// Strings numbered 0, 1, 2, … in the order of their first insertion: name ↔ Index. All of them lie in
/// one block of memory, found by an open-addressing table: about 20 bytes a string beside its own.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "widehead/matrix.h"

namespace widehead {

class StringIndex {
 public:
  /// The number of `text`, which becomes size() if it is new; and whether it is.
  /// @throws std::length_error with 2³¹ − 1 strings
  std::pair<Index, bool> insert(std::string_view text);
  std::optional<Index> find(std::string_view text) const;

  Size size() const { return static_cast<Size>(ends_.size()); }
  /// Valid until the next insertion.
  std::string_view operator[](Index i) const {
    const auto n = static_cast<std::size_t>(i);
    const std::size_t begin = n > 0 ? ends_[n - 1] : 0;
    return {text_.data() + begin, ends_[n] - begin};
  }

 private:
  struct Slot {
    std::uint32_t tag;  // the upper half of the hash: differs where strings do, nearly always
    Index id;           // −1: free
  };

  /// The slot that holds `text`, or the free one where it belongs.
  std::size_t probe(std::string_view text, std::uint64_t hash) const;
  void grow();

  std::string text_;               // all strings, end to end
  std::vector<std::size_t> ends_;  // where string i ends in it
  std::vector<Slot> slots_;        // 2ⁿ of them, at most half in use
};

}  // namespace widehead
