#include "widehead/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace widehead {
namespace {

/// Rows that move forward are treated in groups of this many: enough for the products to be fast.
constexpr std::size_t rows_at_once = 256;

/// Columns so few that fetching a matrix takes longer than multiplying with it, and the largest that is near then.
constexpr Size few_columns = 16;
constexpr Size near_bytes = 1 << 19;

/// How many epochs are before `end`, of which the first `from` are.
template <class Epoch>
Size count_before(std::span<const Epoch> epochs, Size from, Epoch end) {
  while (from < static_cast<Size>(epochs.size()) && epochs[static_cast<std::size_t>(from)] < end) ++from;
  return from;
}

}  // namespace

template <class T>
Timeline<T>::Timeline(Backend<T>& backend, RowStore<T>& store, bool zero, const TimelineOptions& options)
    : backend_(backend),
      store_(store),
      zero_(zero),
      options_(options),
      wants_products_(options.keeps_products),
      stamps_(static_cast<std::size_t>(store.rows()) * sizeof(Epoch)),
      products_(backend.memory()),
      new_products_(backend.memory()),
      Z_stale_(backend.memory()),
      Z_next_(backend.memory()),
      Z_loaded_(backend.memory()),
      projections_(backend.memory()),
      product_(backend.memory()),
      later_(backend.memory()) {
  if (options.panel_rank < 0) {
    throw std::invalid_argument(
        fmt::format("timeline: panel_rank = {}, but it must not be negative", options.panel_rank));
  }
  if (options.radix < 2) {
    throw std::invalid_argument(fmt::format("timeline: radix = {}, but it must be at least 2", options.radix));
  }
  if (options_.panel_rank == 0) options_.panel_rank = std::min(store.dim(), std::max<Size>(8, store.dim() / 4));
  panel_ = std::move(take_block().panel);
}

// ── reading and writing rows ────────────────────────────────────────────────────────────────────

template <class T>
void Timeline<T>::find_nonzero(std::span<const Index> rows, std::vector<Index>& found,
                               std::vector<Index>& positions) const {
  found.clear();
  positions.clear();
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (is_zero(rows[k])) continue;
    found.push_back(rows[k]);
    positions.push_back(static_cast<Index>(k));
  }
}

template <class T>
void Timeline<T>::gather(std::span<const Index> rows, MatrixView<T> Z) {
  if (options_.keeps_products) {
    gather_by_products(rows, Z);
    return;
  }
  stale_.clear();
  present_rows_.assign(rows.begin(), rows.end());
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (is_zero(rows[k])) {
      present_rows_[k] = RowStore<T>::zero_row;
    } else if (epoch_of(rows[k]) != now_) {
      stale_.push_back({epoch_of(rows[k]), rows[k], static_cast<Index>(k)});
      present_rows_[k] = RowStore<T>::zero_row;  // to be put there when it has caught up
    }
  }
  store_.gather(present_rows_, Z);
  if (stale_.empty()) return;
  std::sort(stale_.begin(), stale_.end(),
            [](const Stale& a, const Stale& b) { return a.epoch != b.epoch ? a.epoch < b.epoch : a.row < b.row; });
  stale_epochs_.clear();
  stale_rows_.clear();
  stale_columns_.clear();
  for (const auto& stale : stale_) {
    stale_epochs_.push_back(stale.epoch);
    stale_rows_.push_back(stale.row);
    stale_columns_.push_back(stale.column);
  }
  const auto Z_stale = Z_stale_.scratch(Z.rows, static_cast<Size>(stale_.size()));
  store_.gather(stale_rows_, Z_stale);
  bring_to_now(stale_epochs_, Z_stale);
  backend_.move_columns(Z_stale, {}, stale_columns_, Z);
}

/// The row is expressed at `epoch` of the open panel from now on.
template <class T>
void Timeline<T>::stamp(Index row, Epoch epoch) {
  if (stamps()[row] == epoch + 1) return;
  if (epoch == panel_.start) {
    panel_.start_rows.push_back(row);
  } else if (stamps()[row] == untouched || epoch_of(row) <= panel_.start) {
    panel_.inner_rows.push_back(row);
  }
  stamps()[row] = epoch + 1;
}

