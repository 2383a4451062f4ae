#include "cpu_backend.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <numeric>

#include "blas.h"
#include "register_tile.h"
#include "stripes.h"
#include "widehead/errors.h"

namespace widehead {
namespace {

/// z ← a x + b y, n values. z may be x or y.
template <class T>
void add_to(Size n, T a, const T* x, T b, const T* y, T* z) {
#pragma omp simd
  for (Size i = 0; i < n; ++i) z[i] = a * x[i] + b * y[i];
}

/// Σ x y, n values, summed in double.
template <class T>
double dot_of(Size n, const T* x, const T* y) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Size i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sum;
}

}  // namespace

template <class T>
CpuBackend<T>::CpuBackend(int threads) : threads_(threads == 0 ? omp_get_num_procs() : threads) {
  if (threads < 0) {
    throw std::invalid_argument(fmt::format("threads = {}, but it must be 0 (all cores) or more", threads));
  }
  partial_sums_.resize(static_cast<std::size_t>(threads_));
  blas::initialize();
}

template <class T>
int CpuBackend<T>::team_for(Size elements) const {
  return elements > min_parallel_elements ? threads_ : 1;
}

template <class T>
void CpuBackend<T>::transfer_bytes(const void* from, std::size_t from_stride, void* to, std::size_t to_stride,
                                   std::size_t width, std::size_t count) {
  if (width == 0) return;  // nothing may come from nowhere, but memcpy wants an address even so
  for (std::size_t k = 0; k < count; ++k) {
    std::memcpy(static_cast<char*>(to) + k * to_stride, static_cast<const char*>(from) + k * from_stride, width);
  }
}

template <class T>
void CpuBackend<T>::side_by_side(const std::function<void()>& first, const std::function<void()>& second) {
  for_each_thread(std::min(threads_, 2), [&](Size rank, Size team) {
    if (rank == 0) first();
    if (rank == team - 1) second();
  });
}

/// Pieces of half of what is left for each of two threads, a third for three and so on: large ones, which are fast,
/// first, and small ones last, so that all end at about the same time. The task is for the thread that asks: it goes on
/// with what comes of it.
template <class T>
void CpuBackend<T>::share(Size extent, Size granule, double flops, const std::function<void(Size, Size)>& work,
                          const std::function<void()>& task) {
  std::atomic<Size> next = 0;
  for_each_thread(flops < min_parallel_flops ? 1 : threads_, [&](Size rank, Size team) {
    if (rank == 0) task();
    Size first = next;
    while (first < extent) {
      const Size wanted = (extent - first + team - 1) / team;
      const Size last = std::min(extent, first + (wanted + granule - 1) / granule * granule);
      if (!next.compare_exchange_weak(first, last)) continue;
      work(first, last - first);
      first = next;
    }
  });
}

// ── dense products ──────────────────────────────────────────────────────────────────────────────

template <class T>
void CpuBackend<T>::gemm(Op op_a, Op op_b, T alpha, ConstView<T> A, ConstView<T> B, T beta, MatrixView<T> C) {
  const Size depth = op_a == Op::none ? A.cols : A.rows;
  // Vendors have opinions of their own of a C without elements, as of depth 0.
  if (C.size() == 0) return;  // NOLINT(readability-container-size-empty): empty() is a view of nothing
  if (depth == 0) {
    if (beta == T(0)) {
      clear(C);
    } else {
      scale(beta, C);
    }
    return;
  }
  const GemmShape shape{op_a, op_b, C.rows, C.cols, depth};
  const int team = shape.flops() < min_parallel_flops ? 1 : threads_;
  // By columns, which leaves the vendor's tall register tiles whole, unless C is much taller than wide.
  if (C.rows >= 4 * C.cols) {
    for_each_stripe(team, C.rows, stripe_granule, [&](Size first, Size count) {
      const auto A_stripe = op_a == Op::none ? A.block(first, 0, count, depth) : A.block(0, first, depth, count);
      blas::gemm<T>(op_a, op_b, alpha, A_stripe, B, beta, C.block(first, 0, count, C.cols));
    });
  } else {
    for_each_stripe(team, C.cols, stripe_granule, [&](Size first, Size count) {
      const auto B_stripe = op_b == Op::none ? B.block(0, first, depth, count) : B.block(first, 0, count, depth);
      blas::gemm<T>(op_a, op_b, alpha, A, B_stripe, beta, C.block(0, first, C.rows, count));
    });
  }
}

