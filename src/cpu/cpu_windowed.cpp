/// The backend's operations that go with a step of the windowed layer, each one pass over its matrices.

#include <algorithm>
#include <atomic>

#include "cpu_backend.h"
#include "register_tile.h"
#include "stripes.h"

namespace widehead {
namespace {

/// Which rows of the stack are for whom: the last for the thread that asks. In the product with H the others begin with
/// the first rows (CpuBackend::share), and a line of the cache that one core has read is slow to write for another.
Size stripe_of(Size rank, Size team) { return team - 1 - rank; }

/// (high + low) − sum, exactly, where `sum` is high + low, rounded: Knuth's two-sum, right whichever of the two is
/// larger.
template <class T>
inline T left_over(T sum, T high, T low) {
  const T low_in_sum = sum - high, high_in_sum = sum - low_in_sum;
  return (high - high_in_sum) + (low - low_in_sum);
}

/// A ← (A + Aᵀ)/2, one thread's part of it but for the last rows and columns, which fill no tile.
template <class T>
void average_tiles(Size rank, Size team, MatrixView<T> A) {
  using Tile = RegisterTile<T>;
  const Size tiles = A.rows / Tile::edge;
  const auto average_tile_column = [&](Size tile_j) {
    for (Size tile_i = tile_j; tile_i < tiles; ++tile_i) {
      T *below = &A(tile_i * Tile::edge, tile_j * Tile::edge), *above = &A(tile_j * Tile::edge, tile_i * Tile::edge);
      auto mean = Tile::load(above, A.stride);
      mean.transpose();
      mean.average_with(Tile::load(below, A.stride));
      mean.store(below, A.stride);
      mean.transpose();
      mean.store(above, A.stride);
    }
  };
  // Columns j and tiles − 1 − j of the triangle together are always of one length: equal stripes.
  take_stripe(rank, team, (tiles + 1) / 2, 1, [&](Size first, Size count) {
    for (Size tile_j = first; tile_j < first + count; ++tile_j) {
      average_tile_column(tile_j);
      if (tiles - 1 - tile_j != tile_j) average_tile_column(tiles - 1 - tile_j);
    }
  });
}

/// The rows and columns that average_tiles leaves, by one thread.
template <class T>
void average_rest(MatrixView<T> A) {
  constexpr Size edge = RegisterTile<T>::edge;
  for (Size i = A.rows / edge * edge; i < A.rows; ++i) {
    for (Size j = 0; j < i; ++j) A(i, j) = A(j, i) = (A(i, j) + A(j, i)) / 2;
  }
}

/// Some columns of S ← high + low; where `high` is S itself, low ← what the sum leaves over.
template <class T>
void add_low(Size first, Size count, MatrixView<const T> high, MatrixView<T> low, MatrixView<T> S) {
  const bool carries = high.data == S.data;
  for (Size j = first; j < first + count; ++j) {
    const T* h = high.column(j);
    T *l = low.column(j), *s = S.column(j);
    if (carries) {  // NOLINT(bugprone-branch-clone): loops under a pragma are all alike to it
#pragma omp simd
      for (Size i = 0; i < S.rows; ++i) {
        const T sum = s[i] + l[i];
        l[i] = left_over(sum, s[i], l[i]);
        s[i] = sum;
      }
    } else {
#pragma omp simd
      for (Size i = 0; i < S.rows; ++i) s[i] = h[i] + l[i];
    }
  }
}

/// grad ← 2a ĥ + γ̂, sum ← a ĥ + γ̂, ĥ ← c grad: a column of each.
template <class T>
void split_column(Size n, T a, const T* gamma, T c, T* h, T* grad, T* sum) {
#pragma omp simd
  for (Size i = 0; i < n; ++i) {
    const T half = a * h[i], whole = 2 * half + gamma[i];
    sum[i] = half + gamma[i];
    grad[i] = whole;
    h[i] = c * whole;
  }
}

/// Some columns of E ← −ηH.
template <class T>
void append_columns(Size first, Size count, T eta, MatrixView<const T> H, MatrixView<T> E) {
  for (Size j = first; j < first + count; ++j) {
    const T* h = H.column(j);
    T* e = E.column(j);
#pragma omp simd
    for (Size i = 0; i < E.rows; ++i) e[i] = -eta * h[i];
  }
}

}  // namespace

template <class T>
void CpuBackend<T>::symmetrize(MatrixView<T> A) {
  for_each_thread(team_for(A.size()), [&](Size rank, Size team) { average_tiles(rank, team, A); });
  average_rest(A);
}

template <class T>
void CpuBackend<T>::split_gradient(ConstView<T> a, ConstView<T> Gamma_hat, T c, MatrixView<T> H_hat, MatrixView<T> grad,
                                   MatrixView<T> C) {
  for_each_stripe(team_for(3 * C.size()), C.cols, 1, [&](Size first, Size count) {
    for (Size j = first; j < first + count; ++j) {
      split_column(C.rows, a.empty() ? T(1) : a(j, 0), Gamma_hat.column(j), c, H_hat.column(j), grad.column(j),
                   C.column(j));
    }
  });
}

/// By examples: an example's Γ̂ is used while it is near, and each thread has its own.
template <class T>
void CpuBackend<T>::split_gradient_at_targets(ConstView<T> a, ConstView<T> Z, ConstView<T> sums, const RowGroups<T>& Y,
                                              ConstView<T> values, MatrixView<T> Gamma_hat, T c, MatrixView<T> H_hat,
                                              MatrixView<T> grad, MatrixView<T> C) {
  const Size d = C.rows;
  for_each_stripe(team_for(3 * C.size() + Y.nonzeros() * d), C.cols, 1, [&](Size first, Size count) {
    for (Size j = first; j < first + count; ++j) {
      T* gamma = Gamma_hat.column(j);
      std::fill_n(gamma, d, T(0));
      for (const Index e : Y.of_example(j)) {
        const Size group = Y.group_of(e);
        axpy(d, values(e, 0), Z.column(group), gamma);
        if (!sums.empty()) axpy(d, values(e, 0), sums.column(group), gamma);
      }
      split_column(d, a.empty() ? T(1) : a(j, 0), gamma, c, H_hat.column(j), grad.column(j), C.column(j));
    }
  });
}

template <class T>
void CpuBackend<T>::add_combined(T alpha, const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X,
                                 std::span<const Index> columns, Size known, MatrixView<T> /*Z*/, MatrixView<T> P) {
  for_each_stripe(team_for(Y.nonzeros() * P.rows), Y.count(), 1, [&](Size first, Size count) {
    for (Size group = first; group < first + count; ++group) {
      const Index column = columns[static_cast<std::size_t>(group)];
      T* p = P.column(column);
      if (column >= known) std::fill_n(p, P.rows, T(0));
      Size e = Y.first_entry(group);
      for (const auto& entry : Y.entries(group)) axpy(P.rows, alpha * values(e++, 0), X.column(entry.example), p);
    }
  });
}

/// Q is the first half of the stack, so the threads that take the first half have just written low's part of it: they
/// alone turn it, at no cost of waiting for other cores' lines, while the others write E and what is behind Q.
template <class T>
void CpuBackend<T>::finish_stack(T eta, ConstView<T> H, ConstView<T> high, MatrixView<T> low, MatrixView<T> S,
                                 MatrixView<T> E) {
  const Size d = low.rows;
  const auto low_Q = low.columns(0, d);
  for_each_thread(team_for(low.size()), [&](Size rank, Size team) {
    const Size turning = std::max<Size>(1, team / 2), writing = std::max<Size>(1, team - turning);
    const Size stripe = stripe_of(rank, team);
    if (stripe < turning) average_tiles(stripe, turning, low_Q);
    if (stripe == 0) average_rest(low_Q);
    if (stripe >= team - writing) {
      const Size writer = stripe - (team - writing);
      take_stripe(writer, writing, E.cols, 1,
                  [&](Size first, Size count) { append_columns<T>(first, count, eta, H, E); });
      take_stripe(writer, writing, S.cols - d, 1,
                  [&](Size first, Size count) { add_low<T>(d + first, count, high, low, S); });
    }
    if (team > 1) {  // a team of one may be part of another, which does not wait here
#pragma omp barrier
    }
    take_stripe(stripe, team, d, 1, [&](Size first, Size count) { add_low<T>(first, count, high, low, S); });
  });
}

/// Threads share out the columns of the whole stack, whether they are in low or in S. What one has written to low it
/// adds to S before it goes on: the second-level cache has room for Q or for U in two parts, but not for all. Q must be
/// symmetric first. One of two threads has all of it, the other begins with the last half of what is behind it, and
/// pieces of the first half are for who is free, from either end: which thread is the slower depends on whose cache has
/// what. More threads have parts of Q each, which is finished when all of them are done.
template <class T>
void CpuBackend<T>::commit_stack_by_rows(T eta, ConstView<T> H, ConstView<T> H_T, ConstView<T> P, ConstView<T> UEH_T,
                                         MatrixView<T> low, MatrixView<T> S) {
  const Size d = H.rows, m = H.cols, height = d + UEH_T.cols, split = low.cols;
  const int threads = GemmShape{Op::none, Op::transpose, d, height, m}.flops() < min_parallel_flops ? 1 : threads_;
  const auto low_Q = low.columns(0, d);
  const auto subtract_P = [&](Size first, Size count) {
    if (count == 0) return;
    blas::gemm<T>(Op::none, Op::none, -2 * eta, P, H_T.columns(first, count), T(1), low.columns(first, count));
  };
  const auto subtract = [&](Size first, Size count, MatrixView<T> from) {
    if (count > 0) blas::gemm<T>(Op::none, Op::none, -2 * eta, H, UEH_T.columns(first - d, count), T(1), from);
  };
  const auto commit_rows = [&](Size first, Size count) {
    const Size in_Q = std::clamp<Size>(d - first, 0, count), in_low = std::clamp<Size>(split - first, 0, count);
    subtract_P(first, in_Q);
    if (in_Q == d) {
      average_tiles(Size{0}, Size{1}, low_Q);
      average_rest(low_Q);
      add_low<T>(0, d, S, low, S);
    }
    subtract(first + in_Q, in_low - in_Q, low.columns(first + in_Q, in_low - in_Q));
    add_low<T>(first + in_Q, in_low - in_Q, S, low, S);
    subtract(first + in_low, count - in_low, S.columns(first + in_low, count - in_low));
  };
  const auto E = S.columns(height, S.cols - height);
  if (threads > 2) {
    for_each_thread(threads, [&](Size rank, Size team) {
      take_stripe(stripe_of(rank, team), team, height, stripe_granule, commit_rows);
    });
    finish_stack(eta, H, S.columns(0, d), low_Q, S.columns(0, d), E);
    return;
  }
  constexpr Size piece = 3 * stripe_granule;
  const Size pieces = (height - d) / 2 / piece;  // and the last half
  std::atomic<Size> taken = 0;
  for_each_thread(threads, [&](Size rank, Size team) {
    if (team == 1) return commit_rows(0, height);
    const bool at_front = stripe_of(rank, team) == 0;
    if (at_front) {
      commit_rows(0, d);
    } else {
      commit_rows(d + pieces * piece, height - d - pieces * piece);
    }
    for (Size own = 0; taken++ < pieces; ++own) commit_rows(d + (at_front ? own : pieces - 1 - own) * piece, piece);
  });
  for_each_stripe(team_for(E.size()), E.cols, 1,
                  [&](Size first, Size count) { append_columns<T>(first, count, eta, H, E); });
}

/// As commit_stack_by_rows shares them out.
template <class T>
void CpuBackend<T>::commit_rows(T eta, ConstView<T> H, ConstView<T> UH_T, MatrixView<T> low, MatrixView<T> S) {
  const int team =
      GemmShape{Op::none, Op::transpose, H.rows, S.cols, H.cols}.flops() < min_parallel_flops ? 1 : threads_;
  for_each_thread(team, [&](Size rank, Size threads) {
    take_stripe(stripe_of(rank, threads), threads, S.cols, stripe_granule, [&](Size first, Size count) {
      blas::gemm<T>(Op::none, Op::none, -2 * eta, H, UH_T.columns(first, count), T(1), low.columns(first, count));
      add_low<T>(first, count, S, low, S);
    });
  });
}

template <class T>
void CpuBackend<T>::carry(ConstView<T> S, MatrixView<T> high, MatrixView<T> low) {
  for_each_stripe(team_for(S.size()), S.cols, 1, [&](Size first, Size count) {
    for (Size j = first; j < first + count; ++j) {
      const T* s = S.column(j);
      T* h = high.column(j);
      T* l = low.column(j);
#pragma omp simd
      for (Size i = 0; i < S.rows; ++i) {
        l[i] = left_over(s[i], h[i], l[i]);
        h[i] = s[i];
      }
    }
  });
}

template <class T>
void CpuBackend<T>::carry_over(MatrixView<T> low, MatrixView<T> S) {
  for_each_stripe(team_for(S.size()), S.cols, 1, [&](Size first, Size count) { add_low<T>(first, count, S, low, S); });
}

#define WIDEHEAD_INSTANTIATE(T)                                                                                \
  template void CpuBackend<T>::symmetrize(MatrixView<T>);                                                      \
  template void CpuBackend<T>::split_gradient(ConstView<T>, ConstView<T>, T, MatrixView<T>, MatrixView<T>,     \
                                              MatrixView<T>);                                                  \
  template void CpuBackend<T>::split_gradient_at_targets(ConstView<T>, ConstView<T>, ConstView<T>,             \
                                                         const RowGroups<T>&, ConstView<T>, MatrixView<T>, T,  \
                                                         MatrixView<T>, MatrixView<T>, MatrixView<T>);         \
  template void CpuBackend<T>::add_combined(T, const RowGroups<T>&, ConstView<T>, ConstView<T>,                \
                                            std::span<const Index>, Size, MatrixView<T>, MatrixView<T>);       \
  template void CpuBackend<T>::finish_stack(T, ConstView<T>, ConstView<T>, MatrixView<T>, MatrixView<T>,       \
                                            MatrixView<T>);                                                    \
  template void CpuBackend<T>::commit_stack_by_rows(T, ConstView<T>, ConstView<T>, ConstView<T>, ConstView<T>, \
                                                    MatrixView<T>, MatrixView<T>);                             \
  template void CpuBackend<T>::commit_rows(T, ConstView<T>, ConstView<T>, MatrixView<T>, MatrixView<T>);       \
  template void CpuBackend<T>::carry(ConstView<T>, MatrixView<T>, MatrixView<T>);                              \
  template void CpuBackend<T>::carry_over(MatrixView<T>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