template <class T>
void Timeline<T>::catch_up(std::span<const Index> rows, ConstView<T> Z) {
  if (options_.keeps_products) return;  // the way to now is one product, and the window's end will store them
  stale_rows_.clear();
  stale_columns_.clear();
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (stamps()[rows[k]] == now_ + 1 || is_zero(rows[k])) continue;
    ++account_.rows_caught_up;
    if (epoch_of(rows[k]) < panel_.start) ++columns_met_;
    stale_rows_.push_back(rows[k]);
    stale_columns_.push_back(static_cast<Index>(k));
    stamp(rows[k], now_);
  }
  store_.scatter(stale_rows_, Z, stale_columns_);
  if (!has_ways_ && ways_pay()) make_ways();
}

template <class T>
void Timeline<T>::store(std::span<const Index> rows, ConstView<T> Z) {
  store_.scatter(rows, Z);
  for (const Index row : rows) stamp(row, now_);
}

template <class T>
bool Timeline<T>::is_current(std::span<const Index> rows) const {
  return !options_.keeps_products &&
         std::all_of(rows.begin(), rows.end(), [&](Index row) { return is_zero(row) || epoch_of(row) == now_; });
}

template <class T>
void Timeline<T>::add(std::span<const Index> rows, ConstView<T> G) {
  store_.add(rows, G);
  for (const Index row : rows) stamp(row, now_);
}

// ── catching up ─────────────────────────────────────────────────────────────────────────────────

/// Reads A, which has not been used for a while, once from end to end before it is multiplied with a few columns: the
/// processor foresees this order, not that in which libraries pack a matrix (300 x 300 by 5 columns from a distant
/// cache: 25 instead of 50 µs).
template <class T>
void Timeline<T>::bring_near(ConstView<T> A, Size columns) const {
  constexpr Size line = 64 / sizeof(T);
  const bool fits = A.size() * static_cast<Size>(sizeof(T)) <= near_bytes;
  if (columns > few_columns || !fits || !backend_.memory().is_host()) return;
  for (Size j = 0; j < A.cols; ++j) {
    const volatile T* a = A.column(j);
    for (Size i = 0; i < A.rows; i += line) static_cast<void>(a[i]);
  }
}

/// Z ← F Z.
template <class T>
void Timeline<T>::multiply(ConstView<T> F, MatrixView<T> Z) {
  const auto next = Z_next_.scratch(Z.rows, Z.cols);
  bring_near(F, Z.cols);
  backend_.gemm(Op::none, Op::none, T(1), F, Z, T(0), next);
  backend_.copy(next, Z);
  account_.products += GemmShape{Op::none, Op::none, Z.rows, Z.cols, Z.rows}.flops();
}

/// Takes columns that are expressed at epochs of a block to its panel's end, and on by F.
template <class T>
void Timeline<T>::leave(const Block& block, ConstView<T> F, std::span<const Epoch> epochs, MatrixView<T> Z) {
  apply(block.panel, epochs, Z);
  multiply(F, Z);
}

/// Columns of Z, in ascending order of the epochs they are expressed at, are brought to now. What a minibatch has in a
/// block are a few columns, and fetching matrices takes longer than multiplying with them.
template <class T>
void Timeline<T>::bring_to_now(std::span<const Epoch> epochs, MatrixView<T> Z) {
  if (has_ways_) {
    go_by_ways(epochs, Z);
  } else {
    go_through_blocks(epochs, Z);
  }
  apply(panel_, epochs, Z);
}

/// Each block takes its own past all later ones.
template <class T>
void Timeline<T>::go_by_ways(std::span<const Epoch> epochs, MatrixView<T> Z) {
  Size first = 0;
  for (std::size_t k = 0; k < blocks_.size(); ++k) {
    const Block& block = blocks_[k];
    const Size end = count_before(epochs, first, k + 1 < blocks_.size() ? blocks_[k + 1].start() : panel_.start);
    if (end > first) {
      leave(block, block.to_now, epochs.subspan(static_cast<std::size_t>(first)), Z.columns(first, end - first));
    }
    first = end;
  }
}

