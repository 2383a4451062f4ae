#include "widehead/stream_order.h"

#include "cuda_backend.h"

namespace widehead {
namespace {

/// What is put into `later` from now on waits for what is in `earlier`.
void put_in_order(cudaStream_t earlier, cudaStream_t later) {
  cuda::Event event;  // may go at once: CUDA keeps what is waited for
  event.record(earlier);
  event.block(later);
}

}  // namespace

template <class T>
StreamOrder<T>::StreamOrder(Backend<T>& backend, void* stream) : backend_(backend), stream_(stream) {
  const auto* gpu = dynamic_cast<CudaBackend<T>*>(&backend);
  if (gpu == nullptr) return;
  cuda::check(cudaGetDevice(&device_), "cudaGetDevice");
  try {
    put_in_order(static_cast<cudaStream_t>(stream), gpu->stream());
  } catch (...) {
    cudaSetDevice(device_);
    throw;
  }
}

/// Where the streams cannot be put in order the device is lost, and the next call of anybody's says so.
template <class T>
StreamOrder<T>::~StreamOrder() {
  const auto* gpu = dynamic_cast<CudaBackend<T>*>(&backend_);
  if (gpu == nullptr) return;
  try {
    put_in_order(gpu->stream(), static_cast<cudaStream_t>(stream_));
  } catch (...) {
  }
  cudaSetDevice(device_);
}

template class StreamOrder<float>;
template class StreamOrder<double>;

}  // namespace widehead
