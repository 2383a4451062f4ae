#pragma once
/// Products of a step in float: a few hundred rows and columns, where a library's kernels leave most of the GPU idle or
/// pay for a second pass that adds up parts. True FP32, deterministic.

#include <cuda_runtime.h>

#include "widehead/backend.h"

namespace widehead::cuda {

/// Whether `small_gemm` is the better way for a product of this shape.
bool is_small(Size rows, Size cols, Size depth);

/// To be called once for each device.
void prepare_small_gemm();

/// C ← α op(A) op(B) + β C. With β = 0, C is not read.
void small_gemm(cudaStream_t stream, Op op_a, Op op_b, float alpha, MatrixView<const float> A,
                MatrixView<const float> B, float beta, MatrixView<float> C);

}  // namespace widehead::cuda