/// Each block takes those that are older than it, and those that begin inside it, to its end; a few of the former go
/// the way of the latter, which is right for all of them, and reads one matrix less.
template <class T>
void Timeline<T>::go_through_blocks(std::span<const Epoch> epochs, MatrixView<T> Z) {
  Size active = 0;
  for (std::size_t k = 0; k < blocks_.size(); ++k) {
    const Block& block = blocks_[k];
    active = count_before(epochs, active, block.start() + 1);
    const Size end = count_before(epochs, active, k + 1 < blocks_.size() ? blocks_[k + 1].start() : panel_.start);
    if (end > active && active <= few_columns) {
      leave(block, block.F_last, epochs, Z.columns(0, end));
    } else {
      if (active > 0) multiply(block.F, Z.columns(0, active));
      if (end > active) {
        leave(block, block.F_last, epochs.subspan(static_cast<std::size_t>(active)), Z.columns(active, end - active));
      }
    }
    active = end;
  }
}

/// z ← z + Σ_{i ≥ first} βᵢ (aᵢᵀ z), `first` by the epoch of each column.
template <class T>
void Timeline<T>::apply(const Panel& panel, std::span<const Epoch> epochs, MatrixView<T> Z) {
  if (panel.rank == 0) return;  // a block of blocks: it knows no epochs inside
  first_ranks_.clear();
  auto first = static_cast<Index>(panel.rank);
  for (Size k = 0; k < Z.cols; ++k) {
    const Epoch epoch = std::max(epochs[static_cast<std::size_t>(k)], panel.start);
    first_ranks_.push_back(static_cast<Index>(panel.columns[epoch - panel.start]));
    first = std::min(first, first_ranks_.back());
  }
  const Size rank = panel.rank - first;
  if (rank == 0) return;
  for (Index& each : first_ranks_) each -= first;
  const auto A_T = panel.A_T.view().block(first, 0, rank, Z.rows), B = panel.B.view().columns(first, rank);
  const auto projections = projections_.scratch(rank, Z.cols);
  bring_near(A_T, Z.cols);
  backend_.gemm(Op::none, Op::none, T(1), A_T, Z, T(0), projections);
  backend_.clear_starts(first_ranks_, projections);
  bring_near(B, Z.cols);
  backend_.gemm(Op::none, Op::none, T(1), B, projections, T(1), Z);
  account_.products += 2 * GemmShape{Op::none, Op::none, Z.rows, Z.cols, rank}.flops();
}

/// Moves those of the candidates that are expressed at an epoch in [first, last) to the present one
/// and lists them there: gathers them in groups, express(epochs, Z), stores them.
template <class T>
template <class Express>
void Timeline<T>::move_rows(std::span<const Index> candidates, Epoch first, Epoch last, const Express& express) {
  moving_rows_.clear();
  for (const Index row : candidates) {
    if (epoch_of(row) >= first && epoch_of(row) < last) moving_rows_.push_back(row);
  }
  const std::span<const Index> rows = moving_rows_;
  for (std::size_t start = 0; start < rows.size(); start += rows_at_once) {
    const auto group = rows.subspan(start, std::min(rows_at_once, rows.size() - start));
    const auto Z = Z_stale_.scratch(store_.dim(), static_cast<Size>(group.size()));
    store_.gather(group, Z);
    stale_epochs_.clear();
    for (const Index row : group) stale_epochs_.push_back(epoch_of(row));
    express(std::span<const Epoch>(stale_epochs_), Z);
    store(group, Z);
    account_.rows_moved += static_cast<std::int64_t>(group.size());
  }
}

// ── new epochs ──────────────────────────────────────────────────────────────────────────────────

template <class T>
void Timeline<T>::store_ahead(std::span<const Index> rows, ConstView<T> Z) {
  store_.scatter(rows, Z);
  for (const Index row : rows) stamp(row, now_ + 1);
}

