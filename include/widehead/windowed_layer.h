#pragma once
/// The layer to use: exact in float32 at any learning rate, at a cost that never depends on D.
///   W = V U + Γ_w E + 1ωᵀ      V: D x d, U: d x d, Γ_w: D x n sparse, E: n x d, ω: d
/// The derivatives Γ at a minibatch's targets are appended (columns to Γ_w, rows to E) instead of being
/// folded into V through U⁻ᵀ; after about d examples the window closes, leaving W unchanged:
///   absorb   V ← V + Γ_w (E U⁻¹)         where U is well conditioned; then the few directions in
///            which U has shrunk are deflated out of it (a low-rank transition of the timeline)
///   flip     V_i ← V_i U + (Γ_w E)_i for the rows touched in the window, U ← I, and U becomes the
///            transition for all others    always possible; a host also turns the basis, so that V is large in
///            one number of a row only (Reflection)
/// Rows of V catch up when they are touched (Timeline). ω is there for losses that use Σo (CommonPart).
/// Q = WᵀW and U would round in every step, and small learning rates forget slowly; so both are kept as
/// a sum of two, high + low: steps go to the low part, whose rounding is small. On a host the stack itself is the high
/// part. Derivation and figures: docs/algorithm.md.

#include <limits>
#include <string>

#include "widehead/common_part.h"
#include "widehead/deflation.h"
#include "widehead/gram_update.h"
#include "widehead/reflection.h"
#include "widehead/row_store.h"
#include "widehead/spherical_layer.h"
#include "widehead/timeline.h"
#include "widehead/window.h"

namespace widehead {

struct WindowedOptions {
  Size window = 0;             ///< rows of E after which a window closes, or half as many examples again; 0: from d
  double absorb_limit = 1000;  ///< largest condition number of U at which a window is absorbed
  DeflationOptions deflation;
  TimelineOptions timeline;
  std::string rows_file;                ///< file that holds V, created sparse; empty for memory
  RowPlace rows = RowPlace::automatic;  ///< where V is on a device: there, or with the host
};

template <class T>
class WindowedLayer final : public SphericalLayer<T> {
 public:
  WindowedLayer(const LayerOptions& options, const WindowedOptions& windowed, std::shared_ptr<Backend<T>> backend);

  std::string head() const override { return "windowed"; }
  Matrix<T> gram() override { return this->host_copy(Q()); }
  Matrix<T> sum_of_rows() override;
  Diagnostics counters() const override;
  Diagnostics diagnostics() override;
  std::vector<GemmShape> step_products(Size m) const override;

  const RowStore<T>& rows() const { return store_; }

 protected:
  void expect(std::span<const Index> rows) const override { timeline_.expect(rows); }
  void observe(ConstView<T> H, const RowGroups<T>& targets, const Statistics& statistics) override;
  void backpropagate(ConstView<T> H, const Derivatives<T>& by, MatrixView<T> grad_H) override;
  void update(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) override;
  void update_after_backpropagate(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) override;
  /// A device that does not factor U takes nothing back to the host.
  bool can_update_later() const override { return !is_host(); }
  void reserve_for_update(Size m) override;
  void update_later(ConstView<T> H, const Derivatives<T>& by, T eta, MatrixView<T> grad_H) override;
  void visit_own_state(StateVisitor& visitor) override;
  void begin_scores(ConstView<T> H) override;
  void write_scores(std::span<const Index> rows, MatrixView<T> out) override;
  void write_weights(Size first, MatrixView<T> out) override;

 private:
  // The stack S = [Q; U; E], held transposed (d x (2d + n)): a row of S is contiguous, and a window
  // grows by appending columns. Q is symmetric, so only U and E are seen transposed.
  MatrixView<T> Q() { return S_T_.view().columns(0, this->dim()); }
  MatrixView<T> U_T() { return S_T_.view().columns(this->dim(), this->dim()); }
  MatrixView<T> E_T() { return S_T_.view().columns(2 * this->dim(), window_.columns()); }
  /// Of the low part's sum: a host carries over in every step, a device when a window closes.
  MatrixView<T> high() { return high_.size() == 0 ? S_T_.view().columns(0, 2 * this->dim()) : high_.view(); }

