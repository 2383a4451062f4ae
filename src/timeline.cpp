#include "widehead/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace widehead {
namespace {

/// Rows that move forward are treated in groups of this many: enough for the products to be fast.
constexpr std::size_t rows_at_once = 256;

}  // namespace

template <class T>
Timeline<T>::Timeline(Backend<T>& backend, RowStore<T>& store, bool zero, const TimelineOptions& options)
    : backend_(backend),
      store_(store),
      zero_(zero),
      options_(options),
      stamps_(static_cast<std::size_t>(store.rows()) * sizeof(Epoch)),
      panel_columns_{0} {
  if (options.panel_rank < 0) {
    throw std::invalid_argument(fmt::format("timeline: panel_rank = {}, but it must not be negative", options.panel_rank));
  }
  if (options.radix < 2) throw std::invalid_argument(fmt::format("timeline: radix = {}, but it must be at least 2", options.radix));
  if (options_.panel_rank == 0) options_.panel_rank = std::max<Size>(1, store.dim() / 4);
  A_ = Matrix<T>(store.dim(), options_.panel_rank);
  B_ = Matrix<T>(store.dim(), options_.panel_rank);
}

// ── reading and writing rows ────────────────────────────────────────────────────────────────────

template <class T>
void Timeline<T>::gather(std::span<const Index> rows, MatrixView<T> Z) {
  stale_.clear();
  present_rows_.assign(rows.begin(), rows.end());
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (is_zero(rows[k])) {
      present_rows_[k] = RowStore<T>::zero_row;
    } else if (epoch_of(rows[k]) != now_) {
      stale_.push_back({epoch_of(rows[k]), rows[k], static_cast<Size>(k)});
    }
  }
  store_.gather(present_rows_, Z);
  if (stale_.empty()) return;
  std::sort(stale_.begin(), stale_.end(), [](const Stale& a, const Stale& b) {
    return a.epoch != b.epoch ? a.epoch < b.epoch : a.row < b.row;
  });
  const auto Z_stale = Z_stale_.scratch(Z.rows, static_cast<Size>(stale_.size()));
  stale_epochs_.clear();
  for (const auto& stale : stale_) {
    const auto column = static_cast<Size>(stale_epochs_.size());
    std::copy_n(Z.column(stale.column), Z.rows, Z_stale.column(column));
    stale_epochs_.push_back(stale.epoch);
  }
  bring_to_now(stale_epochs_, Z_stale);
  for (std::size_t k = 0; k < stale_.size(); ++k) {
    std::copy_n(Z_stale.column(static_cast<Size>(k)), Z.rows, Z.column(stale_[k].column));
  }
}

/// The row is expressed at `epoch`: where the panel starts, or inside it and then due to move when it
/// closes. Lists are not searched for a row that leaves: who reads them compares epochs.
template <class T>
void Timeline<T>::stamp(Index row, Epoch epoch) {
  if (stamps()[row] == epoch + 1) return;
  if (epoch == panel_start_) {
    start_rows_.push_back(row);
  } else if (stamps()[row] == untouched || epoch_of(row) <= panel_start_) {
    panel_rows_.push_back(row);
  }
  stamps()[row] = epoch + 1;
}

template <class T>
void Timeline<T>::catch_up(std::span<const Index> rows, ConstView<T> Z) {
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (stamps()[rows[k]] == now_ + 1) continue;
    if (!is_zero(rows[k])) {
      store_.scatter(rows.subspan(k, 1), Z.columns(static_cast<Size>(k), 1));
      ++account_.rows_caught_up;
    }
    stamp(rows[k], now_);
  }
}

template <class T>
void Timeline<T>::store(std::span<const Index> rows, ConstView<T> Z) {
  store_.scatter(rows, Z);
  for (const Index row : rows) stamp(row, now_);
}

// ── catching up ─────────────────────────────────────────────────────────────────────────────────

/// Z ← F Z.
template <class T>
void Timeline<T>::multiply(ConstView<T> F, MatrixView<T> Z) {
  const auto next = Z_next_.scratch(Z.rows, Z.cols);
  backend_.gemm(Op::none, Op::none, T(1), F, Z, T(0), next);
  backend_.copy(next, Z);
  account_.products += GemmShape{Op::none, Op::none, Z.rows, Z.cols, Z.rows}.flops();
}