template <class T>
void Timeline<T>::advance(ConstView<T> a, ConstView<T> b) {
  const Size r = a.cols, rank = panel_.rank;
  if (rank > 0) {  // the panel's β are carried forward: B ← (I + b aᵀ) B
    const auto B = panel_.B.view().columns(0, rank);
    const auto aTB = projections_.scratch(r, rank);
    backend_.gemm(Op::transpose, Op::none, T(1), a, B, T(0), aTB);
    backend_.gemm(Op::none, Op::none, T(1), b, aTB, T(1), B);
    account_.products += 2 * GemmShape{Op::none, Op::none, a.rows, rank, r}.flops();
  }
  backend_.transpose(a, panel_.A_T.view().block(rank, 0, r, a.rows));
  backend_.copy(b, panel_.B.view().columns(rank, r));
  panel_.rank += r;
  ++now_;
  panel_.columns.push_back(panel_.rank);
  account_.low_rank += r;
}

/// G ← F G.
template <class T>
void Timeline<T>::append_product(ConstView<T> F, MatrixView<T> G) {
  const auto product = product_.scratch(G.rows, G.cols);
  backend_.gemm(Op::none, Op::none, T(1), F, G, T(0), product);
  backend_.copy(product, G);
  account_.products += GemmShape{Op::none, Op::none, G.rows, G.cols, G.rows}.flops();
}

/// The transitions of the open panel, followed by F.
template <class T>
void Timeline<T>::fill_block(ConstView<T> F, Block& block) {
  block.F.scratch(store_.dim(), store_.dim());
  block.to_now.scratch(store_.dim(), store_.dim());
  backend_.copy(F, block.F_last.scratch(store_.dim(), store_.dim()));
  if (const Size rank = panel_.rank; rank > 0) {  // F (I + B Aᵀ)
    backend_.set_identity(block.F);
    const auto A_T = panel_.A_T.view().block(0, 0, rank, store_.dim());
    backend_.gemm(Op::none, Op::none, T(1), panel_.B.view().columns(0, rank), A_T, T(1), block.F);
    account_.products += GemmShape{Op::none, Op::none, store_.dim(), store_.dim(), rank}.flops();
    append_product(F, block.F);
  } else {
    backend_.copy(F, block.F);
  }
}

/// to_now of all blocks, newest first. It follows from F and F_last alone, and is the same after a state is loaded.
template <class T>
void Timeline<T>::make_ways() {
  const Size d = store_.dim();
  const auto later = later_.scratch(d, d);  // the product of all blocks behind this one
  for (std::size_t k = blocks_.size(); k-- > 0;) {
    Block& block = blocks_[k];
    const bool newest = k + 1 == blocks_.size();
    const auto to_now = block.to_now.scratch(d, d);
    backend_.copy(block.level == 0 ? block.F_last : block.F, to_now);
    if (newest) {
      backend_.copy(block.F, later);
      continue;
    }
    append_product(later, to_now);
    const auto product = product_.scratch(d, d);
    backend_.gemm(Op::none, Op::none, T(1), later, block.F, T(0), product);
    backend_.copy(product, later);
    account_.products += GemmShape{Op::none, Op::none, d, d, d}.flops();
  }
  has_ways_ = true;
}

/// The open panel, followed by F, becomes a block, and a new panel opens at its end.
template <class T>
void Timeline<T>::advance_dense(ConstView<T> F) {
  Block block = take_block();
  if (options_.keeps_products) {
    if (!foresees_) foresee(F);
    std::swap(products_, new_products_);
    foresees_ = false;
  } else {
    fill_block(F, block);
  }
  std::swap(block.panel, panel_);
  ++now_;
  panel_.start = now_;
  for (const Index row : block.panel.inner_rows) {  // rows stored ahead are the new panel's first
    if (epoch_of(row) == now_) panel_.start_rows.push_back(row);
  }
  blocks_.push_back(std::move(block));
  ++account_.blocks;
  if (options_.keeps_products) {
    merge_by_products();
    return;
  }
  has_ways_ = false;
  columns_met_ = 0;
  later_.scratch(store_.dim(), store_.dim());  // so that no step allocates it
  merge_blocks();
}

