#include "cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "program_kernel.h"

namespace widehead {

template <class T>
CudaBackend<T>::CudaBackend(const CudaOptions& options)
    : context_(std::make_shared<cuda::Context>(options.device)),
      tf32_(options.tf32),
      blas_(context_->stream, context_->memory,
            !std::is_same_v<T, float> ? CUBLAS_DEFAULT_MATH
            : options.tf32            ? CUBLAS_TF32_TENSOR_OP_MATH
                                      : CUBLAS_PEDANTIC_MATH),
      scratch_(context_->memory),
      answer_(context_->pinned),
      cpu_(make_cpu_backend<T>(1)),
      matrix_on_host_(context_->pinned),
      second_on_host_(context_->pinned),
      exchanged_(context_->memory),
      q_on_host_(context_->pinned),
      s_on_host_(context_->pinned),
      o_on_host_(context_->pinned),
      a_on_host_(context_->pinned),
      b_on_host_(context_->pinned),
      gamma_on_host_(context_->pinned),
      g_on_host_(context_->pinned) {
  cuda::prepare_programs<T>(context_->program, context_->device);
}

template <class T>
CudaBackend<T>::~CudaBackend() {
  cudaStreamSynchronize(context_->stream.get());  // nobody is at work on what goes now
}

template <class T>
std::string CudaBackend<T>::device() const {
  return context_->device.number() == 0 ? "cuda" : fmt::format("cuda:{}", context_->device.number());
}

// ── memory ──────────────────────────────────────────────────────────────────────────────────────

template <class T>
bool CudaBackend<T>::can_reach(const void* address) const {
  if (address == nullptr) return true;  // nothing, which is everywhere
  cudaPointerAttributes attributes{};
  cuda::check(cudaPointerGetAttributes(&attributes, address), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeManaged ||
         (attributes.type == cudaMemoryTypeDevice && attributes.device == context_->device.number());
}

template <class T>
void CudaBackend<T>::copy_pieces(const void* from, std::size_t from_stride, void* to, std::size_t to_stride,
                                 std::size_t width, std::size_t count) {
  if (width == 0 || count == 0) return;
  if (count == 1 || (from_stride == width && to_stride == width)) {
    cuda::check(cudaMemcpyAsync(to, from, width * count, cudaMemcpyDefault, stream()), "cudaMemcpyAsync");
  } else {
    cuda::check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, width, count, cudaMemcpyDefault, stream()),
                "cudaMemcpy2DAsync");
  }
}

template <class T>
void CudaBackend<T>::transfer_bytes(const void* from, std::size_t from_stride, void* to, std::size_t to_stride,
                                    std::size_t width, std::size_t count) {
  copy_pieces(from, from_stride, to, to_stride, width, count);
  synchronize();
}

// ── sparse targets ──────────────────────────────────────────────────────────────────────────────

template <class T>
const cuda::Pattern<T>& CudaBackend<T>::pattern(const RowGroups<T>& Y) {
  auto& kept = Y.device_copy();
  auto* copy = dynamic_cast<cuda::PatternCopy<T>*>(kept.get());
  if (copy == nullptr || copy->context != context_) {
    kept = std::make_unique<cuda::PatternCopy<T>>(context_);
    copy = static_cast<cuda::PatternCopy<T>*>(kept.get());
  } else if (copy->version == Y.version() && copy->program + 1 >= program().number()) {
    return copy->pattern;
  }
  using cuda::Lists;
  const auto groups = static_cast<std::size_t>(Y.count()), entries = static_cast<std::size_t>(Y.nonzeros()),
             examples = static_cast<std::size_t>(Y.examples());
  const std::size_t bytes = Lists::bytes<Index>(groups) + Lists::bytes<Index>(groups + 1) +
                            4 * Lists::bytes<Index>(entries) + Lists::bytes<Index>(examples + 1) +
                            Lists::bytes<T>(entries);
  auto lists = program().lists(bytes);
  auto& pattern = copy->pattern;
  pattern.rows = lists.put(Y.rows());
  const auto starts = lists.template take<Index>(groups + 1);
  const auto example_of = lists.template take<Index>(entries), group_of = lists.template take<Index>(entries);
  pattern.starts = starts.device;
  pattern.examples = example_of.device;
  pattern.groups = group_of.device;
  for (Size g = 0; g < Y.count(); ++g) {
    starts.host[g] = static_cast<Index>(Y.first_entry(g));
    for (Size e = Y.first_entry(g); e < Y.first_entry(g + 1); ++e) {
      example_of.host[e] = Y.entry(e).example;
      group_of.host[e] = static_cast<Index>(g);
    }
  }
  starts.host[groups] = static_cast<Index>(entries);
  pattern.by_example = lists.put(Y.by_example());
  const auto group_by_example = lists.template take<Index>(entries);
  for (std::size_t k = 0; k < entries; ++k) {
    group_by_example.host[k] = group_of.host[static_cast<std::size_t>(Y.by_example()[k])];
  }
  pattern.group_by_example = group_by_example.device;
  pattern.example_starts = lists.put(Y.example_starts());
  pattern.values = lists.put(Y.values());
  copy->version = Y.version();
  copy->program = program().number();
  return pattern;
}

