/// The timeline of a device (keeps_products): for every block the product of all transitions since its start.

#include <algorithm>
#include <utility>

#include "widehead/timeline.h"

namespace widehead {
namespace {

/// Rows that move forward at once.
constexpr std::size_t rows_moved_at_once = 16384;

}  // namespace

/// Which product leads from an epoch, the start of a block, to now; no_column where it is now. starts_ are the blocks'.
template <class T>
Index Timeline<T>::product_for(Epoch epoch) const {
  if (epoch == now_) return Backend<T>::no_column;
  Index begun = 0;  // of a few dozen blocks: all are asked, which takes less time than to search among them
  for (const Epoch start : starts_) begun += static_cast<Index>(start <= epoch);
  return begun - 1;
}

/// Z ← the given rows, each by the one of the products that product_of(its epoch) names.
template <class T>
template <class Product>
void Timeline<T>::express(std::span<const Index> rows, ConstView<T> products, const Product& product_of, bool adds,
                          MatrixView<T> Z) {
  if (rows.empty()) return;
  starts_.clear();
  for (const Block& block : blocks_) starts_.push_back(block.start());
  present_rows_.assign(rows.begin(), rows.end());
  matrix_.clear();
  std::int64_t multiplied = 0;
  for_each_expected(rows, [&](Index row) {
    const Index product = product_of(epoch_of(row));
    if (is_zero(row)) {
      present_rows_[matrix_.size()] = RowStore<T>::zero_row;
    } else if (product != Backend<T>::no_column) {
      ++multiplied;
    }
    matrix_.push_back(product);
  });
  account_.rows_caught_up += multiplied;
  account_.products += GemmShape{Op::none, Op::none, Z.rows, multiplied, Z.rows}.flops();
  store_.express(present_rows_, products, matrix_, adds, Z);
}

template <class T>
void Timeline<T>::gather_by_products(std::span<const Index> rows, MatrixView<T> Z) {
  express(
      rows, products_, [&](Epoch epoch) { return product_for(epoch); }, false, Z);
}

/// From the epochs of blocks by their products, which go on to there; from now by the last of them, F itself.
template <class T>
void Timeline<T>::gather_ahead(std::span<const Index> rows, bool adds, MatrixView<T> Z) {
  const auto last = static_cast<Index>(blocks_.size());
  express(
      rows, new_products_, [&](Epoch epoch) { return epoch == now_ ? last : product_for(epoch); }, adds, Z);
}

/// All products, and one more for the block that begins with F.
template <class T>
void Timeline<T>::foresee(ConstView<T> F) {
  const Size d = store_.dim(), count = static_cast<Size>(blocks_.size());
  if ((count + 1) * d > new_products_.cols()) new_products_ = Matrix<T>(d, 2 * (count + 1) * d, backend_.memory());
  if (count > 0) {
    backend_.gemm(Op::none, Op::none, T(1), F, products_.view().columns(0, count * d), T(0),
                  new_products_.view().columns(0, count * d));
    account_.products += GemmShape{Op::none, Op::none, d, count * d, d}.flops();
  }
  backend_.copy(F, new_products_.view().columns(count * d, d));
  foresees_ = true;
}

/// As merge_blocks: of the last `radix` blocks of one level the first remains, and the rows at the starts of the others
/// move to now.
template <class T>
void Timeline<T>::merge_by_products() {
  const auto radix = static_cast<std::size_t>(options_.radix);
  while (blocks_.size() >= radix && blocks_[blocks_.size() - radix].level == blocks_.back().level) {
    const std::size_t first = blocks_.size() - radix;
    moving_rows_.clear();
    matrix_.clear();
    for (std::size_t i = first + 1; i < blocks_.size(); ++i) {
      for_each_expected(blocks_[i].panel.start_rows, [&](Index row) {
        if (epoch_of(row) == blocks_[i].start()) moving_rows_.push_back(row);  // none of them is zero for ever
      });
      matrix_.resize(moving_rows_.size(), static_cast<Index>(i));
    }
    const std::span<const Index> rows = moving_rows_, products = matrix_;
    for (std::size_t start = 0; start < rows.size(); start += rows_moved_at_once) {
      const std::size_t count = std::min(rows_moved_at_once, rows.size() - start);
      const auto Z = Z_stale_.scratch(store_.dim(), static_cast<Size>(count));
      store_.express(rows.subspan(start, count), products_, products.subspan(start, count), false, Z);
      store(rows.subspan(start, count), Z);
      account_.rows_moved += static_cast<std::int64_t>(count);
    }
    account_.rows_caught_up += static_cast<std::int64_t>(rows.size());
    account_.products +=
        GemmShape{Op::none, Op::none, store_.dim(), static_cast<Size>(rows.size()), store_.dim()}.flops();
    auto& start_rows = blocks_[first].panel.start_rows;
    std::size_t staying = 0;
    for_each_expected(start_rows, [&](Index row) {
      if (epoch_of(row) == blocks_[first].start()) start_rows[staying++] = row;
    });
    start_rows.resize(staying);
    ++blocks_[first].level;
    while (blocks_.size() > first + 1) {
      spare_blocks_.push_back(std::move(blocks_.back()));
      blocks_.pop_back();
    }
    ++account_.merges;
  }
}

// ── a state of the other kind ───────────────────────────────────────────────────────────────────

template <class T>
void Timeline<T>::adopt_loaded() {
  if (options_.keeps_products == wants_products_) return;
  if (wants_products_) {
    make_products();
  } else {
    drop_products();
  }
  options_.keeps_products = wants_products_;
}

template <class T>
void Timeline<T>::move_to_now(const std::vector<Index>& rows) {
  constexpr std::size_t at_once = 1024;
  for (std::size_t first = 0; first < rows.size(); first += at_once) {
    const auto group = std::span<const Index>(rows).subspan(first, std::min(at_once, rows.size() - first));
    const auto Z = Z_loaded_.scratch(store_.dim(), static_cast<Size>(group.size()));
    gather(group, Z);
    store(group, Z);
  }
}

/// All rows that were ever touched come to now, and the product for the others becomes the only block.
template <class T>
void Timeline<T>::drop_products() {
  if (blocks_.empty()) return;
  std::vector<Index> rows;
  for (const auto& block : blocks_) {
    for (const Index row : block.panel.start_rows) {
      if (!is_zero(row) && epoch_of(row) == block.start() && stamps()[row] != untouched) rows.push_back(row);
    }
  }
  move_to_now(rows);
  const Size d = store_.dim();
  blocks_.resize(1);
  blocks_.front().level = 1;
  blocks_.front().panel.start_rows.clear();
  backend_.copy(products_.view().columns(0, d), blocks_.front().F.scratch(d, d));
  has_ways_ = false;
  columns_met_ = 0;
}

/// The open panel is closed by a flip that changes nothing, rows inside the blocks come to now, and products take the
/// place of transitions.
template <class T>
void Timeline<T>::make_products() {
  const Size d = store_.dim();
  if (panel_.rank > 0) {
    Matrix<T> identity(d, d, backend_.memory());
    backend_.set_identity(identity);
    advance_dense(identity);
  }
  std::vector<Index> rows;
  for (std::size_t k = 0; k < blocks_.size(); ++k) {
    const Epoch end = k + 1 < blocks_.size() ? blocks_[k + 1].start() : panel_.start;
    for (const Index row : blocks_[k].panel.inner_rows) {
      if (epoch_of(row) > blocks_[k].start() && epoch_of(row) < end) rows.push_back(row);
    }
  }
  move_to_now(rows);
  const Size count = static_cast<Size>(blocks_.size());
  products_ = Matrix<T>(d, count * d, backend_.memory());
  for (Size k = count - 1; k >= 0; --k) {
    const auto product = products_.view().columns(k * d, d);
    const auto& F = blocks_[static_cast<std::size_t>(k)].F;
    if (k == count - 1) {
      backend_.copy(F, product);
    } else {
      backend_.gemm(Op::none, Op::none, T(1), products_.view().columns((k + 1) * d, d), F, T(0), product);
    }
    auto& block = blocks_[static_cast<std::size_t>(k)];
    block.level = std::max(block.level, 1);  // one of level 0 leads over the epochs of its panel, and that is gone
    auto& panel = block.panel;
    panel.rank = 0;
    panel.columns.assign(1, 0);
    panel.inner_rows.clear();
  }
}

#define WIDEHEAD_INSTANTIATE(T)                                                         \
  template void Timeline<T>::gather_by_products(std::span<const Index>, MatrixView<T>); \
  template void Timeline<T>::gather_ahead(std::span<const Index>, bool, MatrixView<T>); \
  template void Timeline<T>::foresee(ConstView<T>);                                     \
  template void Timeline<T>::merge_by_products();                                       \
  template void Timeline<T>::adopt_loaded()
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