/// Columns of Z, in ascending order of the epochs they are expressed at, are brought to now: through
/// the blocks, each of which multiplies all columns that are older than it, then through the panel.
template <class T>
void Timeline<T>::bring_to_now(std::span<const Epoch> epochs, MatrixView<T> Z) {
  Size active = 0;
  for (const auto& block : blocks_) {
    while (active < Z.cols && epochs[static_cast<std::size_t>(active)] <= block.start) ++active;
    if (active > 0) multiply(block.F, Z.columns(0, active));
  }
  apply_panel(epochs, Z);
}

/// z ← z + Σ_{i ≥ first} βᵢ (aᵢᵀ z), `first` by the epoch of each column.
template <class T>
void Timeline<T>::apply_panel(std::span<const Epoch> epochs, MatrixView<T> Z) {
  if (rank_ == 0) return;
  const auto projections = projections_.scratch(rank_, Z.cols);
  backend_.gemm(Op::transpose, Op::none, T(1), A_.view().columns(0, rank_), Z, T(0), projections);
  for (Size k = 0; k < Z.cols; ++k) {
    const Epoch epoch = std::max(epochs[static_cast<std::size_t>(k)], panel_start_);
    std::fill_n(projections.column(k), first_panel_column(epoch), T(0));
  }
  backend_.gemm(Op::none, Op::none, T(1), B_.view().columns(0, rank_), projections, T(1), Z);
  account_.products += 2 * GemmShape{Op::none, Op::none, Z.rows, Z.cols, rank_}.flops();
}

