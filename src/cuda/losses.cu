/// Losses of a minibatch, and the elementwise part of a softmax.

#include <limits>
#include <type_traits>

#include "cuda_backend.h"
#include "kernels.h"

namespace widehead {

using cuda::device_view;

namespace {

/// What each example adds to the verdict.
struct Opinions {
  double* L;          // weighted
  double* largest_a;  // |a|, weighted
  Size* bad;          // the example itself, or `nobody`
  double* value;      // L, a, b as the loss gave them
};
constexpr Size nobody = std::numeric_limits<Size>::max();

/// Verdict as it comes from the device: no gaps.
struct Summary {
  double L, largest_a;
  Size bad;
  double at_bad[3];
};

/// Targets of all examples, example after example, in double.
struct Targets {
  double *o, *y, *g;
};

template <class T>
struct JudgedOnDevice {
  cuda::DeviceView<const double> q, s, o;
  cuda::DeviceView<T> a, b, gamma, g;
};

/// Example j, by one thread: the loss itself goes over its targets.
template <class L, class T>
__device__ void judge_example(const L& loss, double outputs, Size j, const cuda::Pattern<T>& Y, const T* weights,
                              const JudgedOnDevice<T>& x, const Targets& room, const Opinions& out) {
  const Index first = Y.example_starts[j], last = Y.example_starts[j + 1];
  for (Index k = first; k < last; ++k) {
    const Index e = Y.by_example[k];
    room.o[k] = x.o[e];
    room.y[k] = static_cast<double>(Y.values[e]);
    room.g[k] = 0;
  }
  const auto count = static_cast<std::size_t>(last - first);
  const LossInput input{x.q[j], L::uses_sum ? x.s[j] : 0.0, outputs, std::span<const double>(room.o + first, count),
                        std::span<const double>(room.y + first, count)};
  const LossValue value = loss(input, std::span<double>(room.g + first, count));
  const double weight = weights == nullptr ? 1.0 : static_cast<double>(weights[j]);
  double gamma = 0, poison = value.L + value.a + value.b;
  for (Index k = first; k < last; ++k) {
    const double g = weight * room.g[k];
    const T rounded = static_cast<T>(g);
    x.g[Y.by_example[k]] = rounded;
    gamma += g;
    poison += static_cast<double>(rounded);
  }
  const T a = static_cast<T>(weight * value.a), b = static_cast<T>(weight * value.b), sum = static_cast<T>(gamma);
  x.a[j] = a;
  x.b[j] = b;
  x.gamma[j] = sum;
  const bool bad = !isfinite(poison) || !isfinite(a + b + sum) || (!L::uses_sum && value.b != 0);
  out.L[j] = weight * value.L;
  out.largest_a[j] = static_cast<double>(a < T(0) ? -a : a);
  out.bad[j] = bad ? j : nobody;
  out.value[3 * j] = value.L;
  out.value[3 * j + 1] = value.a;
  out.value[3 * j + 2] = value.b;
}

/// By one block, in a fixed order.
__device__ void summarize(Size m, const Opinions& of, Summary* summary, double* ledger) {
  double L = 0, largest_a = 0;
  Size bad = nobody;
  for (Size j = threadIdx.x; j < m; j += blockDim.x) {
    L += of.L[j];
    largest_a = cuda::Larger{}(largest_a, of.largest_a[j]);
    bad = cuda::Smaller{}(bad, of.bad[j]);
  }
  L = cuda::combine_block(L, cuda::Plus{});
  largest_a = cuda::combine_block(largest_a, cuda::Larger{});
  bad = cuda::combine_block(bad, cuda::Smaller{});
  if (threadIdx.x != 0) return;
  if (ledger != nullptr) {  // for judge_later
    ledger[0] += L;
    ledger[1] += bad == nobody ? 0 : 1;
    return;
  }
  summary->L = L;
  summary->largest_a = largest_a;
  summary->bad = bad;
  for (int k = 0; k < 3; ++k) summary->at_bad[k] = bad == nobody ? 0 : of.value[3 * bad + k];
}

template <class L, class T>
__global__ void judge_kernel(L loss, double outputs, Size m, cuda::Pattern<T> Y, const T* weights, JudgedOnDevice<T> x,
                             Targets room, Opinions out) {
  const Size j = static_cast<Size>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j < m) judge_example(loss, outputs, j, Y, weights, x, room, out);
}
__global__ void summarize_kernel(Size m, Opinions of, Summary* summary, double* ledger) {
  summarize(m, of, summary, ledger);
}
/// Both for examples that fit a block: one launch less.
template <class L, class T>
__global__ void judge_at_once_kernel(L loss, double outputs, Size m, cuda::Pattern<T> Y, const T* weights,
                                     JudgedOnDevice<T> x, Targets room, Opinions out, Summary* summary,
                                     double* ledger) {
  if (threadIdx.x < m) judge_example(loss, outputs, threadIdx.x, Y, weights, x, room, out);
  __syncthreads();
  summarize(m, out, summary, ledger);
}

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
const void* CudaBackend<T>::enqueue_judgement(const Loss& loss, Size outputs, const RowGroups<T>& Y,
                                              std::span<const T> weights, const Judged<T>& x, double* ledger) {
  const auto m = static_cast<std::size_t>(Y.examples()), entries = static_cast<std::size_t>(Y.nonzeros());
  const auto y = pattern(Y);
  const T* weight = send(weights);
  double* room = scratch_.room<double>(3 * entries + 6 * m + sizeof(Summary) / sizeof(double));
  const Targets targets{room, room + entries, room + 2 * entries};
  double* by_example = room + 3 * entries;
  const Opinions opinions{by_example, by_example + m, reinterpret_cast<Size*>(by_example + 2 * m), by_example + 3 * m};
  auto* summary = reinterpret_cast<Summary*>(by_example + 6 * m);
  const JudgedOnDevice<T> judged{x.q, x.s, x.o, x.a, x.b, x.gamma, x.g};
  const auto on_stream = stream();
  std::visit(
      [&](const auto& function) {
        using L = std::remove_cvref_t<decltype(function)>;
        if constexpr (!std::is_same_v<L, CustomLoss>) {
          if (m <= cuda::block_size) {
            judge_at_once_kernel<L, T><<<1, cuda::block_size, 0, on_stream>>>(function, static_cast<double>(outputs),
                                                                              Y.examples(), y, weight, judged, targets,
                                                                              opinions, summary, ledger);
            return;
          }
          constexpr int threads = 32;  // examples are few, and better spread over the device
          judge_kernel<L, T><<<static_cast<unsigned>((m + threads - 1) / threads), threads, 0, on_stream>>>(
              function, static_cast<double>(outputs), Y.examples(), y, weight, judged, targets, opinions);
        }
      },
      loss);
  cuda::check_launch("judge_kernel");
  if (m > cuda::block_size) {
    summarize_kernel<<<1, cuda::block_size, 0, on_stream>>>(Y.examples(), opinions, summary, ledger);
    cuda::check_launch("summarize_kernel");
  }
  return summary;
}

template <class T>
Verdict CudaBackend<T>::judge(const Loss& loss, Size outputs, const RowGroups<T>& Y, std::span<const T> weights,
                              const Judged<T>& x) {
  if (std::holds_alternative<CustomLoss>(loss)) return judge_by_the_host(loss, outputs, Y, weights, x);
  if (Y.examples() <= 0) return {};
  const auto result = fetch(static_cast<const Summary*>(enqueue_judgement(loss, outputs, Y, weights, x, nullptr)));
  Verdict verdict{result.L, result.largest_a};
  if (result.bad != nobody) {
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
