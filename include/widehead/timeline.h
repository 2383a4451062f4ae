#pragma once
/// Time for the rows of V. The coordinates in which rows are expressed change now and then (when U is
/// reset or deflated), and D rows cannot all be rewritten. So each row carries the **epoch** it is
/// expressed at, the timeline keeps the transitions between epochs, and a row catches up when it is
/// touched. Rows nobody touches cost nothing. Knows nothing of losses.
///
/// As columns z (a row of V transposed), the transition from one epoch to the next is either
///   low rank   z ← (I + b aᵀ) z      (a deflation, rank 1 … 8)
///   dense      z ← F z               (a flip).
/// Recent low-rank transitions form the **panel** A = [a₁ … a_ρ], B = [β₁ … β_ρ] with every βᵢ carried
/// forward by the later transitions, so that from whichever epoch inside it a row comes,
///   z ← z + Σ_{i ≥ first} βᵢ (aᵢᵀ z),
/// two products for all rows at once. A flip ends the panel and becomes, with it, a dense **block**; the
/// owner flips when the panel is full. Where that happens seldom, every block also gets the product of all that follows
/// it, and a row is one product away from the open panel, whatever block it comes from; where rows are few between two
/// flips, they go from block to block. `radix` blocks of one level become one of the next, as in a log-structured merge
/// tree, and then the rows inside and between them move forward.
/// A device that never deflates, and for which one large product is cheaper than several small ones, keeps for each
/// block the product of all transitions since its start instead (keeps_products): then every row is one product away
/// from now, whatever its epoch, a flip multiplies all the products in one go, and a merge only moves rows.
///
/// Rows untouched since the beginning stay at epoch 0, which is the start of the oldest block forever:
/// no merge is O(D).
///
/// Memory: 4 bytes per output for epochs and 4 per touched output in the lists of rows at each
/// boundary, resident where touched; (radix − 1) log_radix(flips) + 2 blocks of two d x d, up to radix of them
/// with their last F (d x d) and panel (2 d x rank).

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "widehead/backend.h"
#include "widehead/row_store.h"

namespace widehead {

struct TimelineOptions {
  Size panel_rank = 0;          ///< rank of the low-rank transitions between two flips; 0 means d/4 (8 at least)
  int radix = 8;                ///< blocks of a level that merge into one of the next
  bool keeps_products = false;  ///< see above; for a backend that does not factor U
};

template <class T>
class Timeline {
 public:
  using Epoch = std::uint32_t;

  struct Account {
    std::int64_t low_rank = 0;  ///< rank of all low-rank transitions so far
    std::int64_t blocks = 0;    ///< dense blocks made
    std::int64_t merges = 0;
    std::int64_t rows_caught_up = 0;
    std::int64_t rows_moved = 0;  ///< by merges
    double products = 0;          ///< flops of all of the above
  };

  /// @param zero  whether rows never touched are zero (and need no catching up)
  Timeline(Backend<T>& backend, RowStore<T>& store, bool zero, const TimelineOptions& options);

  const TimelineOptions& options() const { return options_; }  ///< with what 0 stood for
  Epoch now() const { return now_; }

  /// Of D stamps those of a minibatch are far from one another: all are on their way before the first is looked at.
  void expect(std::span<const Index> rows) const {
    for (const Index row : rows) __builtin_prefetch(stamps() + row);
  }
  /// f(row) for any number of rows, whose stamps are on their way some rows ahead.
  template <class F>
  void for_each_expected(std::span<const Index> rows, const F& f) const {
    constexpr std::size_t ahead = 24;
    expect(rows.first(std::min(ahead, rows.size())));
    for (std::size_t k = 0; k < rows.size(); ++k) {
      if (k + ahead < rows.size()) __builtin_prefetch(stamps() + rows[k + ahead]);
      f(rows[k]);
    }
  }
  /// Those of the given rows that are not zero for want of ever being touched, and their positions in the list.
  void find_nonzero(std::span<const Index> rows, std::vector<Index>& found, std::vector<Index>& positions) const;
  /// Z ← the given rows (distinct), expressed now. Changes nothing.
  void gather(std::span<const Index> rows, MatrixView<T> Z);
  /// Stores Z, made by gather, as these rows at the present epoch; only rows that were behind are written, and
  /// of those not the ones that are zero at any epoch.
  void catch_up(std::span<const Index> rows, ConstView<T> Z);
  /// Stores Z as these rows at the present epoch.
  void store(std::span<const Index> rows, ConstView<T> Z);
  /// Whether the given rows are expressed at the present epoch, or zero at any: then there is a shorter way than gather
  /// and store to add to them.
  bool is_current(std::span<const Index> rows) const;
  /// Adds column k of G to row rows[k] (distinct), all of which are current.
  void add(std::span<const Index> rows, ConstView<T> G);

  /// With keeps_products, before advance_dense(F): makes what leads to the epoch that begins with it.
  void foresee(ConstView<T> F);
  /// Then: Z ← the given rows (distinct), expressed at that epoch. `adds`: to what Z holds.
  void gather_ahead(std::span<const Index> rows, bool adds, MatrixView<T> Z);
  /// Before a new epoch begins: stores Z as these rows at that epoch.
  void store_ahead(std::span<const Index> rows, ConstView<T> Z);
  /// Whether the panel has room for a transition of rank r. If not, flip.
  bool has_room(Size r) const { return !options_.keeps_products && panel_.rank + r <= options_.panel_rank; }
  /// A new epoch, one z ← (I + b aᵀ) z away. a, b: d x r, for which there is room.
  void advance(ConstView<T> a, ConstView<T> b);
  /// A new epoch, one z ← F z away, and an empty panel.
  void advance_dense(ConstView<T> F);

