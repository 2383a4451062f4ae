/// The backend's operations on columns here and there, and on sparse targets.

#include <algorithm>

#include "cpu_backend.h"
#include "stripes.h"

namespace widehead {
namespace {

/// Σ x y, n values, summed in double.
template <class T>
double dot_of(Size n, const T* x, const T* y) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Size i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sum;
}

}  // namespace

// ── columns here and there ──────────────────────────────────────────────────────────────────────

template <class T>
void CpuBackend<T>::move_columns(ConstView<T> A, std::span<const Index> from, std::span<const Index> to,
                                 MatrixView<T> C) {
  const Size columns = static_cast<Size>(from.empty() ? to.size() : from.size());
  const auto at = [](std::span<const Index> list, Size k) {
    return list.empty() ? k : list[static_cast<std::size_t>(k)];
  };
  for_each_stripe(team_for(columns * C.rows), columns, 1, [&](Size first, Size count) {
    for (Size k = first; k < first + count; ++k) {
      if (const Size ahead = k + prefetch_distance; ahead < first + count) {
        if (!from.empty() && at(from, ahead) >= 0) prefetch_row(A.column(at(from, ahead)), A.rows);
        if (!to.empty()) prefetch_row(C.column(at(to, ahead)), C.rows);
      }
      const Size source = at(from, k);
      T* target = C.column(at(to, k));
      if (source == Backend<T>::no_column) {
        std::fill_n(target, C.rows, T(0));
      } else {
        std::copy_n(A.column(source), C.rows, target);
      }
    }
  });
}

template <class T>
void CpuBackend<T>::clear_starts(std::span<const Index> counts, MatrixView<T> A) {
  for (Size j = 0; j < A.cols; ++j) std::fill_n(A.column(j), counts[static_cast<std::size_t>(j)], T(0));
}

template <class T>
void CpuBackend<T>::gather(ConstView<T> V, const SparseBatch<T>& Y, MatrixView<T> G) {
  const Size last = Y.nonzeros();
  for_each_stripe(team_for(last * V.rows), G.cols, 1, [&](Size first, Size count) {
    for (Size j = first; j < first + count; ++j) {
      T* g = G.column(j);
      std::fill_n(g, G.rows, T(0));
      for (Size e = Y.begin(j); e < Y.end(j); ++e) {
        if (e + prefetch_distance < last) prefetch_row(V.column(Y.index(e + prefetch_distance)), V.rows);
        axpy(V.rows, Y.value(e), V.column(Y.index(e)), g);
      }
    }
  });
}

template <class T>
void CpuBackend<T>::gather(ConstView<T> V, const Selection& Y, ConstView<T> values, MatrixView<T> G) {
  for_each_stripe(team_for(static_cast<Size>(Y.columns.size()) * V.rows), G.cols, 1, [&](Size first, Size count) {
    for (Size j = first; j < first + count; ++j) {
      T* g = G.column(j);
      std::fill_n(g, G.rows, T(0));
      const auto begin = static_cast<std::size_t>(Y.offsets[static_cast<std::size_t>(j)]);
      const auto end = static_cast<std::size_t>(Y.offsets[static_cast<std::size_t>(j) + 1]);
      for (std::size_t k = begin; k < end; ++k) axpy(V.rows, values(Y.entries[k], 0), V.column(Y.columns[k]), g);
    }
  });
}

// ── sparse targets ──────────────────────────────────────────────────────────────────────────────

template <class T>
void CpuBackend<T>::add_combination(ConstView<T> Z, const RowGroups<T>& Y, ConstView<T> values, MatrixView<T> G) {
  // Threads share out the coordinates, not the outputs: no two of them meet, and sums keep their order.
  for_each_stripe(team_for(Y.nonzeros() * G.rows), G.rows, stripe_granule, [&](Size first, Size count) {
    Size e = 0;
    for (Size group = 0; group < Y.count(); ++group) {
      for (const auto& entry : Y.entries(group)) {
        axpy(count, values(e++, 0), Z.column(group) + first, G.column(entry.example) + first);
      }
    }
  });
}

template <class T>
void CpuBackend<T>::dots_at(ConstView<T> Z, const RowGroups<T>& Y, ConstView<T> X, double beta,
                            MatrixView<double> out) {
  for_each_stripe(team_for(Y.nonzeros() * X.rows), Y.count(), 1, [&](Size first, Size count) {
    for (Size group = first; group < first + count; ++group) {
      Size e = Y.first_entry(group);
      for (const auto& entry : Y.entries(group)) {
        const double dot = dot_of(X.rows, Z.column(group), X.column(entry.example));
        out(e, 0) = beta == 0 ? dot : beta * out(e, 0) + dot;
        ++e;
      }
    }
  });
}