/// By tiles that are turned in registers; what fills none of them, element by element.
template <class T>
void CpuBackend<T>::transpose(ConstView<T> A, MatrixView<T> C) {
  using Tile = RegisterTile<T>;
  const Size tiled_rows = A.rows / Tile::edge * Tile::edge;
  for_each_stripe(team_for(A.size() + C.size()), A.cols, Tile::edge, [&](Size first, Size count) {
    const Size last = first + count, tiled_last = first + count / Tile::edge * Tile::edge;
    for (Size j = first; j < tiled_last; j += Tile::edge) {
      for (Size i = 0; i < tiled_rows; i += Tile::edge) {
        auto tile = Tile::load(&A(i, j), A.stride);
        tile.transpose();
        tile.store(&C(j, i), C.stride);
      }
    }
    for (Size j = first; j < last; ++j) {
      for (Size i = j < tiled_last ? tiled_rows : 0; i < A.rows; ++i) C(j, i) = A(i, j);
    }
  });
}

template <class T>
void CpuBackend<T>::add(T alpha, ConstView<T> A, T beta, ConstView<T> B, MatrixView<T> C) {
  for_each_stripe(team_for(C.size()), C.cols, 1, [&](Size first, Size count) {
    for (Size j = first; j < first + count; ++j) {
      add_to(C.rows, alpha, A.column(j), beta, B.column(j), C.column(j));
    }
  });
}

template <class T>
void CpuBackend<T>::copy(ConstView<T> A, MatrixView<T> C) {
  for (Size j = 0; j < C.cols; ++j) std::copy_n(A.column(j), C.rows, C.column(j));
}

template <class T>
void CpuBackend<T>::clear(MatrixView<T> A) {
  for (Size j = 0; j < A.cols; ++j) std::fill_n(A.column(j), A.rows, T(0));
}

template <class T>
void CpuBackend<T>::clear_in_double(MatrixView<double> A) {
  for (Size j = 0; j < A.cols; ++j) std::fill_n(A.column(j), A.rows, 0.0);
}

template <class T>
void CpuBackend<T>::set_identity(MatrixView<T> A) {
  clear(A);
  for (Size j = 0; j < A.cols; ++j) A(j, j) = T(1);
}

template <class T>
void CpuBackend<T>::scale(T alpha, MatrixView<T> A) {
  if (alpha == T(1)) return;
  for_each_stripe(team_for(A.size()), A.cols, 1, [&](Size first, Size count) {
    for (Size j = first; j < first + count; ++j) {
      T* a = A.column(j);
#pragma omp simd
      for (Size i = 0; i < A.rows; ++i) a[i] *= alpha;
    }
  });
}

template <class T>
void CpuBackend<T>::add_columns(T alpha, ConstView<T> A, ConstView<T> a, T beta, ConstView<T> B, MatrixView<T> C) {
  for_each_stripe(team_for(C.size()), C.cols, 1, [&](Size first, Size count) {
    for (Size j = first; j < first + count; ++j) {
      add_to(C.rows, alpha * a(j, 0), A.column(j), beta, B.column(j), C.column(j));
    }
  });
}

template <class T>
void CpuBackend<T>::scale_columns(ConstView<T> a, MatrixView<T> A) {
  for_each_stripe(team_for(A.size()), A.cols, 1, [&](Size first, Size count) {
    for (Size j = first; j < first + count; ++j) {
      const T factor = a(j, 0);
      T* column = A.column(j);
#pragma omp simd
      for (Size i = 0; i < A.rows; ++i) column[i] *= factor;
    }
  });
}

template <class T>
void CpuBackend<T>::add_to_rows(ConstView<T> b, MatrixView<T> A) {
  for_each_stripe(team_for(A.size()), A.cols, 1, [&](Size first, Size count) {
    for (Size j = first; j < first + count; ++j) axpy(A.rows, T(1), b.data, A.column(j));
  });
}

/// By columns of A, one pass over it: B and C have a few.
template <class T>
void CpuBackend<T>::multiply_in_double(Op op_a, ConstView<T> A, ConstView<double> B, double beta, ConstView<double> X,
                                       MatrixView<double> C) {
  for (Size k = 0; k < C.cols; ++k) {
    if (op_a == Op::transpose) {
      for (Size j = 0; j < A.cols; ++j) {
        const T* a = A.column(j);
        const double* b = B.column(k);
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (Size i = 0; i < A.rows; ++i) sum += static_cast<double>(a[i]) * b[i];
        C(j, k) = beta == 0 ? sum : beta * X(j, k) + sum;
      }
      continue;
    }
    double* c = C.column(k);
    for (Size i = 0; i < C.rows; ++i) c[i] = beta == 0 ? 0 : beta * X(i, k);
    for (Size j = 0; j < A.cols; ++j) {
      const T* a = A.column(j);
      const double b = B(j, k);
#pragma omp simd
      for (Size i = 0; i < A.rows; ++i) c[i] += b * static_cast<double>(a[i]);
    }
  }
}