  const Account& account() const { return account_; }
  Size alive_blocks() const { return static_cast<Size>(blocks_.size()); }
  Size panel_rank() const { return panel_.rank; }
  std::size_t bytes() const;

  void visit_state(StateVisitor& visitor);
  /// To be called once the rows are loaded, too: what was saved with products goes on without, and the other way round.
  void adopt_loaded();
  /// The first row from this one on that was ever touched, or that did not start as zero; D if none.
  Size next_used_row(Size from) const;

 private:
  /// Low-rank transitions from epoch `start` on. Lists of rows are not searched for a row that
  /// leaves: who reads them compares epochs.
  struct Panel {
    Epoch start = 0;
    Size rank = 0;
    Matrix<T> A_T, B;  // panel_rank x d and d x panel_rank, or nothing: a few columns meet both as they lie
    std::vector<Size> columns = {0};  // by epoch − start: the first column that epoch has not seen
    std::vector<Index> start_rows;    // listed when they were expressed at `start`
    std::vector<Index> inner_rows;    // listed when they were first expressed at a later epoch of the panel
  };
  /// The transition from its panel's start to the start of the next block, or of the open panel.
  struct Block {
    int level = 0;
    Matrix<T> F;       // d x d
    Matrix<T> F_last;  // d x d: from the panel's end to the same; of level 0 only
    Panel panel;       // of level 0 only: later nothing is inside
    Matrix<T> to_now;  // d x d: from the panel's end to the start of the open panel; with has_ways_ only
    Epoch start() const { return panel.start; }
  };
  /// Per dimension: two products d x d for each block cost what 4d columns save that skip half of the blocks.
  static constexpr std::int64_t columns_for_ways = 4;
  static constexpr Epoch untouched = 0;  // stamps are epoch + 1, so that zero pages mean "never touched"

  Epoch epoch_of(Index row) const { return stamps()[row] == untouched ? 0 : stamps()[row] - 1; }
  bool is_zero(Index row) const { return zero_ && stamps()[row] == untouched; }
  Epoch* stamps() const { return static_cast<Epoch*>(stamps_.data()); }
  void stamp(Index row, Epoch epoch);

  void bring_to_now(std::span<const Epoch> epochs, MatrixView<T> Z);
  Index product_for(Epoch epoch) const;
  template <class Product>
  void express(std::span<const Index> rows, ConstView<T> products, const Product& product_of, bool adds,
               MatrixView<T> Z);
  void gather_by_products(std::span<const Index> rows, MatrixView<T> Z);
  void move_to_now(const std::vector<Index>& rows);
  void drop_products();
  void make_products();
  void merge_by_products();
  void apply(const Panel& panel, std::span<const Epoch> epochs, MatrixView<T> Z);
  void multiply(ConstView<T> F, MatrixView<T> Z);
  void bring_near(ConstView<T> A, Size columns) const;
  void append_product(ConstView<T> F, MatrixView<T> G);
  void fill_block(ConstView<T> F, Block& block);
  bool ways_pay() const { return !blocks_.empty() && columns_met_ >= columns_for_ways * store_.dim(); }
  void make_ways();
  void leave(const Block& block, ConstView<T> F, std::span<const Epoch> epochs, MatrixView<T> Z);
  void go_by_ways(std::span<const Epoch> epochs, MatrixView<T> Z);
  void go_through_blocks(std::span<const Epoch> epochs, MatrixView<T> Z);
  void merge_blocks();
  template <class Express>
  void move_rows(std::span<const Index> candidates, Epoch first, Epoch last, const Express& express);
  Block take_block();
  void make_room(Panel& panel);
  void visit_panel(StateVisitor& visitor, Panel& panel);
  void check_epochs(StateVisitor& visitor) const;

  Backend<T>& backend_;
  RowStore<T>& store_;
  bool zero_;
  TimelineOptions options_;
  bool wants_products_;  // options_.keeps_products, but for a state on its way in
  MappedMemory stamps_;  // D epochs

  Epoch now_ = 0;
  std::vector<Block> blocks_;          // oldest first
  std::vector<Block> spare_blocks_;    // kept for their memory
  Panel panel_;                        // the open one
  std::int64_t columns_met_ = 0;       // of blocks, that steps caught up since the last one was made
  bool has_ways_ = false;              // whether blocks know to_now
  Matrix<T> products_, new_products_;  // d x d each, side by side: from a block's start to now, or to what is foreseen
  bool foresees_ = false;
  Account account_;

  // scratch
  struct Stale {
    Epoch epoch;
    Index row;
    Index column;
  };
  std::vector<Stale> stale_;
  std::vector<Index> present_rows_, stale_rows_, stale_columns_, first_ranks_;
  std::vector<Epoch> stale_epochs_;
  std::vector<Index> moving_rows_, matrix_;
  std::vector<Epoch> starts_;
  Matrix<T> Z_stale_, Z_next_, Z_loaded_, projections_, product_, later_;
};

}  // namespace widehead