/// The last `radix` blocks, while they are of one level, become one block of the next. Rows at the
/// start of the first of them stay; those inside them, or at the starts of the others, move to now.
template <class T>
void Timeline<T>::merge_blocks() {
  const auto radix = static_cast<std::size_t>(options_.radix);
  while (blocks_.size() >= radix && blocks_[blocks_.size() - radix].level == blocks_.back().level) {
    const std::size_t first = blocks_.size() - radix;
    Block merged = take_block();
    merged.F.scratch(store_.dim(), store_.dim());
    merged.to_now.scratch(store_.dim(), store_.dim());
    Epoch end = panel_.start;
    for (std::size_t i = blocks_.size() - 1;; --i) {  // merged.F leads from the end of block i to now
      Block& block = blocks_[i];
      const bool newest = end == panel_.start;
      if (block.level == 0 && !block.panel.inner_rows.empty()) {
        backend_.copy(block.F_last, block.to_now.scratch(store_.dim(), store_.dim()));
        if (!newest) append_product(merged.F, block.to_now);
        move_rows(block.panel.inner_rows, block.start() + 1, end,
                  [&](std::span<const Epoch> epochs, MatrixView<T> Z) { leave(block, block.to_now, epochs, Z); });
      }
      if (!newest) append_product(merged.F, block.F);
      std::swap(merged.F, block.F);
      if (i == first) break;
      move_rows(block.panel.start_rows, block.start(), block.start() + 1,
                [&](std::span<const Epoch>, MatrixView<T> Z) { multiply(merged.F, Z); });
      end = block.start();
    }
    Block& oldest = blocks_[first];
    merged.level = oldest.level + 1;
    merged.panel.start = oldest.start();
    for (const Index row : oldest.panel.start_rows) {
      if (epoch_of(row) == oldest.start()) merged.panel.start_rows.push_back(row);
    }
    for (std::size_t i = first; i < first + radix; ++i) spare_blocks_.push_back(std::move(blocks_[i]));
    blocks_.resize(first);
    blocks_.push_back(std::move(merged));
    ++account_.merges;
  }
}

/// For low-rank transitions, which a timeline with products never has.
template <class T>
void Timeline<T>::make_room(Panel& panel) {
  panel.A_T.scratch(options_.panel_rank, store_.dim());
  panel.B.scratch(store_.dim(), options_.panel_rank);
}

/// An empty block, from memory used before where there is any.
template <class T>
typename Timeline<T>::Block Timeline<T>::take_block() {
  if (spare_blocks_.empty()) {
    auto& memory = backend_.memory();
    Block block{0,
                Matrix<T>(memory),
                Matrix<T>(memory),
                {0, 0, Matrix<T>(memory), Matrix<T>(memory), {0}, {}, {}},
                Matrix<T>(memory)};
    if (!options_.keeps_products) make_room(block.panel);
    return block;
  }
  Block block = std::move(spare_blocks_.back());
  spare_blocks_.pop_back();
  if (!options_.keeps_products) make_room(block.panel);
  block.level = 0;
  block.panel.rank = 0;
  block.panel.columns.assign(1, 0);
  block.panel.start_rows.clear();
  block.panel.inner_rows.clear();
  return block;
}

template <class T>
std::size_t Timeline<T>::bytes() const {
  const auto bytes_of = [](const Panel& panel) {
    return static_cast<std::size_t>(panel.A_T.size() + panel.B.size()) * sizeof(T) +
           (panel.start_rows.capacity() + panel.inner_rows.capacity()) * sizeof(Index);
  };
  std::size_t bytes =
      stamps_.size() + bytes_of(panel_) + static_cast<std::size_t>(products_.size() + new_products_.size()) * sizeof(T);
  for (const auto* blocks : {&blocks_, &spare_blocks_}) {
    for (const auto& block : *blocks) {
      bytes += static_cast<std::size_t>(block.F.size() + block.F_last.size() + block.to_now.size()) * sizeof(T) +
               bytes_of(block.panel);
    }
  }
  return bytes;
}

template class Timeline<float>;
template class Timeline<double>;

}  // namespace widehead
