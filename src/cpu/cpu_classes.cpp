/// The backend's operations for a two-level softmax. They may be called from several threads, each with parts of its
/// own: then products stay on the thread they are called from.

#include <cmath>

#include "cpu_backend.h"
#include "stripes.h"
#include "widehead/softmax_kernels.h"

namespace widehead {
namespace {

template <class T, class Work>
void for_each_part(const SoftmaxParts<T>& parts, PartRange range, const Work& work) {
  for (const auto& part :
       parts.parts().subspan(static_cast<std::size_t>(range.first), static_cast<std::size_t>(range.count))) {
    work(part);
  }
}

template <class T, class Part>
MatrixView<T> logits_of(const Part& part, MatrixView<T> E) {
  return {E.data + part.offset, part.rows, part.pairs};
}

}  // namespace

template <class T>
void CpuBackend<T>::part_logits(const SoftmaxParts<T>& parts, PartRange range, ConstView<T> W, ConstView<T> H,
                                MatrixView<T> E) {
  for_each_part(parts, range, [&](const auto& part) {
    gemm(Op::transpose, Op::none, T(1), W.columns(part.first_row, part.rows), H.columns(part.first_pair, part.pairs),
         T(0), logits_of(part, E));
  });
}

template <class T>
void CpuBackend<T>::part_softmax(const SoftmaxParts<T>& parts, PartRange range, MatrixView<T> E,
                                 const PartStatistics<T>& out) {
  for_each_part(parts, range, [&](const auto& part) {
    const auto O = logits_of(part, E);
    Size e = part.first_entry;
    for (const auto& entry : parts.entries_of(part)) {
      out.o(e++, 0) = static_cast<double>(O(entry.row, entry.pair - part.first_pair));
    }
    exponentiate_columns(O, out.maxima.block(part.first_pair, 0, part.pairs, 1),
                         out.sums.block(part.first_pair, 0, part.pairs, 1));
    for (Size p = part.first_pair; p < part.first_pair + part.pairs; ++p) {
      out.log_Z(p, 0) = static_cast<double>(out.maxima(p, 0)) + std::log(out.sums(p, 0));
    }
  });
}

template <class T>
void CpuBackend<T>::part_backward(const SoftmaxParts<T>& parts, PartRange range, MatrixView<T> E,
                                  ConstView<double> sums, ConstView<T> H, T eta, MatrixView<T> W, MatrixView<T> G) {
  for_each_part(parts, range, [&](const auto& part) {
    const auto R = logits_of(part, E);
    const auto W_c = W.columns(part.first_row, part.rows);
    for_each_stripe(team_for(R.size()), R.cols, 1, [&](Size first, Size count) {
      for (Size p = first; p < first + count; ++p) {
        const Size pair = part.first_pair + p;
        const T factor = static_cast<T>(parts.pairs()[static_cast<std::size_t>(pair)].mass / sums(pair, 0));
        T* r = R.column(p);
#pragma omp simd
        for (Size i = 0; i < R.rows; ++i) r[i] *= factor;
      }
    });
    for (const auto& entry : parts.entries_of(part)) R(entry.row, entry.pair - part.first_pair) -= entry.value;
    if (!G.empty()) gemm(Op::none, Op::none, T(1), W_c, R, T(0), G.columns(part.first_pair, part.pairs));
    if (eta != T(0)) {
      gemm(Op::none, Op::transpose, -eta, H.columns(part.first_pair, part.pairs), R, T(1), W_c);
    }
  });
}

template <class T>
void CpuBackend<T>::add_part_loss(const SoftmaxParts<T>& parts, const PartStatistics<T>& of, MatrixView<double> total) {
  double sum = 0;
  for (std::size_t p = 0; p < parts.pairs().size(); ++p) sum += parts.pairs()[p].mass * of.log_Z.data[p];
  for (std::size_t e = 0; e < parts.entries().size(); ++e) {
    sum -= static_cast<double>(parts.entries()[e].value) * of.o.data[e];
  }
  total(0, 0) += sum;
}

template <class T>
void CpuBackend<T>::log_softmax_columns(ConstView<T> b, MatrixView<T> A) {
  maxima_.resize(static_cast<std::size_t>(A.cols));
  sums_.resize(maxima_.size());
  const auto E = softmax_room_.scratch(A.rows, A.cols);
  copy(A, E);
  widehead::exponentiate_columns<T>(E, threads_, maxima_, sums_);
  for (Size j = 0; j < A.cols; ++j) {
    const auto k = static_cast<std::size_t>(j);
    const T log_Z = static_cast<T>(static_cast<double>(maxima_[k]) + std::log(sums_[k]));
    const T added = b.empty() ? T(0) : b(0, j);
    T* a = A.column(j);
#pragma omp simd
    for (Size i = 0; i < A.rows; ++i) a[i] = (a[i] - log_Z) + added;
  }
}

#define WIDEHEAD_INSTANTIATE(T)                                                                                     \
  template void CpuBackend<T>::part_logits(const SoftmaxParts<T>&, PartRange, ConstView<T>, ConstView<T>,           \
                                           MatrixView<T>);                                                          \
  template void CpuBackend<T>::part_softmax(const SoftmaxParts<T>&, PartRange, MatrixView<T>,                       \
                                            const PartStatistics<T>&);                                              \
  template void CpuBackend<T>::part_backward(const SoftmaxParts<T>&, PartRange, MatrixView<T>, ConstView<double>,   \
                                             ConstView<T>, T, MatrixView<T>, MatrixView<T>);                        \
  template void CpuBackend<T>::add_part_loss(const SoftmaxParts<T>&, const PartStatistics<T>&, MatrixView<double>); \
  template void CpuBackend<T>::log_softmax_columns(ConstView<T>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
