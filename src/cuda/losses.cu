/// Losses of a minibatch, and the elementwise part of a softmax.

#include <cstring>
#include <limits>
#include <type_traits>

#include "cuda_backend.h"
#include "kernels.h"

namespace widehead {

using cuda::device_view;

namespace {

/// A block for each column, three times over it.
template <class T>
__global__ void exponentiate_columns_kernel(cuda::DeviceView<T> A, Size rows, cuda::DeviceView<T> maxima,
                                            cuda::DeviceView<double> sums, T lowest) {
  const Size j = blockIdx.x;
  T maximum = lowest;
  for (Size i = threadIdx.x; i < rows; i += cuda::block_size) maximum = cuda::Larger{}(maximum, A(i, j));
  maximum = cuda::combine_block(maximum, cuda::Larger{});
  double sum = 0;
  for (Size i = threadIdx.x; i < rows; i += cuda::block_size) {
    const T power = exp(A(i, j) - maximum);
    A(i, j) = power;
    sum += static_cast<double>(power);
  }
  sum = cuda::combine_block(sum, cuda::Plus{});
  if (threadIdx.x != 0) return;
  maxima[j] = maximum;
  sums[j] = sum;
}

}  // namespace

/// The summary goes to the ledger, or else to the address returned.
template <class T>
const cuda::Summary* CudaBackend<T>::enqueue_judgement(const Loss& loss, Size outputs, const RowGroups<T>& Y,
                                                       std::span<const T> weights, const Judged<T>& x, double* ledger) {
  using cuda::range;
  const auto m = static_cast<std::size_t>(Y.examples()), entries = static_cast<std::size_t>(Y.nonzeros());
  const std::size_t count = judging_room(Y);
  double* room = scratch_.room<double>(count);
  double* by_example = room + 3 * entries;
  const cuda::Opinions opinions{by_example, by_example + m, reinterpret_cast<Size*>(by_example + 2 * m),
                                by_example + 3 * m};
  auto* summary = reinterpret_cast<cuda::Summary*>(by_example + 6 * m);
  cuda::Judge<T> judge{};
  judge.loss = static_cast<int>(loss.index());
  judge.examples = static_cast<int>(m);
  std::visit(
      [&](const auto& function) {
        using L = std::remove_cvref_t<decltype(function)>;
        if constexpr (!std::is_same_v<L, CustomLoss>) {
          static_assert(std::is_trivially_copyable_v<L> && sizeof(L) <= sizeof(judge.parameters));
          std::memcpy(judge.parameters, &function, sizeof(L));
        }
      },
      loss);
  judge.outputs = static_cast<double>(outputs);
  judge.weights = send(weights);
  judge.Y = pattern(Y);
  judge.q = x.q.data, judge.s = x.s.data, judge.o = x.o.data;
  judge.a = x.a.data, judge.b = x.b.data, judge.gamma = x.gamma.data, judge.g = x.g.data;
  judge.room = room;
  judge.out = opinions;
  const auto opinion_range = range(room, count);
  const std::initializer_list<cuda::Range> reads = {range(x.q), range(x.s), range(x.o)};
  const std::initializer_list<cuda::Range> writes = {range(x.a), range(x.b), range(x.gamma), range(x.g), opinion_range};
  const auto last = program().last();
  const auto* observing = program().template find<cuda::Observe<T>>(last, cuda::Kind::observe);
  const bool together = observing != nullptr && observing->o == x.o.data && entries <= 4 * m &&
                        program().extend(last, cuda::Kind::observe_and_judge,
                                         cuda::ObserveAndJudge<T>{.observe = *observing, .judge = judge}, reads, writes,
                                         cuda::judged_tiles(Y.examples()), {4});
  if (!together) program().add(cuda::Kind::judge, cuda::dot_tiles(Y.examples()), judge, reads, writes);
  judging_ = together ? last : cuda::Program::Mark{};
  const cuda::Summarize summarize{static_cast<int>(m), opinions, summary, ledger};
  program().add(cuda::Kind::summarize, 1, summarize, {opinion_range},
                {ledger != nullptr ? range(ledger, 2) : range(summary, 1)});
  return summary;
}

template <class T>
Verdict CudaBackend<T>::judge(const Loss& loss, Size outputs, const RowGroups<T>& Y, std::span<const T> weights,
                              const Judged<T>& x) {
  if (std::holds_alternative<CustomLoss>(loss)) return judge_by_the_host(loss, outputs, Y, weights, x);
  if (Y.examples() <= 0) return {};
  const auto result = fetch(enqueue_judgement(loss, outputs, Y, weights, x, nullptr));
  Verdict verdict{result.L, result.largest_a};
  if (result.bad != cuda::nobody) {
    verdict.bad = result.bad;
    verdict.at_bad = {result.at_bad[0], result.at_bad[1], result.at_bad[2]};
  }
  return verdict;
}

template <class T>
void CudaBackend<T>::judge_later(const Loss& loss, Size outputs, const RowGroups<T>& Y, std::span<const T> weights,
                                 const Judged<T>& x, MatrixView<double> ledger) {
  if (!std::holds_alternative<CustomLoss>(loss)) {
    if (Y.examples() > 0) enqueue_judgement(loss, outputs, Y, weights, x, ledger.data);
    return;
  }
  const auto verdict = judge_by_the_host(loss, outputs, Y, weights, x);
  const auto book = device_view(ledger);
  cuda::for_each(stream(), 1, 1, [=] __device__(Size, Size) {
    book[0] += verdict.L;
    book[1] += verdict.bad >= 0 ? 1 : 0;
  });
}

/// A function of the host's cannot run on the device: everything it sees comes here, and its answers go back.
template <class T>
Verdict CudaBackend<T>::judge_by_the_host(const Loss& loss, Size outputs, const RowGroups<T>& Y,
                                          std::span<const T> weights, const Judged<T>& x) {
  const Size m = Y.examples(), entries = Y.nonzeros();
  const auto a = host_room(a_on_host_, m, 1), b = host_room(b_on_host_, m, 1);
  const auto gamma = host_room(gamma_on_host_, m, 1), g = host_room(g_on_host_, entries, 1);
  const Judged<T> here{download<double>(x.q, q_on_host_),
                       uses_sum(loss) ? download<double>(x.s, s_on_host_) : MatrixView<double>(),
                       download<double>(x.o, o_on_host_),
                       a,
                       b,
                       gamma,
                       g};
  synchronize();
  const auto verdict = judge_on_host(loss, outputs, Y, weights, here, judge_room_);
  enqueue_copy<T>(a, x.a);
  enqueue_copy<T>(b, x.b);
  enqueue_copy<T>(gamma, x.gamma);
  enqueue_copy<T>(g, x.g);
  synchronize();
  return verdict;
}

template <class T>
void CudaBackend<T>::common_factors(double eta, Size outputs, ConstView<T> a, ConstView<T> b, ConstView<T> gamma,
                                    ConstView<double> ts, MatrixView<double> factors, MatrixView<T> v) {
  const auto D = static_cast<double>(outputs);
  const auto by_q = device_view(a), by_s = device_view(b), by_o = device_view(gamma);
  const auto t_and_s = device_view(ts);
  const auto f = device_view(factors);
  const auto result = device_view(v);
  cuda::for_each(stream(), a.rows, 1, [=] __device__(Size j, Size) {
    const auto a_j = static_cast<double>(by_q[j]), b_j = static_cast<double>(by_s[j]);
    const auto gamma_j = static_cast<double>(by_o[j]);
    f(j, 0) = -eta * (2 * a_j * t_and_s(j, 0) + b_j);
    f(j, 1) = -eta * (2 * a_j * t_and_s(j, 1) + D * b_j + gamma_j);
    result[j] = static_cast<T>(4 * a_j * t_and_s(j, 1) + 2 * gamma_j + D * b_j);
  });
}

template <class T>
void CudaBackend<T>::exponentiate_rows(MatrixView<T> A, MatrixView<T> maxima, MatrixView<double> sums) {
  const auto x = device_view(A), maximum = device_view(maxima);
  const auto total = device_view(sums);
  // One buffer for both: the maxima's parts are done with when the sums' are written.
  auto* room = scratch_.room<double>(static_cast<std::size_t>(A.rows * cuda::row_slices(A.cols)));
  cuda::reduce_rows(
      stream(), A.rows, A.cols, [=] __device__(Size j, Size i) { return x(j, i); }, cuda::Larger{},
      std::numeric_limits<T>::lowest(), [=] __device__(Size j, T value) { maximum[j] = value; },
      reinterpret_cast<T*>(room));
  cuda::reduce_rows(
      stream(), A.rows, A.cols,
      [=] __device__(Size j, Size i) {
        const T power = exp(x(j, i) - maximum[j]);
        x(j, i) = power;
        return static_cast<double>(power);
      },
      cuda::Plus{}, 0.0, [=] __device__(Size j, double value) { total[j] = value; }, room);
}

template <class T>
void CudaBackend<T>::exponentiate_columns(MatrixView<T> A, MatrixView<T> maxima, MatrixView<double> sums) {
  if (A.cols == 0) return;
  exponentiate_columns_kernel<T><<<static_cast<unsigned>(A.cols), cuda::block_size, 0, stream()>>>(
      A, A.rows, maxima, sums, std::numeric_limits<T>::lowest());
  cuda::check_launch("exponentiate_columns_kernel");
}

#define WIDEHEAD_INSTANTIATE(T)                                                                         \
  template Verdict CudaBackend<T>::judge(const Loss&, Size, const RowGroups<T>&, std::span<const T>,    \
                                         const Judged<T>&);                                             \
  template void CudaBackend<T>::judge_later(const Loss&, Size, const RowGroups<T>&, std::span<const T>, \
                                            const Judged<T>&, MatrixView<double>);                      \
  template void CudaBackend<T>::common_factors(double, Size, ConstView<T>, ConstView<T>, ConstView<T>,  \
                                               ConstView<double>, MatrixView<double>, MatrixView<T>);   \
  template void CudaBackend<T>::exponentiate_rows(MatrixView<T>, MatrixView<T>, MatrixView<double>);    \
  template void CudaBackend<T>::exponentiate_columns(MatrixView<T>, MatrixView<T>, MatrixView<double>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
