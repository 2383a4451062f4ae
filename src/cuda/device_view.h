#pragma once
/// Matrices as kernels see them. The host only fills them in.

#include "widehead/matrix.h"

#if defined(__CUDACC__)
#define WIDEHEAD_DEVICE __device__
#else
#define WIDEHEAD_DEVICE
#endif

namespace widehead::cuda {

inline constexpr int warp_size = 32;

/// A MatrixView in a kernel.
template <class T>
struct DeviceView {
  T* data = nullptr;
  Size stride = 0;

  DeviceView() = default;
  DeviceView(MatrixView<T> A) : data(A.data), stride(A.stride) {}  // NOLINT(google-explicit-constructor)
  WIDEHEAD_DEVICE T& operator()(Size i, Size j) const { return data[i + j * stride]; }
  WIDEHEAD_DEVICE T& operator[](Size i) const { return data[i]; }  ///< of a vector
};
template <class T>
DeviceView<T> device_view(MatrixView<T> A) {
  return A;
}

}  // namespace widehead::cuda