/// Moves rows to the present epoch: gathers them in groups, express(epochs, Z), stores them.
template <class T>
template <class Express>
void Timeline<T>::move_rows(std::span<const Index> rows, const Express& express) {
  for (std::size_t first = 0; first < rows.size(); first += rows_at_once) {
    const auto group = rows.subspan(first, std::min(rows_at_once, rows.size() - first));
    const auto Z = Z_stale_.scratch(store_.dim(), static_cast<Size>(group.size()));
    store_.gather(group, Z);
    stale_epochs_.clear();
    for (const Index row : group) stale_epochs_.push_back(epoch_of(row));
    express(std::span<const Epoch>(stale_epochs_), Z);
    store_.scatter(group, Z);
    for (const Index row : group) stamps()[row] = now_ + 1;
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
void Timeline<T>::make_room(Size r) {
  if (rank_ + r > options_.panel_rank) close_panel(nullptr);
}

template <class T>
void Timeline<T>::advance(ConstView<T> a, ConstView<T> b) {
  const Size r = a.cols;
  if (rank_ > 0) {  // the panel's β are carried forward: B ← (I + b aᵀ) B
    const auto B = B_.view().columns(0, rank_);
    const auto aTB = projections_.scratch(r, rank_);
    backend_.gemm(Op::transpose, Op::none, T(1), a, B, T(0), aTB);
    backend_.gemm(Op::none, Op::none, T(1), b, aTB, T(1), B);
    account_.products += 2 * GemmShape{Op::none, Op::none, a.rows, rank_, r}.flops();
  }
  backend_.copy(a, A_.view().columns(rank_, r));
  backend_.copy(b, B_.view().columns(rank_, r));
  rank_ += r;
  ++now_;
  panel_columns_.push_back(rank_);
  account_.low_rank += r;
}

template <class T>
void Timeline<T>::advance_dense(ConstView<T> F) {
  close_panel(&F);
}

/// The panel, followed by F where given, becomes a block; all rows touched meanwhile move to its end,
/// which is where the next panel starts.
template <class T>
void Timeline<T>::close_panel(const MatrixView<const T>* F) {
  const Size d = store_.dim();
  if (F != nullptr) ++now_;
  moving_rows_.clear();
  for (const Index row : panel_rows_) {
    if (epoch_of(row) != now_) moving_rows_.push_back(row);
  }
  move_rows(moving_rows_, [&](std::span<const Epoch> epochs, MatrixView<T> Z) {
    apply_panel(epochs, Z);
    if (F != nullptr) multiply(*F, Z);
  });

  if (now_ != panel_start_) {
    Block block = take_block();
    block.start = panel_start_;
    block.level = 0;
    std::swap(block.rows, start_rows_);
    // I + B Aᵀ, then F
    const auto panel = product_.scratch(d, d);
    for (Size j = 0; j < d; ++j) {
      std::fill_n(panel.column(j), d, T(0));
      panel(j, j) = T(1);
    }
    if (rank_ > 0) {
      backend_.gemm(Op::none, Op::transpose, T(1), B_.view().columns(0, rank_), A_.view().columns(0, rank_), T(1), panel);
      account_.products += GemmShape{Op::none, Op::transpose, d, d, rank_}.flops();
    }
    if (F == nullptr) {
      backend_.copy(panel, block.F);
    } else if (rank_ == 0) {
      backend_.copy(*F, block.F);
    } else {
      backend_.gemm(Op::none, Op::none, T(1), *F, panel, T(0), block.F);
      account_.products += GemmShape{Op::none, Op::none, d, d, d}.flops();
    }
    blocks_.push_back(std::move(block));
    ++account_.blocks;
    std::swap(start_rows_, panel_rows_);
    panel_rows_.clear();
    panel_start_ = now_;
    panel_columns_.assign(1, 0);
    rank_ = 0;
    merge_blocks();
  }
}

/// The last `radix` blocks, while they are of one level, become one block of the next. What began at
/// the first of them still does; rows at the starts of the others move to the end, which is now.
template <class T>
void Timeline<T>::merge_blocks() {
  const Size d = store_.dim();
  const auto radix = static_cast<std::size_t>(options_.radix);
  while (blocks_.size() >= radix && blocks_[blocks_.size() - radix].level == blocks_.back().level) {
    // From the newest back: suffix = F_r … F_i
    Block suffix = std::move(blocks_.back());
    blocks_.pop_back();
    for (std::size_t i = radix - 1;; --i) {
      moving_rows_.clear();
      for (const Index row : suffix.rows) {
        if (epoch_of(row) == suffix.start) moving_rows_.push_back(row);
      }
      if (i == 0) break;
      move_rows(moving_rows_, [&](std::span<const Epoch>, MatrixView<T> Z) { multiply(suffix.F, Z); });
      start_rows_.insert(start_rows_.end(), moving_rows_.begin(), moving_rows_.end());
      Block& earlier = blocks_.back();
      const auto product = product_.scratch(d, d);
      backend_.gemm(Op::none, Op::none, T(1), suffix.F, earlier.F, T(0), product);
      backend_.copy(product, suffix.F);
      account_.products += GemmShape{Op::none, Op::none, d, d, d}.flops();
      std::swap(suffix.rows, earlier.rows);
      suffix.start = earlier.start;
      spare_blocks_.push_back(std::move(earlier));
      blocks_.pop_back();
    }
    std::swap(suffix.rows, moving_rows_);  // those still there
    ++suffix.level;
    blocks_.push_back(std::move(suffix));
    ++account_.merges;
  }
}

template <class T>
typename Timeline<T>::Block Timeline<T>::take_block() {
  Block block;
  if (spare_blocks_.empty()) {
    block.F = Matrix<T>(store_.dim(), store_.dim());
  } else {
    block = std::move(spare_blocks_.back());
    spare_blocks_.pop_back();
    block.rows.clear();
  }
  return block;
}

template <class T>
std::size_t Timeline<T>::bytes() const {
  std::size_t bytes = stamps_.size() + 2 * static_cast<std::size_t>(A_.size()) * sizeof(T);
  bytes += (start_rows_.capacity() + panel_rows_.capacity()) * sizeof(Index);
  for (const auto* blocks : {&blocks_, &spare_blocks_}) {
    for (const auto& block : *blocks) {
      bytes += static_cast<std::size_t>(block.F.size()) * sizeof(T) + block.rows.capacity() * sizeof(Index);
    }
  }
  return bytes;
}

template class Timeline<float>;
template class Timeline<double>;

}  // namespace widehead