template <class T>
void CpuBackend<T>::round(ConstView<double> A, MatrixView<T> C) {
  for (Size j = 0; j < C.cols; ++j) std::copy_n(A.column(j), C.rows, C.column(j));
}

// ── reductions ──────────────────────────────────────────────────────────────────────────────────

template <class T>
double CpuBackend<T>::dot(ConstView<T> A, ConstView<T> B) {
  // One partial sum per stripe, added in order: the same result in every run.
  std::fill(partial_sums_.begin(), partial_sums_.end(), 0.0);
  for_each_stripe(team_for(A.size()), A.cols, 1, [&](Size first, Size count) {
    double sum = 0;
    for (Size j = first; j < first + count; ++j) sum += dot_of(A.rows, A.column(j), B.column(j));
    partial_sums_[static_cast<std::size_t>(omp_get_thread_num())] = sum;
  });
  return std::accumulate(partial_sums_.begin(), partial_sums_.end(), 0.0);
}

template <class T>
void CpuBackend<T>::column_dots(ConstView<T> A, ConstView<T> B, MatrixView<double> out) {
  for_each_stripe(team_for(2 * A.size()), A.cols, 1, [&](Size first, Size count) {
    for (Size j = first; j < first + count; ++j) {
      out(j, 0) = dot_of(A.rows, A.column(j), B.column(j));
    }
  });
}

template <class T>
void CpuBackend<T>::add_row_moments(ConstView<T> A, MatrixView<double> sums, MatrixView<double> squares) {
  for_each_stripe(team_for(A.size()), A.rows, stripe_granule, [&](Size first, Size count) {
    double* sum = sums.data + first;
    double* square = squares.data + first;
    for (Size j = 0; j < A.cols; ++j) {
      const T* a = A.column(j) + first;
#pragma omp simd
      for (Size i = 0; i < count; ++i) {
        const auto value = static_cast<double>(a[i]);
        sum[i] += value;
        square[i] += value * value;
      }
    }
  });
}

template <class T>
void CpuBackend<T>::squared_norm(ConstView<T> A, double beta, MatrixView<double> out) {
  out(0, 0) = (beta == 0 ? 0 : beta * out(0, 0)) + dot(A, A);
}

template <class T>
T CpuBackend<T>::rough_squared_norm(ConstView<T> A) {
  T total = 0;
  for (Size j = 0; j < A.cols; ++j) {
    const T* a = A.column(j);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Size i = 0; i < A.rows; ++i) sum += a[i] * a[i];
    total += sum;
  }
  return total;
}

template <class T>
Size CpuBackend<T>::find_non_finite(ConstView<T> A) {
  for (Size j = 0; j < A.cols; ++j) {
    const T* a = A.column(j);
    T poison = 0;  // stays 0 unless some value is NaN or infinite: 0·x is NaN then
#pragma omp simd reduction(+ : poison)
    for (Size i = 0; i < A.rows; ++i) poison += T(0) * a[i];
    if (poison == T(0)) continue;
    const T* bad = std::find_if(a, a + A.rows, [](T value) { return !std::isfinite(value); });
    return j * A.rows + (bad - a);
  }
  return -1;
}

// ── whole-matrix operations on V ────────────────────────────────────────────────────────────────

template <class T>
void CpuBackend<T>::apply_rank_ones(ConstView<T> u, ConstView<T> beta, MatrixView<T> V) {
  const Size dim = V.rows;
  for_each_stripe(team_for(V.size()), V.cols, 1, [&](Size first, Size count) {
    for (Size i = first; i < first + count; ++i) {
      T* v = V.column(i);
      for (Size k = 0; k < u.cols; ++k) {
        const T* u_k = u.column(k);
        T projection = 0;
#pragma omp simd reduction(+ : projection)
        for (Size l = 0; l < dim; ++l) projection += v[l] * u_k[l];
        axpy(dim, beta(k, 0) * projection, u_k, v);
      }
    }
  });
}

template <class T>
Size CpuBackend<T>::rows_per_block(Size dim) const {
  // A block of V and its products with a minibatch stay in the second-level cache, while each
  // vendor call is long enough to hide its packing.
  constexpr Size bytes = 1 << 21;
  return std::clamp<Size>(bytes / static_cast<Size>(sizeof(T)) / std::max<Size>(dim, 1), 256, 8192) * threads_;
}

template class CpuBackend<float>;
template class CpuBackend<double>;

template <class T>
std::shared_ptr<Backend<T>> make_cpu_backend(int threads) {
  return std::make_shared<CpuBackend<T>>(threads);
}
template std::shared_ptr<Backend<float>> make_cpu_backend(int);
template std::shared_ptr<Backend<double>> make_cpu_backend(int);

}  // namespace widehead
