#include "blas.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <vector>

#include "widehead/errors.h"

#if WIDEHEAD_HAVE_ONEDNN
#include <dnnl.h>
#include <dnnl_version.h>
#endif

// The Fortran interface: the one every vendor offers.
extern "C" {
#define WIDEHEAD_DECLARE_FORTRAN(T, p)                                                                          \
  void p##gemm_(const char*, const char*, const int*, const int*, const int*, const T*, const T*, const int*,   \
                const T*, const int*, const T*, T*, const int*);                                                \
  void p##trsm_(const char*, const char*, const char*, const char*, const int*, const int*, const T*, const T*, \
                const int*, T*, const int*);                                                                    \
  void p##laswp_(const int*, T*, const int*, const int*, const int*, const int*, const int*);                   \
  void p##getrf_(const int*, const int*, T*, const int*, int*, int*);                                           \
  void p##geqrf_(const int*, const int*, T*, const int*, T*, T*, const int*, int*);                             \
  void p##orgqr_(const int*, const int*, const int*, T*, const int*, const T*, T*, const int*, int*);           \
  void p##getri_(const int*, T*, const int*, const int*, T*, const int*, int*);                                 \
  void p##gecon_(const char*, const int*, const T*, const int*, const T*, T*, T*, int*, int*);                  \
  void p##gesdd_(const char*, const int*, const int*, T*, const int*, T*, T*, const int*, T*, const int*, T*,   \
                 const int*, int*, int*);
WIDEHEAD_DECLARE_FORTRAN(float, s)
WIDEHEAD_DECLARE_FORTRAN(double, d)
#undef WIDEHEAD_DECLARE_FORTRAN
}

