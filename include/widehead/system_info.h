#pragma once
/// What the library runs on.

#include <string>

#include "widehead/backend.h"

namespace widehead {

struct SystemInfo {
  std::string version;
  std::string sgemm_library;  ///< who multiplies float matrices
  std::string blas_library;   ///< who multiplies double matrices, and does LAPACK's work
  std::string kernels;        ///< the kernel set the BLAS runs on, where it tells
  std::string warning;        ///< not empty when something makes the linear algebra needlessly slow
  int cores = 0;              ///< available to this process
};
SystemInfo system_info();

/// Seconds one product of this shape takes: the median of repeated calls, after a warm-up.
template <class T>
double time_gemm(Backend<T>& backend, const GemmShape& shape, double min_seconds = 0.05);

}  // namespace widehead
