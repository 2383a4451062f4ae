#pragma once
/// Backends by the name of their device, as users give it.

#include <memory>
#include <string_view>

#include "widehead/backend.h"

namespace widehead {

/// "cpu", "cuda" (the first GPU) or "cuda:1" (the second).
/// @param threads  of the CPU; 0 means one per available core
/// @param tf32     see CudaOptions
/// @throws std::invalid_argument for any other name, and for TF32 on the CPU or in double, where there is none;
///         BackendError where there is no such device
template <class T>
std::shared_ptr<Backend<T>> make_backend(std::string_view device, int threads = 0, bool tf32 = false);

}  // namespace widehead
