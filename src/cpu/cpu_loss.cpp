/// The backend's operations for losses.

#include "cpu_backend.h"
#include "widehead/softmax_kernels.h"

namespace widehead {

template <class T>
Verdict CpuBackend<T>::judge(const Loss& loss, Size outputs, const RowGroups<T>& Y, std::span<const T> weights,
                             const Judged<T>& x) {
  return judge_on_host(loss, outputs, Y, weights, x, judge_room_);
}

template <class T>
void CpuBackend<T>::judge_later(const Loss& loss, Size outputs, const RowGroups<T>& Y, std::span<const T> weights,
                                const Judged<T>& x, MatrixView<double> ledger) {
  const auto verdict = judge(loss, outputs, Y, weights, x);
  ledger(0, 0) += verdict.L;
  if (verdict.bad >= 0) ledger(1, 0) += 1;
}

template <class T>
void CpuBackend<T>::common_factors(double eta, Size outputs, ConstView<T> a, ConstView<T> b, ConstView<T> gamma,
                                   ConstView<double> ts, MatrixView<double> factors, MatrixView<T> v) {
  const auto D = static_cast<double>(outputs);
  for (Size j = 0; j < a.rows; ++j) {
    const auto a_j = static_cast<double>(a(j, 0)), b_j = static_cast<double>(b(j, 0));
    const auto gamma_j = static_cast<double>(gamma(j, 0));
    factors(j, 0) = -eta * (2 * a_j * ts(j, 0) + b_j);
    factors(j, 1) = -eta * (2 * a_j * ts(j, 1) + D * b_j + gamma_j);
    v(j, 0) = static_cast<T>(4 * a_j * ts(j, 1) + 2 * gamma_j + D * b_j);
  }
}

template <class T>
void CpuBackend<T>::exponentiate_rows(MatrixView<T> A, MatrixView<T> maxima, MatrixView<double> sums) {
  const auto m = static_cast<std::size_t>(A.rows);
  widehead::exponentiate_rows<T>(A, threads_, {maxima.data, m}, {sums.data, m});
}

template <class T>
void CpuBackend<T>::exponentiate_columns(MatrixView<T> A, MatrixView<T> maxima, MatrixView<double> sums) {
  const auto m = static_cast<std::size_t>(A.cols);
  widehead::exponentiate_columns<T>(A, threads_, {maxima.data, m}, {sums.data, m});
}

template <class T>
void CpuBackend<T>::scale_rows(ConstView<T> a, MatrixView<T> A) {
  widehead::scale_rows<T>({a.data, static_cast<std::size_t>(a.rows)}, threads_, A);
}

#define WIDEHEAD_INSTANTIATE(T)                                                                                        \
  template Verdict CpuBackend<T>::judge(const Loss&, Size, const RowGroups<T>&, std::span<const T>, const Judged<T>&); \
  template void CpuBackend<T>::judge_later(const Loss&, Size, const RowGroups<T>&, std::span<const T>,                 \
                                           const Judged<T>&, MatrixView<double>);                                      \
  template void CpuBackend<T>::common_factors(double, Size, ConstView<T>, ConstView<T>, ConstView<T>,                  \
                                              ConstView<double>, MatrixView<double>, MatrixView<T>);                   \
  template void CpuBackend<T>::exponentiate_rows(MatrixView<T>, MatrixView<T>, MatrixView<double>);                    \
  template void CpuBackend<T>::exponentiate_columns(MatrixView<T>, MatrixView<T>, MatrixView<double>);                 \
  template void CpuBackend<T>::scale_rows(ConstView<T>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