// ── dense products ──────────────────────────────────────────────────────────────────────────────

namespace {

cublasStatus_t multiply(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, Size m, Size n, Size k,
                        const float* alpha, const float* A, Size lda, const float* B, Size ldb, const float* beta,
                        float* C, Size ldc) {
  return cublasSgemm_64(handle, op_a, op_b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}
cublasStatus_t multiply(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, Size m, Size n, Size k,
                        const double* alpha, const double* A, Size lda, const double* B, Size ldb, const double* beta,
                        double* C, Size ldc) {
  return cublasDgemm_64(handle, op_a, op_b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}

}  // namespace

template <class T>
void CudaBackend<T>::gemm(Op op_a, Op op_b, T alpha, ConstView<T> A, ConstView<T> B, T beta, MatrixView<T> C) {
  const Size depth = op_a == Op::none ? A.cols : A.rows;
  if (C.rows == 0 || C.cols == 0) return;
  if (depth == 0) {
    if (beta == T(0)) return clear(C);
    return scale(beta, C);
  }
  if (is_small(C.rows, C.cols, depth)) {
    auto x = product(op_a, op_b, alpha, A, B, beta, C);
    x.symmetric = A.data == B.data && A.stride == B.stride && op_a == Op::none && op_b == Op::transpose && beta == T(0);
    return write_down(x, {cuda::range(A), cuda::range(B)}, {cuda::range(C)});
  }
  const auto of = [](Op op) { return op == Op::none ? CUBLAS_OP_N : CUBLAS_OP_T; };
  // A matrix of one column may come with any stride.
  const auto leading = [](Size stride, Size rows) { return std::max<Size>(stride, rows); };
  cuda::check(multiply(blas(), of(op_a), of(op_b), C.rows, C.cols, depth, &alpha, A.data, leading(A.stride, A.rows),
                       B.data, leading(B.stride, B.rows), &beta, C.data, leading(C.stride, C.rows)),
              "cublas gemm");
}

/// Products in float that take some 20 µs at most; beyond, and along a depth that leaves few tiles, cuBLAS is the
/// faster.
template <class T>
bool CudaBackend<T>::is_small(Size rows, Size cols, Size depth) const {
  if (!std::is_same_v<T, float> || tf32_) return false;
  return depth <= 1024 && rows * cols <= Size{1} << 21 &&
         GemmShape{Op::none, Op::none, rows, cols, depth}.flops() < 2.5e8;
}

namespace {

/// Small tiles where most of the device would be idle otherwise.
int edge_for(Size rows, Size cols) { return cuda::multiply_tiles(rows, cols, 32) <= 20 ? 16 : 32; }

}  // namespace

template <class T>
cuda::Multiply CudaBackend<T>::product(Op op_a, Op op_b, T alpha, ConstView<T> A, ConstView<T> B, T beta,
                                       MatrixView<T> C) const {
  cuda::Multiply x{};
  if constexpr (std::is_same_v<T, float>) {
    x.of[0] = {A.data, B.data, static_cast<int>(A.stride), static_cast<int>(B.stride),
               static_cast<int>(op_a == Op::none ? A.cols : A.rows)};
    x.C = C.data;
    x.C_stride = static_cast<int>(C.stride);
    x.rows = static_cast<int>(C.rows), x.cols = static_cast<int>(C.cols);
    x.alpha = alpha, x.beta = beta;
    x.A_along = op_a == Op::transpose, x.B_along = op_b == Op::none;
    x.wide = is_wide(A) && is_wide(B);
    x.wide_C = is_wide(C);
    x.edge = !x.wide ? 32 : edge_for(C.rows, C.cols);
  }
  return x;
}

template <class T>
void CudaBackend<T>::add_product(cuda::Multiply& x, ConstView<T> A, ConstView<T> B) const {
  if constexpr (std::is_same_v<T, float>) {
    *std::find_if(x.of, x.of + cuda::most_products, [](const cuda::Factors& of) { return of.depth == 0; }) = {
        A.data, B.data, static_cast<int>(A.stride), static_cast<int>(B.stride), static_cast<int>(A.cols)};
    x.wide = x.wide && is_wide(A) && is_wide(B);
    if (!x.wide) x.edge = 32;
  }
}

template <class T>
void CudaBackend<T>::write_sum(cuda::Multiply& x, ConstView<T> high, MatrixView<T> sum) const {
  if constexpr (std::is_same_v<T, float>) {
    x.high = high.data, x.sum = sum.data;
    x.high_stride = static_cast<int>(high.stride), x.sum_stride = static_cast<int>(sum.stride);
    x.wide_C = x.wide_C && is_wide(high) && is_wide(sum);
  }
}

template <class T>
void CudaBackend<T>::write_down(const cuda::Multiply& x, std::initializer_list<cuda::Range> reads,
                                std::initializer_list<cuda::Range> writes) {
  const Size rows = cuda::multiply_tiles(x.rows, 1, x.edge);
  const Size tiles = x.symmetric ? rows * (rows + 1) / 2 : cuda::multiply_tiles(x.rows, x.cols, x.edge);
  int depth = 0;
  for (const auto& of : x.of) depth += of.depth;
  const auto deep = static_cast<float>(depth);
  const float tile = (x.edge == 16 ? 0.8F + deep / 120 : 2.3F + deep / 140) + (x.symmetric ? 1 : 0);
  program().add(cuda::Kind::multiply, tiles, x, reads, writes, {tile});
}

template <class T>
Size CudaBackend<T>::rows_per_block(Size dim) const {
  constexpr Size bytes = Size{1} << 30;  // one large product: only its own result must fit the memory
  return std::max<Size>(bytes / static_cast<Size>(sizeof(T)) / std::max<Size>(dim, 1), 256);
}

#define WIDEHEAD_INSTANTIATE(T)                                                                                      \
  template CudaBackend<T>::CudaBackend(const CudaOptions&);                                                          \
  template CudaBackend<T>::~CudaBackend();                                                                           \
  template std::string CudaBackend<T>::device() const;                                                               \
  template bool CudaBackend<T>::can_reach(const void*) const;                                                        \
  template void CudaBackend<T>::copy_pieces(const void*, std::size_t, void*, std::size_t, std::size_t, std::size_t); \
  template void CudaBackend<T>::transfer_bytes(const void*, std::size_t, void*, std::size_t, std::size_t,            \
                                               std::size_t);                                                         \
  template const cuda::Pattern<T>& CudaBackend<T>::pattern(const RowGroups<T>&);                                     \
  template void CudaBackend<T>::gemm(Op, Op, T, ConstView<T>, ConstView<T>, T, MatrixView<T>);                       \
  template bool CudaBackend<T>::is_small(Size, Size, Size) const;                                                    \
  template void CudaBackend<T>::add_product(cuda::Multiply&, ConstView<T>, ConstView<T>) const;                      \
  template void CudaBackend<T>::write_sum(cuda::Multiply&, ConstView<T>, MatrixView<T>) const;                       \
  template cuda::Multiply CudaBackend<T>::product(Op, Op, T, ConstView<T>, ConstView<T>, T, MatrixView<T>) const;    \
  template void CudaBackend<T>::write_down(const cuda::Multiply&, std::initializer_list<cuda::Range>,                \
                                           std::initializer_list<cuda::Range>);                                      \
  template Size CudaBackend<T>::rows_per_block(Size) const;                                                          \
  template std::shared_ptr<Backend<T>> make_cuda_backend(const CudaOptions&)

template <class T>
std::shared_ptr<Backend<T>> make_cuda_backend(const CudaOptions& options) {
  return std::make_shared<CudaBackend<T>>(options);
}
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

int cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

}  // namespace widehead