  Size in_tiles(Size rows) const;
  /// Whether U is factored now and then, and rows of E are by output. Else the backend is what is called a device here.
  bool is_host() const { return this->backend().factorizes_fast(); }
  MatrixView<T> stack_product(Size m);
  MatrixView<T> H_hat(Size m);
  MatrixView<T> UEH_T(Size m);
  void multiply_rows(Size first, Size count, ConstView<T> H);
  void finish_step(ConstView<T> H, const Derivatives<T>& by, T eta, bool has_Gamma_hat, MatrixView<T> grad_H);
  double prepare(ConstView<T> H, const Derivatives<T>& by, T eta, bool has_Gamma_hat, MatrixView<T> grad_H);
  void commit_all(ConstView<T> H, const Derivatives<T>& by, T eta, double c);
  MatrixView<T> compute_Gamma_hat(Size m, const Derivatives<T>& by);
  void add_known_rows(ConstView<T> V);
  bool appends_by_output(const RowGroups<T>& targets, Size m) const;
  double bound_P(double a, double eta, double norm_H, double norm_Gamma) const;
  bool fits(ConstView<T> H, const Derivatives<T>& by, T eta);
  bool commit(ConstView<T> H, const Derivatives<T>& by, T eta, double c);
  bool sum_window(std::span<const Index> rows, MatrixView<T>& sums);
  void commit_and_examine(ConstView<T> H, ConstView<T> UEH_T, T eta, MatrixView<T> S_T);
  bool is_over(Size m) const;
  void examine(Size m);
  Size reach_after(double sigma, Size m) const;
  void visit_two_parts(StateVisitor& visitor);
  void close_window();
  MatrixView<T> window_rows(std::span<const Index> rows);
  void absorb();
  void flip();

  WindowedOptions windowed_;
  RowStore<T> store_;
  Timeline<T> timeline_;
  Window<T> window_;
  CommonPart<T> common_;
  Deflation<T> deflation_;
  Reflection<T> reflection_;
  Matrix<T> S_T_;                            // d x (2d + capacity), and the rest of a tile
  Matrix<T> high_, low_;                     // d x 2d: [Q; U]ᵀ = high() + low, rounded in S; a host has no high_
  static constexpr Size rows_in_piece = 32;  // of S, for a thread: with fewer a product is slower
  static constexpr Size rows_in_tile = 16;   // of the GEMM library: a part of one takes longer than all of it
  static constexpr Size unlimited = std::numeric_limits<Size>::max();
  bool can_absorb_ = false;                                       // what examine() found; a device never asks
  Size reach_ = unlimited;                                        // examples after which the window closes at last
  double stack_bound_ = std::numeric_limits<double>::infinity();  // ≥ ‖S‖_F

  struct Account {
    std::int64_t absorbs = 0, flips = 0, deflated = 0;
    double close_seconds = 0;
    double flip_flops = 0;
    // minibatches, rows of the stack that met them, and columns that U was multiplied with for them
    std::int64_t observed = 0, stack_rows = 0, target_columns = 0;
  };
  Account account_;

  // scratch of a step
  GramUpdate<T> gram_update_;
  Matrix<T> T_;            // a device's stack_product(); a host's UEH_T(), and the rest of a tile
  Matrix<T> H_hat_, H_T_;  // a host's: d x m, QH and later P; m x d, Hᵀ
  std::vector<Index> known_rows_, known_columns_;  // rows of the minibatch that are fetched, which of them these are
  Matrix<T> Z_, Z_next_;                           // d x known_rows_.size(): their V, expressed now; in turns
  Matrix<T> VtG_, Gamma_hat_;                      // d x m: VᵀΓ, or V_i U, or a host's UH; Γ̂
  Matrix<T> sums_;                                 // d x rows: window parts (Γ_w E)_i, or W_i
  bool touches_window_ = false;                    // whether any row of the minibatch has a part there
  bool knows_W_ = false;                           // whether W_ + apart_ are W_i for the rows of the minibatch
  MatrixView<T> W_;                                // in the room of sums_ or VtG_
  MatrixView<T> apart_;                            // (Γ_w E)_i, where it has not been added to anything; or empty
  std::vector<std::int64_t> sum_offsets_;
  std::vector<Index> sum_columns_, sum_entries_;
  // scratch of scores
  ConstView<T> H_scored_;
  Matrix<T> UH_;  // d x m
  MatrixView<T> UH_scored_;
};

}  // namespace widehead
