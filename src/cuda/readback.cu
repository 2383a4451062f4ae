/// What keeps a trainer from waiting: norms that stay on the device, and numbers and times on their way from there.

#include "cuda_backend.h"
#include "kernels.h"

namespace widehead {

using cuda::device_view;

namespace {

constexpr int norm_threads = 1024;
/// Up to here one block is quicker than two launches more.
constexpr Size one_block = 128 * norm_threads;

/// Pinned, and an event of its own.
class CudaReadback final : public Readback {
 public:
  explicit CudaReadback(std::shared_ptr<cuda::Context> context)
      : context_(std::move(context)), values_(context_->pinned) {}
  ~CudaReadback() override { cudaStreamSynchronize(context_->stream.get()); }  // they may still be on their way here

  void send(ConstView<double> values) override {
    context_->device.make_current();
    context_->program.start();
    const auto stream = context_->stream.get();
    count_ = static_cast<std::size_t>(values.rows);
    double* here = values_.room<double>(count_ + 1);
    if (count_ > 0) {
      cuda::check(cudaMemcpyAsync(here, values.data, count_ * sizeof(double), cudaMemcpyDeviceToHost, stream),
                  "cudaMemcpyAsync");
    }
    arrived_.record(stream);
  }
  std::span<const double> receive() override {
    arrived_.wait();
    return {values_.room<double>(count_), count_};
  }

 private:
  std::shared_ptr<cuda::Context> context_;
  cuda::Buffer values_;
  std::size_t count_ = 0;
  cuda::Event arrived_;
};

/// Events, kept for the next time.
class CudaStopwatch final : public Stopwatch {
 public:
  explicit CudaStopwatch(std::shared_ptr<cuda::Context> context) : context_(std::move(context)) {}

  void mark() override {
    context_->device.make_current();
    context_->program.start();
    if (count_ == marks_.size()) marks_.push_back(std::make_unique<cuda::Event>(cudaEventDefault));
    marks_[count_++]->record(context_->stream.get());
  }
  std::vector<double> take_laps() override {
    std::vector<double> laps;
    if (count_ > 0) marks_[count_ - 1]->wait();
    for (std::size_t k = 1; k < count_; ++k) laps.push_back(marks_[k]->seconds_since(*marks_[k - 1]));
    count_ = 0;
    return laps;
  }

 private:
  std::shared_ptr<cuda::Context> context_;
  std::vector<std::unique_ptr<cuda::Event>> marks_;
  std::size_t count_ = 0;
};

/// Every thread sums its own elements, then warps, then their sums, all in a fixed order.
template <class T>
__global__ void squared_norm_kernel(cuda::DeviceView<const T> A, Size rows, Size cols, double beta, double* out) {
  constexpr int warps = norm_threads / cuda::warp_size;
  __shared__ double of_warp[warps];
  double sum = 0;
  for (cuda::Walk at(rows, cols); at.more(); at.next()) {
    const auto value = static_cast<double>(A(at.i, at.j));
    sum += value * value;
  }
  sum = cuda::combine_warp(sum, cuda::Plus{});
  const int warp = static_cast<int>(threadIdx.x) / cuda::warp_size,
            lane = static_cast<int>(threadIdx.x) % cuda::warp_size;
  if (lane == 0) of_warp[warp] = sum;
  __syncthreads();
  if (warp > 0) return;
  sum = cuda::combine_warp(lane < warps ? of_warp[lane] : 0.0, cuda::Plus{});
  if (lane == 0) *out = beta == 0 ? sum : beta * *out + sum;
}

}  // namespace

template <class T>
void CudaBackend<T>::squared_norm(ConstView<T> A, double beta, MatrixView<double> out) {
  const auto a = device_view(A);
  double* result = out.data;
  if (A.rows > 0 && A.cols > 0 && A.size() <= one_block) {
    squared_norm_kernel<T><<<1, norm_threads, 0, stream()>>>(a, A.rows, A.cols, beta, result);
    cuda::check_launch("squared_norm_kernel");
    return;
  }
  const double* sum = cuda::reduce(
      stream(), A.rows, A.cols,
      [=] __device__(Size i, Size j) { return static_cast<double>(a(i, j)) * static_cast<double>(a(i, j)); },
      cuda::Plus{}, 0.0, scratch_.room<double>(cuda::reduce_blocks + 1));
  cuda::for_each(stream(), 1, 1, [=] __device__(Size, Size) { *result = beta == 0 ? *sum : beta * *result + *sum; });
}

template <class T>
void CudaBackend<T>::limit_norm(ConstView<double> n, double limit, MatrixView<T> A) {
  const double* squared = n.data;
  const auto a = device_view(A);
  cuda::for_each(stream(), A.rows, A.cols, [=] __device__(Size i, Size j) {
    const double norm = sqrt(*squared);
    if (norm > limit) a(i, j) *= static_cast<T>(limit / norm);
  });
}

template <class T>
void CudaBackend<T>::combine_own(const RowGroups<T>& Y, ConstView<T> X, MatrixView<T> Z) {
  combine(Y, MatrixView<const T>(pattern(Y).values, Y.nonzeros(), 1), X, Z);
}

template <class T>
std::unique_ptr<Readback> CudaBackend<T>::make_readback() {
  context_->device.make_current();
  return std::make_unique<CudaReadback>(context_);
}

template <class T>
std::unique_ptr<Stopwatch> CudaBackend<T>::make_stopwatch() {
  return std::make_unique<CudaStopwatch>(context_);
}

template <class T>
std::size_t CudaBackend<T>::free_memory() const {
  context_->device.make_current();
  std::size_t free = 0, total = 0;
  cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

#define WIDEHEAD_INSTANTIATE(T)                                                                \
  template void CudaBackend<T>::squared_norm(ConstView<T>, double, MatrixView<double>);        \
  template void CudaBackend<T>::limit_norm(ConstView<double>, double, MatrixView<T>);          \
  template void CudaBackend<T>::combine_own(const RowGroups<T>&, ConstView<T>, MatrixView<T>); \
  template std::unique_ptr<Readback> CudaBackend<T>::make_readback();                          \
  template std::unique_ptr<Stopwatch> CudaBackend<T>::make_stopwatch();                        \
  template std::size_t CudaBackend<T>::free_memory() const
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
