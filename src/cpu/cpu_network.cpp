/// The backend's operations for what is below the output layer.

#include <algorithm>
#include <cmath>

#include "cpu_backend.h"
#include "stripes.h"
#include "widehead/exponential.h"

namespace widehead {
namespace {

/// tanh x = ±(1 − t)/(1 + t), t = e^(−2|x|), and σ(x) = 1/(1 + t) or t/(1 + t), t = e^(−|x|): exponents that are never
/// positive, so nothing overflows. `t` has room for n values.
template <class T>
void apply_activation(Activation s, Size n, T* a, T* t) {
  switch (s) {
    case Activation::identity: break;
    case Activation::relu:
#pragma omp simd
      for (Size i = 0; i < n; ++i) a[i] = a[i] < T(0) ? T(0) : a[i];  // a NaN stays one
      break;
    case Activation::tanh:  // NOLINT(bugprone-branch-clone): that of the sigmoid is another
#pragma omp simd
      for (Size i = 0; i < n; ++i) t[i] = -2 * std::abs(a[i]);
      exp_of_non_positive(n, t);
#pragma omp simd
      for (Size i = 0; i < n; ++i) a[i] = std::copysign((T(1) - t[i]) / (T(1) + t[i]), a[i]);
      break;
    case Activation::sigmoid:
#pragma omp simd
      for (Size i = 0; i < n; ++i) t[i] = -std::abs(a[i]);
      exp_of_non_positive(n, t);
#pragma omp simd
      for (Size i = 0; i < n; ++i) a[i] = (a[i] > T(0) ? T(1) : t[i]) / (T(1) + t[i]);
      break;
  }
}

/// g ← g s′, with s′ as a function of s itself.
template <class T>
void apply_slope(Activation s, Size n, const T* a, T* g) {
  const auto multiply_by = [&](const auto& slope) {
#pragma omp simd
    for (Size i = 0; i < n; ++i) g[i] *= slope(a[i]);
  };
  switch (s) {
    case Activation::identity: break;
    case Activation::relu: multiply_by([](T y) { return y > T(0) ? T(1) : T(0); }); break;
    case Activation::tanh: multiply_by([](T y) { return T(1) - y * y; }); break;
    case Activation::sigmoid: multiply_by([](T y) { return y * (T(1) - y); }); break;
  }
}

}  // namespace

template <class T>
void CpuBackend<T>::activate(Activation s, ConstView<T> b, MatrixView<T> A) {
  const int team = team_for(A.size());
  const auto rooms = activation_room_.scratch(A.rows, team);
  for_each_stripe(team, A.cols, 1, [&](Size first, Size count) {
    T* room = rooms.column(team == 1 ? 0 : omp_get_thread_num());
    for (Size j = first; j < first + count; ++j) {
      if (!b.empty()) axpy(A.rows, T(1), b.data, A.column(j));
      apply_activation(s, A.rows, A.column(j), room);
    }
  });
}

template <class T>
void CpuBackend<T>::activate_backward(Activation s, ConstView<T> A, MatrixView<T> G) {
  for_each_stripe(team_for(A.size()), A.cols, 1, [&](Size first, Size count) {
    for (Size j = first; j < first + count; ++j) apply_slope(s, A.rows, A.column(j), G.column(j));
  });
}

template <class T>
void CpuBackend<T>::sum_columns(ConstView<T> A, MatrixView<T> out) {
  clear(out);
  for_each_stripe(team_for(A.size()), A.rows, stripe_granule, [&](Size first, Size count) {
    for (Size j = 0; j < A.cols; ++j) axpy(count, T(1), A.column(j) + first, out.data + first);
  });
}

template <class T>
void CpuBackend<T>::add_to_columns(T alpha, ConstView<T> G, std::span<const Index> columns, MatrixView<T> P) {
  for_each_stripe(team_for(G.size()), G.cols, 1, [&](Size first, Size count) {
    const auto target = [&](Size k) { return P.column(columns[static_cast<std::size_t>(k)]); };
    for (Size k = first; k < first + count; ++k) {
      if (k + prefetch_distance < first + count) prefetch_row(target(k + prefetch_distance), P.rows);
      axpy(G.rows, alpha, G.column(k), target(k));
    }
  });
}

template <class T>
void CpuBackend<T>::adam(const AdamStep& step, std::span<const Index> columns, ConstView<T> G, MatrixView<T> P,
                         MatrixView<T> M, MatrixView<T> S) {
  const auto beta1 = static_cast<T>(step.beta1), beta2 = static_cast<T>(step.beta2);
  const auto rest1 = static_cast<T>((1 - step.beta1) * step.scale);
  const auto rest2 = static_cast<T>((1 - step.beta2) * step.scale * step.scale);
  const auto rate = static_cast<T>(step.rate), epsilon = static_cast<T>(step.epsilon);
  for_each_stripe(team_for(G.size()), G.cols, 1, [&](Size first, Size count) {
    for (Size k = first; k < first + count; ++k) {
      if (!columns.empty() && k + prefetch_distance < G.cols) {  // rows of a table, far apart
        const Size ahead = columns[static_cast<std::size_t>(k + prefetch_distance)];
        for (const auto& table : {P, M, S}) prefetch_row(table.column(ahead), table.rows);
      }
      const Size column = columns.empty() ? k : columns[static_cast<std::size_t>(k)];
      const T* g = G.column(k);
      T *p = P.column(column), *m = M.column(column), *s = S.column(column);
#pragma omp simd
      for (Size i = 0; i < G.rows; ++i) {
        m[i] = beta1 * m[i] + rest1 * g[i];
        s[i] = beta2 * s[i] + rest2 * g[i] * g[i];
        p[i] -= rate * m[i] / (std::sqrt(s[i]) + epsilon);
      }
    }
  });
}

template <class T>
void CpuBackend<T>::limit_norm(ConstView<double> n, double limit, MatrixView<T> A) {
  const double norm = std::sqrt(n(0, 0));
  if (norm > limit) this->scale(static_cast<T>(limit / norm), A);
}

#define WIDEHEAD_INSTANTIATE(T)                                                                           \
  template void CpuBackend<T>::activate(Activation, ConstView<T>, MatrixView<T>);                         \
  template void CpuBackend<T>::activate_backward(Activation, ConstView<T>, MatrixView<T>);                \
  template void CpuBackend<T>::sum_columns(ConstView<T>, MatrixView<T>);                                  \
  template void CpuBackend<T>::limit_norm(ConstView<double>, double, MatrixView<T>);                      \
  template void CpuBackend<T>::add_to_columns(T, ConstView<T>, std::span<const Index>, MatrixView<T>);    \
  template void CpuBackend<T>::adam(const AdamStep&, std::span<const Index>, ConstView<T>, MatrixView<T>, \
                                    MatrixView<T>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
