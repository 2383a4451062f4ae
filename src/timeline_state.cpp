/// The timeline's part in saving and loading (state.h).

#include <fmt/format.h>

#include <algorithm>

#include "widehead/device_state.h"
#include "widehead/timeline.h"

namespace widehead {

template <class T>
Size Timeline<T>::next_used_row(Size from) const {
  if (!zero_) return from;
  const std::span<const Epoch> rest(stamps() + from, static_cast<std::size_t>(store_.rows() - from));
  const auto used = std::find_if(rest.begin(), rest.end(), [](Epoch stamp) { return stamp != untouched; });
  return from + (used - rest.begin());
}

template <class T>
void Timeline<T>::visit_panel(StateVisitor& visitor, Panel& panel) {
  const auto scope = visitor.scope("panel");
  visitor.scalar("start", panel.start);
  visitor.scalar("rank", panel.rank);
  if (panel.rank < 0 || panel.rank > options_.panel_rank) {
    visitor.refuse("rank", fmt::format("is {}, but a panel has room for {}", panel.rank, options_.panel_rank));
  }
  if (panel.rank > 0) make_room(panel);
  const Size d = store_.dim();  // rows, even of nothing
  Matrix<T> A(d, panel.rank, backend_.memory());
  const auto A_T = MatrixView<T>(panel.A_T.data(), panel.rank, d, options_.panel_rank);
  if (!visitor.loading() && panel.rank > 0) backend_.transpose(A_T, A);
  visit_block(visitor, backend_, "A", A.view());
  if (visitor.loading() && panel.rank > 0) backend_.transpose(A, A_T);
  visit_block(visitor, backend_, "B", MatrixView<T>(panel.B.data(), d, panel.rank));
  visitor.list("columns", panel.columns);
  visitor.list("start_rows", panel.start_rows);
  visitor.list("inner_rows", panel.inner_rows);
  if (!visitor.loading()) return;
  const auto& columns = panel.columns;
  if (columns.empty() || columns.front() != 0 || columns.back() != panel.rank ||
      !std::is_sorted(columns.begin(), columns.end())) {
    visitor.refuse("columns", fmt::format("does not ascend from 0 to the rank, {}", panel.rank));
  }
  const auto check_rows = [&](const char* name, std::span<const Index> rows) {
    for (const Index row : rows) {
      if (row < 0 || row >= store_.rows()) {
        visitor.refuse(name, fmt::format("names output {}, but D = {}", row, store_.rows()));
      }
    }
  };
  check_rows("start_rows", panel.start_rows);
  check_rows("inner_rows", panel.inner_rows);
}

template <class T>
void Timeline<T>::visit_state(StateVisitor& visitor) {
  const bool loading = visitor.loading();
  visitor.agree("starts_as_zero", zero_);
  visitor.scalar("keeps_products", options_.keeps_products);
  visitor.scalar("now", now_);
  if (loading) stamps_.clear();
  visitor.sparse_block("stamps", MatrixView<Epoch>(stamps(), 1, store_.rows()));
  auto count = static_cast<std::int64_t>(blocks_.size());
  visitor.scalar("blocks", count);
  if (count < 0) visitor.refuse("blocks", fmt::format("is {}, but it must not be negative", count));
  if (loading) blocks_.clear();
  for (std::int64_t k = 0; k < count; ++k) {
    if (loading) blocks_.push_back(take_block());
    Block& block = blocks_[static_cast<std::size_t>(k)];
    const auto scope = visitor.scope(fmt::format("block{}", k));
    visitor.scalar("level", block.level);
    if (!options_.keeps_products) {
      const Size d = store_.dim();
      visit_block(visitor, backend_, "F", block.F.scratch(d, d));
      if (block.level == 0) visit_block(visitor, backend_, "F_last", block.F_last.scratch(d, d));
    }
    visit_panel(visitor, block.panel);
  }
  visit_panel(visitor, panel_);
  if (options_.keeps_products) {
    const Size d = store_.dim(), columns = count * d;
    if (columns > products_.cols()) products_ = Matrix<T>(d, columns, backend_.memory());
    visit_block(visitor, backend_, "to_now", MatrixView<T>(products_.data(), d, columns));  // d rows, even of nothing
  }
  visitor.count("low_rank", account_.low_rank);
  visitor.count("blocks_made", account_.blocks);
  visitor.count("merges", account_.merges);
  visitor.count("rows_caught_up", account_.rows_caught_up);
  visitor.count("rows_moved", account_.rows_moved);
  visitor.scalar("products", account_.products);
  visitor.count("columns_met", columns_met_);
  if (!loading) return;
  check_epochs(visitor);
  const double products = account_.products;
  has_ways_ = false;
  if (!options_.keeps_products && !wants_products_ && ways_pay()) make_ways();
  account_.products = products;  // as if the run had not been interrupted
}

/// Blocks and open panel follow each other without a gap from epoch 0 to now, a panel knows every epoch inside
/// it, and no row is ahead: so that whatever epoch a row is at, there is a way from it to now.
template <class T>
void Timeline<T>::check_epochs(StateVisitor& visitor) const {
  std::uint64_t epoch = 0;
  const auto follow = [&](const Panel& panel, const std::string& name, std::uint64_t epochs) {
    if (panel.start != epoch) {
      visitor.refuse(name, fmt::format("starts at epoch {}, but the one before ends at {}", panel.start, epoch));
    }
    epoch += epochs;
  };
  for (std::size_t k = 0; k < blocks_.size(); ++k) {
    const Panel& panel = blocks_[k].panel;
    const auto name = fmt::format("block{}", k);
    if (blocks_[k].level == 0) {
      follow(panel, name, panel.columns.size());
      continue;
    }
    const std::uint64_t end = k + 1 < blocks_.size() ? blocks_[k + 1].start() : panel_.start;
    if (blocks_[k].level < 0 || panel.rank != 0 || panel.columns.size() != 1 || end <= panel.start) {
      visitor.refuse(name, fmt::format("is of level {} and leads from epoch {} to {}, with a panel of rank {}",
                                       blocks_[k].level, panel.start, end, panel.rank));
    }
    follow(panel, name, end - panel.start);
  }
  follow(panel_, "panel", panel_.columns.size());
  if (epoch != static_cast<std::uint64_t>(now_) + 1) {
    visitor.refuse("now", fmt::format("is {}, but the panel ends at epoch {}", now_, epoch - 1));
  }
  for (Size row = next_used_row(0); row < store_.rows(); row = next_used_row(row + 1)) {
    if (stamps()[row] > now_ + 1ULL) {
      visitor.refuse("stamps", fmt::format("has row {} at epoch {}, but now is {}", row, stamps()[row] - 1, now_));
    }
  }
}

template Size Timeline<float>::next_used_row(Size) const;
template Size Timeline<double>::next_used_row(Size) const;
template void Timeline<float>::visit_state(StateVisitor&);
template void Timeline<double>::visit_state(StateVisitor&);

}  // namespace widehead
