#pragma once
/// The k best of many, in O(log k) each and k places of memory.

#include <algorithm>
#include <utility>
#include <vector>

#include "widehead/matrix.h"

namespace widehead {

/// Scores are not NaN; equal ones are ordered by index, so the result does not depend on the order of offers.
template <class T>
class BestList {
 public:
  struct Entry {
    Index index;
    T score;
  };

  explicit BestList(Size k) : k_(static_cast<std::size_t>(k)) {}

  void offer(Index index, T score) {
    const Entry entry{index, score};
    if (heap_.size() < k_) {
      heap_.push_back(entry);
    } else if (k_ > 0 && is_better(entry, heap_.front())) {
      std::pop_heap(heap_.begin(), heap_.end(), is_better);
      heap_.back() = entry;
    } else {
      return;
    }
    std::push_heap(heap_.begin(), heap_.end(), is_better);
  }

  /// Best first; the list is empty afterwards.
  std::vector<Entry> take() {
    std::sort_heap(heap_.begin(), heap_.end(), is_better);
    return std::exchange(heap_, {});
  }

 private:
  static bool is_better(const Entry& a, const Entry& b) {
    return a.score > b.score || (a.score == b.score && a.index < b.index);
  }
  std::size_t k_;
  std::vector<Entry> heap_;  // the worst in front
};

}  // namespace widehead
