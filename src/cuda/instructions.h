#pragma once
/// What the instructions of a program are about: plain structs that the host fills in and the device reads. What is
/// done with them is in elements.cuh, multiply.cuh, express.cuh, sums.cuh and judge.cuh.

#include <cstddef>

#include "device_view.h"
#include "pattern.h"
#include "program.h"
#include "widehead/activation.h"

namespace widehead::cuda {

/// A tile of matrix elements, in the order of memory: as many as there are threads, or where that makes many tiles, a
/// few times as many.
inline int element_turns(Size rows, Size cols) { return rows * cols <= Size{1} << 13 ? 1 : 4; }
inline Size element_tiles(Size rows, Size cols) {
  const Size each = element_turns(rows, cols) * program_threads;
  return (rows * cols + each - 1) / each;
}

enum class Element : int {
  copy,            ///< C ← A
  clear,           ///< C ← 0
  clear_starts,    ///< C(i, j) ← 0 for i < from[j]
  identity,        ///< C ← I
  scale,           ///< C ← αC
  scaled,          ///< C ← αA
  add,             ///< C ← αA + βB
  add_columns,     ///< C ← αA diag(a) + βB
  scale_columns,   ///< C ← C diag(a)
  scale_rows,      ///< C ← diag(a) C
  add_to_rows,     ///< C ← C + a1ᵀ
  carry,           ///< Backend::carry, S = A, high = C, low = D
  split,           ///< Backend::split_gradient, Γ̂ = A, Ĥ = C, grad = D, C = F; a may be empty
  finish,          ///< Backend::finish_stack, high = A, low = C, S = D, the first `square` columns being symmetric
  move,            ///< column to[k] of C ← column from[k] of A, or 0
  add_to_columns,  ///< column to[k] of C ← itself + α column k of A
  activate,        ///< C ← s(C + a1ᵀ)
  slope,           ///< C ← C ∘ s′, by s(…) = A
  adam,            ///< Backend::adam, G = A, P = C, M = D, S = F
};
template <class T>
struct Elements {
  Element what;
  Activation activation = Activation::identity;
  Size rows = 0, cols = 0;
  Size square = 0;
  int turns = 1;
  DeviceView<const T> A = {}, B = {};
  DeviceView<T> C = {}, D = {}, F = {};
  const T* a = nullptr;
  const Index *from = nullptr, *to = nullptr;
  T alpha = 0, beta = 0;
  T beta1 = 0, beta2 = 0, rest1 = 0, rest2 = 0;  ///< of Adam, with its rate in alpha and ε in beta
};

/// Tiles of a product are 32 x 32, or 16 x 16.
inline Size multiply_tiles(Size rows, Size cols, int edge) {
  return ((rows + edge - 1) / edge) * ((cols + edge - 1) / edge);
}
/// What becomes of the elements of a product.
enum class After : int {
  nothing,
  activate,  ///< c ← s(c + b), b of its row, if there are any
  slope,     ///< c ← c s′, by s(…) = y at its place
};
/// Two matrices that are multiplied, and what has to be added up for an element.
struct Factors {
  const float *A, *B;
  int A_stride, B_stride, depth;
};
inline constexpr int most_products = 2;
/// Two entries of a pattern at one output: its own, of some example, and another one, with whose example that is.
struct alignas(16) Pair {
  Index own, other, example;
};
/// C ← α (Σ op(A) op(B) + H YᵀY) + βC, in float (multiply.cuh).
struct Multiply {
  Factors of[most_products];  ///< all laid out alike; those after the first may be none, and are where A is along
  float* C;
  int C_stride;
  int rows, cols;
  float alpha, beta;
  bool A_along, B_along;  ///< consecutive along the depth; else across it
  bool wide;              ///< 16 bytes at a time are possible, of either, and leave nothing over
  bool wide_C;            ///< likewise of C, and of `high` and `sum` where there are any
  int edge;               ///< of a tile: 32 unless wide
  bool symmetric;     ///< as all summands are: the elements below the diagonal go for those above; A and B are across
  const float* high;  ///< with `sum`: sum ← high + C
  float* sum;
  int high_stride, sum_stride;
  const float *H, *values;  ///< where there are pairs
  int H_stride;
  const Index* pair_starts;  ///< of the examples, or nullptr
  const Pair* pairs;
  After after;  ///< only where neither symmetric nor with a sum
  Activation activation;
  const float* y;  ///< or b
  int y_stride;
};

/// Columns of one matrix, or of none: from `first` on in the order of `columns`.
struct Bundle {
  Index matrix, first, count;
};
inline constexpr int bundle_columns = 8;         ///< by whose matrix is read for them alone
inline constexpr int large_bundle_columns = 32;  ///< those that are multiplied as a tile is (multiply.cuh), in float
inline constexpr int express_rows = 32;
inline Size express_tiles(Size bundles, Size dim) { return bundles * ((dim + express_rows - 1) / express_rows); }
/// Backend::express_columns, the columns sorted by their matrices.
template <class T>
struct Express {
  DeviceView<const T> V, matrices;
  DeviceView<T> Z;
  const Bundle* bundles;
  const Index *columns, *rows;  ///< of Z and of V, or −1, in the order of the bundles
  int dim;
  bool wide;
  bool adds;  ///< to what Z holds
};

inline constexpr int sum_rows_each = 2 * program_threads;
inline Size sum_tiles(Size columns, Size rows) { return columns * ((rows + sum_rows_each - 1) / sum_rows_each); }
/// Column to[c] of Y ← Σ α value · column of X, over k = starts[c] … starts[c+1] − 1 with e = order[k]: the value at
/// entries[e], the column columns[e]. No list means the number itself.
template <class T>
struct SumColumns {
  const Index *starts = nullptr, *order = nullptr, *entries = nullptr, *columns = nullptr, *to = nullptr;
  const T* values = nullptr;
  DeviceView<const T> X = {};
  DeviceView<T> Y = {};
  int rows = 0;
  T alpha = 1;
  bool add = false;  ///< to what is there
};

inline constexpr int dots_each = program_threads / warp_size;
inline Size dot_tiles(Size count) { return (count + dots_each - 1) / dots_each; }
/// out[e] ← β out[e] + a_k · b_l with k = of_a[e], l = of_b[e]; no list means e itself.
template <class T>
struct Dots {
  DeviceView<const T> A, B;
  const Index *of_a, *of_b;
  double* out;
  double beta;
  int rows, count;
};

/// What each example adds to the verdict.
struct Opinions {
  double* L;          ///< weighted
  double* largest_a;  ///< |a|, weighted
  Size* bad;          ///< the example itself, or `nobody`
  double* value;      ///< L, a, b as the loss gave them
};
inline constexpr Size nobody = static_cast<Size>(~std::size_t{0} >> 1);
/// Verdict as it comes from the device: no gaps.
struct Summary {
  double L, largest_a;
  Size bad;
  double at_bad[3];
};

/// Backend::judge.
template <class T>
struct Judge {
  int loss;  ///< its place in the variant
  int examples;
  alignas(8) std::byte parameters[24];
  double outputs;
  Pattern<T> Y;
  const T* weights;
  const double *q, *s, *o;
  T *a, *b, *gamma, *g;
  double* room;  ///< o, y and g of each example's targets, example after example
  Opinions out;
};

/// Backend::observe_targets.
template <class T>
struct Observe {
  DeviceView<const T> H, H_hat, UH, Z, sums;
  double *q, *o;
  int rows, examples, entries;
  bool has_sums;
  Pattern<T> Y;
};

inline constexpr int judged_at_once = 2;
inline Size judged_tiles(Size examples) { return (examples + judged_at_once - 1) / judged_at_once; }
/// One after the other, for few targets an example; and then, each if asked for, Γ̂ = (Z + sums) Γ, which is
/// Backend::combine_targets, and Backend::split_gradient.
template <class T>
struct ObserveAndJudge {
  Observe<T> observe;
  Judge<T> judge;
  bool combines = false, splits = false;
  bool a_is_one = true;
  T c = 1;
  DeviceView<T> Gamma_hat = {}, H_hat = {}, grad = {}, C = {};
};

struct Summarize {
  int examples;
  Opinions of;
  Summary* summary;
  double* ledger;  ///< instead of the summary, if there is one
};

/// M ← YᵀY, a tile for each example.
template <class T>
struct Gram {
  Pattern<T> Y;
  const T* values;
  DeviceView<T> M;
  int examples;
};

inline Size sum_rows_tiles(Size rows) { return (rows + warp_size - 1) / warp_size; }
/// out ← A1.
template <class T>
struct SumRows {
  DeviceView<const T> A;
  T* out;
  int rows, cols;
};

}  // namespace widehead::cuda