namespace widehead::blas {
namespace {

/// The routine of the right precision: WIDEHEAD_ROUTINE(gemm) is sgemm_ or dgemm_ by T.
#define WIDEHEAD_ROUTINE(name)                \
  [](auto... arguments) {                     \
    if constexpr (std::is_same_v<T, float>) { \
      s##name##_(arguments...);               \
    } else {                                  \
      d##name##_(arguments...);               \
    }                                         \
  }

int to_int(Size n) {
  if (n > INT32_MAX) throw BackendError(fmt::format("BLAS: an extent of {} is beyond its 32-bit integers", n));
  return static_cast<int>(n);
}

const char* letter(Op op) { return op == Op::none ? "N" : "T"; }

template <class Function>
Function* find_symbol(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

bool is_amd() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

/// Kernel sets OpenBLAS falls back to when it does not know a CPU (all older than AVX2), and those for
/// Intel's AVX-512 that it takes on AMD's: there its triangular solves are half as fast as its Zen ones.
bool is_slow_kernel_set(std::string_view kernels) {
  if (is_amd() && (kernels == "SkylakeX" || kernels == "Cooperlake" || kernels == "Sapphirerapids")) return true;
  constexpr std::array<std::string_view, 14> slow = {"Katmai", "Coppermine", "Northwood",    "Prescott",   "Banias",
                                                     "Atom",   "Core2",      "Penryn",       "Dunnington", "Nehalem",
                                                     "Athlon", "Opteron",    "Opteron_SSE3", "Barcelona"};
  return std::find(slow.begin(), slow.end(), kernels) != slow.end();
}

/// The kernel set this CPU could run, or "" when the slow ones are all it has.
const char* best_kernel_set() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (is_amd() && avx2) return "Zen";
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  if (avx512) return "SkylakeX";
  if (avx2) return "Haswell";
#endif
  return "";
}

std::string openblas_kernels() {
  auto* corename = find_symbol<char*()>("openblas_get_corename");
  return corename == nullptr ? "" : corename();
}

/// OpenBLAS chooses its kernels when it is loaded, before any code of ours could set its variable.
/// Its own (un)loading routines let it choose again. A choice the user made is respected.
void choose_fast_openblas_kernels() {
  const std::string best = best_kernel_set();
  if (best.empty() || !is_slow_kernel_set(openblas_kernels()) || std::getenv("OPENBLAS_CORETYPE") != nullptr) return;
  auto* quit = find_symbol<void()>("gotoblas_dynamic_quit");
  auto* init = find_symbol<void()>("gotoblas_dynamic_init");
  if (quit == nullptr || init == nullptr) return;
  setenv("OPENBLAS_CORETYPE", best.c_str(), 0);
  quit();
  init();
  unsetenv("OPENBLAS_CORETYPE");
}

}  // namespace

void initialize() {
  static std::once_flag once;
  std::call_once(once, [] {
    choose_fast_openblas_kernels();
    if (auto* set_threads = find_symbol<void(int)>("openblas_set_num_threads")) set_threads(1);
  });
}

template <class T>
void gemm(Op op_a, Op op_b, T alpha, MatrixView<const T> A, MatrixView<const T> B, T beta, MatrixView<T> C) {
  const Size k = op_a == Op::none ? A.cols : A.rows;
#if WIDEHEAD_HAVE_ONEDNN
  if constexpr (std::is_same_v<T, float>) {
    // oneDNN is row-major: what lies in memory as C is its Cᵀ = op(B)ᵀ op(A)ᵀ.
    const auto status = dnnl_sgemm(*letter(op_b), *letter(op_a), C.cols, C.rows, k, alpha, B.data, B.stride, A.data,
                                   A.stride, beta, C.data, C.stride);
    if (status != dnnl_success) {
      throw BackendError(
          fmt::format("dnnl_sgemm({} x {} x {}) failed with status {}", C.rows, C.cols, k, static_cast<int>(status)));
    }
    return;
  }
#endif
  const int m = to_int(C.rows), n = to_int(C.cols), depth = to_int(k);
  const int lda = to_int(A.stride), ldb = to_int(B.stride), ldc = to_int(C.stride);
  WIDEHEAD_ROUTINE(gemm)
  (letter(op_a), letter(op_b), &m, &n, &depth, &alpha, A.data, &lda, B.data, &ldb, &beta, C.data, &ldc);
}

template <class T>
void trsm_right(char uplo, bool unit, MatrixView<const T> A, MatrixView<T> B) {
  const int m = to_int(B.rows), n = to_int(B.cols), lda = to_int(A.stride), ldb = to_int(B.stride);
  const T one = 1;
  WIDEHEAD_ROUTINE(trsm)("R", &uplo, "N", unit ? "U" : "N", &m, &n, &one, A.data, &lda, B.data, &ldb);
}

template <class T>
void trsm_left(Triangle kind, Op op, MatrixView<const T> A, MatrixView<T> B) {
  const int m = to_int(B.rows), n = to_int(B.cols), lda = to_int(A.stride), ldb = to_int(B.stride);
  const bool is_lower = kind == Triangle::unit_lower;
  const T one = 1;
  WIDEHEAD_ROUTINE(trsm)
  ("L", is_lower ? "L" : "U", letter(op), is_lower ? "U" : "N", &m, &n, &one, A.data, &lda, B.data, &ldb);
}

template <class T>
int getrf(MatrixView<T> A, std::span<int> pivots) {
  const int m = to_int(A.rows), n = to_int(A.cols), lda = to_int(A.stride);
  int info = 0;
  WIDEHEAD_ROUTINE(getrf)(&m, &n, A.data, &lda, pivots.data(), &info);
  return info;
}

template <class T>
T gecon(MatrixView<const T> A, T norm, std::span<T> work, std::span<int> iwork) {
  const int n = to_int(A.rows), lda = to_int(A.stride);
  int info = 0;
  T rcond = 0;
  WIDEHEAD_ROUTINE(gecon)("1", &n, A.data, &lda, &norm, &rcond, work.data(), iwork.data(), &info);
  return rcond;
}

template <class T>
void geqrf(MatrixView<T> A, std::span<T> tau, std::span<T> work) {
  const int m = to_int(A.rows), n = to_int(A.cols), lda = to_int(A.stride),
            size = to_int(static_cast<Size>(work.size()));
  int info = 0;
  WIDEHEAD_ROUTINE(geqrf)(&m, &n, A.data, &lda, tau.data(), work.data(), &size, &info);
}

template <class T>
void orgqr(MatrixView<T> A, std::span<const T> tau, std::span<T> work) {
  const int m = to_int(A.rows), n = to_int(A.cols), lda = to_int(A.stride),
            size = to_int(static_cast<Size>(work.size()));
  int info = 0;
  WIDEHEAD_ROUTINE(orgqr)(&m, &n, &n, A.data, &lda, tau.data(), work.data(), &size, &info);
}

template <class T>
int getri(MatrixView<T> A, std::span<const int> pivots, std::span<T> work) {
  const int n = to_int(A.rows), lda = to_int(A.stride), size = to_int(static_cast<Size>(work.size()));
  int info = 0;
  WIDEHEAD_ROUTINE(getri)(&n, A.data, &lda, pivots.data(), work.data(), &size, &info);
  return info;
}

template <class T>
int svd(MatrixView<T> A, std::span<T> sigma, MatrixView<T> left, SvdRoom<T>& room) {
  const int n = to_int(A.rows), lda = to_int(A.stride);
  const char* job = left.empty() ? "N" : "S";
  const int ldu = left.empty() ? 1 : to_int(left.stride);
  const int ldvt = n;
  const auto grow = [](auto& vector, std::size_t size) {
    if (vector.size() < size) vector.resize(size);
  };
  grow(room.right, static_cast<std::size_t>(n) * static_cast<std::size_t>(n));
  grow(room.iwork, 8 * static_cast<std::size_t>(n));
  int info = 0;
  const auto gesdd = [&](T* work, int size) {
    WIDEHEAD_ROUTINE(gesdd)
    (job, &n, &n, A.data, &lda, sigma.data(), left.data, &ldu, room.right.data(), &ldvt, work, &size, room.iwork.data(),
     &info);
  };
  T best_size = 0;
  gesdd(&best_size, -1);  // asks
  grow(room.work, static_cast<std::size_t>(best_size) + 1);
  gesdd(room.work.data(), to_int(static_cast<Size>(room.work.size())));
  return info;
}

Description describe() {
  Description description;
  auto* config = find_symbol<char*()>("openblas_get_config");
  description.blas_library = config != nullptr ? config() : WIDEHEAD_BLAS_LIBRARIES;
  description.kernels = openblas_kernels();
  description.sgemm_library = description.blas_library;
#if WIDEHEAD_HAVE_ONEDNN
  const dnnl_version_t* version = dnnl_version();
  description.sgemm_library = fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
#endif
  if (is_slow_kernel_set(description.kernels) && best_kernel_set()[0] != '\0') {
    description.warning = fmt::format(
        "OpenBLAS runs on its {} kernels, but this CPU could run {}: start with OPENBLAS_CORETYPE={} for its full "
        "speed",
        description.kernels, best_kernel_set(), best_kernel_set());
  }
  return description;
}

#define WIDEHEAD_INSTANTIATE(T)                                                                 \
  template void gemm<T>(Op, Op, T, MatrixView<const T>, MatrixView<const T>, T, MatrixView<T>); \
  template void trsm_right<T>(char, bool, MatrixView<const T>, MatrixView<T>);                  \
  template void trsm_left<T>(Triangle, Op, MatrixView<const T>, MatrixView<T>);                 \
  template int getrf<T>(MatrixView<T>, std::span<int>);                                         \
  template T gecon<T>(MatrixView<const T>, T, std::span<T>, std::span<int>);                    \
  template void geqrf<T>(MatrixView<T>, std::span<T>, std::span<T>);                            \
  template void orgqr<T>(MatrixView<T>, std::span<const T>, std::span<T>);                      \
  template int getri<T>(MatrixView<T>, std::span<const int>, std::span<T>);                     \
  template int svd<T>(MatrixView<T>, std::span<T>, MatrixView<T>, SvdRoom<T>&);
WIDEHEAD_INSTANTIATE(float)
WIDEHEAD_INSTANTIATE(double)
#undef WIDEHEAD_INSTANTIATE

}  // namespace widehead::blas
