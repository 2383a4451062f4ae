#include "resources.h"

#include <fmt/format.h>

#include <cstring>
#include <new>
#include <stdexcept>

#include "program.h"
#include "widehead/errors.h"

namespace widehead::cuda {

void fail(cudaError_t status, const char* call) {
  cudaGetLastError();  // an error that does not last is not to be found again by the next launch
  throw BackendError(
      fmt::format("CUDA: {} failed: {} ({})", call, cudaGetErrorName(status), cudaGetErrorString(status)));
}

void fail(cublasStatus_t status, const char* call) {
  throw BackendError(
      fmt::format("cuBLAS: {} failed: {} ({})", call, cublasGetStatusName(status), cublasGetStatusString(status)));
}

Device::Device(int number) : number_(number) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (number < 0 || number >= count) {
    throw std::invalid_argument(fmt::format("CUDA device {}, but there are {}, from 0 on", number, count));
  }
  make_current();
}

void* DeviceMemory::allocate(std::size_t bytes) {
  device_.make_current();
  bytes = (bytes + 15) / 16 * 16;  // fetch_piece asks for 16 at a time, of which it is given those that are there
  void* block = nullptr;
  const auto status = cudaMalloc(&block, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw std::bad_alloc();
  }
  check(status, "cudaMalloc");
  // On the stream and to the end, so that whoever is given the block finds zeros.
  check(cudaMemsetAsync(block, 0, bytes, stream_.get()), "cudaMemsetAsync");
  check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  return block;
}

void DeviceMemory::release(void* block) noexcept {
  try {
    if (program_ != nullptr) program_->start();
    check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  } catch (...) {  // the device has failed, and says so again when next it is asked
  }
  cudaFree(block);
}

void* PinnedMemory::allocate(std::size_t bytes) {
  void* block = nullptr;
  const auto status = cudaHostAlloc(&block, bytes, cudaHostAllocPortable);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw std::bad_alloc();
  }
  check(status, "cudaHostAlloc");
  std::memset(block, 0, bytes);
  return block;
}

void PinnedMemory::release(void* block) noexcept { cudaFreeHost(block); }

void Buffer::reserve(std::size_t bytes) {
  if (bytes <= size_) return;
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  drop();
  data_ = memory_->allocate(bytes);
  size_ = bytes;
}

void Buffer::drop() noexcept {
  if (data_ != nullptr) memory_->release(data_);
  data_ = nullptr;
  size_ = 0;
}

namespace {
constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // what cuBLAS recommends on Hopper
}

Blas::~Blas() {
  if (handle_ != nullptr) cublasDestroy(handle_);
}

cublasHandle_t Blas::get() {
  if (handle_ != nullptr) return handle_;
  cublasHandle_t handle = nullptr;
  check(cublasCreate(&handle), "cublasCreate");
  try {
    check(cublasSetStream(handle, stream_.get()), "cublasSetStream");
    // After the stream, which resets it. With a workspace of its own cuBLAS allocates nothing later, and its results
    // repeat bit for bit.
    check(cublasSetWorkspace(handle, workspace_.room<std::byte>(workspace_bytes), workspace_bytes),
          "cublasSetWorkspace");
    check(cublasSetMathMode(handle, math_), "cublasSetMathMode");
  } catch (...) {
    cublasDestroy(handle);
    throw;
  }
  return handle_ = handle;
}

}  // namespace widehead::cuda
