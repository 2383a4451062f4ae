#pragma once
/// Every call of CUDA's and cuBLAS's is checked: what fails is thrown as a BackendError with the call in its text.

#include <cublas_v2.h>
#include <cuda_runtime.h>

namespace widehead::cuda {

[[noreturn]] void fail(cudaError_t status, const char* call);
[[noreturn]] void fail(cublasStatus_t status, const char* call);

inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail(status, call);
}
inline void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(status, call);
}
/// After a launch. What goes wrong while the kernel runs is found by the next call that waits.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

}  // namespace widehead::cuda