template <class T>
void CpuBackend<T>::add_by_example(ConstView<double> t, const RowGroups<T>& Y, MatrixView<double> out) {
  for (Size e = 0; e < Y.nonzeros(); ++e) out(e, 0) += t(Y.entry(e).example, 0);
}

template <class T>
void CpuBackend<T>::scatter(T alpha, const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X, MatrixView<T> V) {
  const Size groups = Y.count();
  for_each_stripe(team_for(Y.nonzeros() * V.rows), groups, 1, [&](Size first, Size count) {
    for (Size group = first; group < first + count; ++group) {
      if (group + prefetch_distance < groups) prefetch_row(V.column(Y.row(group + prefetch_distance)), V.rows);
      T* v = V.column(Y.row(group));
      Size e = Y.first_entry(group);
      for (const auto& entry : Y.entries(group)) axpy(V.rows, alpha * values(e++, 0), X.column(entry.example), v);
    }
  });
}

template <class T>
void CpuBackend<T>::gram(const RowGroups<T>& Y, ConstView<T> values, MatrixView<T> M) {
  clear(M);
  for (Size group = 0; group < Y.count(); ++group) {
    const auto entries = Y.entries(group);
    const T* value = values.data + Y.first_entry(group);
    for (std::size_t a = 0; a < entries.size(); ++a) {
      for (std::size_t b = 0; b < entries.size(); ++b) M(entries[a].example, entries[b].example) += value[a] * value[b];
    }
  }
}

template <class T>
void CpuBackend<T>::read_at(ConstView<T> O, Size first, const RowGroups<T>& Y, MatrixView<double> out) {
  const Size last = Y.first_entry(Y.first_group(first + O.cols));
  for (Size e = Y.first_entry(Y.first_group(first)); e < last; ++e) {
    out(e, 0) = static_cast<double>(O(Y.entry(e).example, Y.entry(e).row - first));
  }
}

template <class T>
void CpuBackend<T>::add_at(const RowGroups<T>& Y, ConstView<T> values, Size first, MatrixView<T> O) {
  const Size last = Y.first_entry(Y.first_group(first + O.cols));
  for (Size e = Y.first_entry(Y.first_group(first)); e < last; ++e) {
    O(Y.entry(e).example, Y.entry(e).row - first) += values(e, 0);
  }
}

template <class T>
void CpuBackend<T>::combine(const RowGroups<T>& Y, ConstView<T> values, ConstView<T> X, MatrixView<T> Z) {
  for_each_stripe(team_for(Y.nonzeros() * Z.rows), Y.count(), 1, [&](Size first, Size count) {
    for (Size group = first; group < first + count; ++group) {
      T* z = Z.column(group);
      std::fill_n(z, Z.rows, T(0));
      Size e = Y.first_entry(group);
      for (const auto& entry : Y.entries(group)) axpy(Z.rows, values(e++, 0), X.column(entry.example), z);
    }
  });
}

#define WIDEHEAD_INSTANTIATE(T)                                                                                      \
  template void CpuBackend<T>::move_columns(ConstView<T>, std::span<const Index>, std::span<const Index>,            \
                                            MatrixView<T>);                                                          \
  template void CpuBackend<T>::clear_starts(std::span<const Index>, MatrixView<T>);                                  \
  template void CpuBackend<T>::gather(ConstView<T>, const SparseBatch<T>&, MatrixView<T>);                           \
  template void CpuBackend<T>::gather(ConstView<T>, const Selection&, ConstView<T>, MatrixView<T>);                  \
  template void CpuBackend<T>::add_combination(ConstView<T>, const RowGroups<T>&, ConstView<T>, MatrixView<T>);      \
  template void CpuBackend<T>::dots_at(ConstView<T>, const RowGroups<T>&, ConstView<T>, double, MatrixView<double>); \
  template void CpuBackend<T>::add_by_example(ConstView<double>, const RowGroups<T>&, MatrixView<double>);           \
  template void CpuBackend<T>::scatter(T, const RowGroups<T>&, ConstView<T>, ConstView<T>, MatrixView<T>);           \
  template void CpuBackend<T>::gram(const RowGroups<T>&, ConstView<T>, MatrixView<T>);                               \
  template void CpuBackend<T>::read_at(ConstView<T>, Size, const RowGroups<T>&, MatrixView<double>);                 \
  template void CpuBackend<T>::add_at(const RowGroups<T>&, ConstView<T>, Size, MatrixView<T>);                       \
  template void CpuBackend<T>::combine(const RowGroups<T>&, ConstView<T>, ConstView<T>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
