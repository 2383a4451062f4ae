/// The operations of a training step on a GPU, at the paper's sizes (d = 300, m = 128) and D = 793471 outputs: the time
/// of each when many are enqueued and one waits for the last, which is what it costs within a step.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <vector>

#include "widehead/backend.h"

namespace widehead {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Size D = 793471, d = 300, m = 128;

/// Seconds of one call among many, the median of some rounds.
template <class T, class Work>
double time(Backend<T>& backend, int calls, const Work& work) {
  T nothing = 0;
  Matrix<T> there(1, 1, backend.memory());
  const auto wait = [&] { backend.template transfer<T>(there, MatrixView<T>(&nothing, 1, 1)); };
  std::vector<double> rounds;
  for (int round = 0; round < 6; ++round) {  // the first warms up
    wait();
    const auto start = Clock::now();
    for (int k = 0; k < calls; ++k) work();
    wait();
    rounds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / calls);
  }
  std::sort(rounds.begin() + 1, rounds.end());
  return rounds[3];
}

template <class T>
Matrix<T> random_matrix(Backend<T>& backend, Size rows, Size cols) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  Matrix<T> here(rows, cols), there(rows, cols, backend.memory());
  for (Size i = 0; i < here.size(); ++i) here.data()[i] = static_cast<T>(normal(engine));
  backend.template transfer<T>(here, there);
  return there;
}

template <class T>
void bench(const char* precision) {
  const auto owner = make_cuda_backend<T>();
  auto& backend = *owner;
  const auto line = [&](const char* what, double seconds, double flops, double bytes) {
    fmt::print("{:7} {:34} {:9.1f} us {:8.2f} TFLOP/s {:8.1f} GB/s\n", precision, what, 1e6 * seconds,
               flops / seconds / 1e12, bytes / seconds / 1e9);
  };
  const auto size = [](Size n) { return static_cast<double>(n) * sizeof(T); };
  auto V = random_matrix(backend, d, D), H = random_matrix(backend, d, m), Q = random_matrix(backend, d, d);
  auto G = random_matrix(backend, d, m), M = random_matrix(backend, m, m), O = Matrix<T>(m, D, backend.memory());
  Matrix<double> dots(m, 1, backend.memory());

  struct Product {
    const char* what;
    Op op_a, op_b;
    MatrixView<T> A, B, C;
  };
  for (const auto& [what, op_a, op_b, A, B, C] :
       {Product{"gemm d x m, d deep: Q H", Op::none, Op::none, Q, H, G},
        Product{"gemm m x m, d deep: HtH", Op::transpose, Op::none, H, H, M},
        Product{"gemm d x d, m deep: H Gt", Op::none, Op::transpose, H, G, Q},
        Product{"gemm m x D, d deep: all outputs", Op::transpose, Op::none, H, V, O}}) {
    const GemmShape shape{op_a, op_b, C.rows, C.cols, op_a == Op::none ? A.cols : A.rows};
    const int calls = shape.flops() > 1e9 ? 10 : 200;
    line(what, time(backend, calls, [&] { backend.gemm(op_a, op_b, T(1), A, B, T(0), C); }), shape.flops(),
         size(A.size() + B.size() + C.size()));
  }

  std::vector<std::int64_t> offsets(m + 1);
  std::iota(offsets.begin(), offsets.end(), 0);
  std::vector<Index> indices;
  std::mt19937 engine(2);
  for (Size j = 0; j < m; ++j) indices.push_back(static_cast<Index>(engine() % D));
  const std::vector<T> ones(m, T(1));
  const SparseBatch<T> targets(D, offsets, indices, ones);
  RowGroups<T> groups;
  groups.assign(targets);
  const auto values = random_matrix(backend, m, 1);
  const auto rows = [&](Size reads) { return size(reads * d * m); };
  line("gather, K = 1", time(backend, 200, [&] { backend.gather(V, targets, G); }), 0, rows(2));
  line("scatter, K = 1", time(backend, 200, [&] { backend.scatter(T(1e-9), groups, values, H, V); }), 0, rows(3));
  line("column_dots d x m", time(backend, 200, [&] { backend.column_dots(G, H, dots); }), 0, rows(2));
  line("symmetrize d x d", time(backend, 200, [&] { backend.symmetrize(Q); }), 0, size(2 * d * d));
  line("add d x m", time(backend, 200, [&] { backend.add(T(1), G, T(0), H, G); }), 0, rows(3));
  line("scale V", time(backend, 10, [&] { backend.scale(T(0.9999), V); }), 0, size(2 * d * D));
  line("exponentiate_rows m x D",
       time(backend, 10, [&] { backend.exponentiate_rows(O, MatrixView<T>(M.data(), m, 1), dots); }), 0,
       size(3 * m * D));
  line("rough_squared_norm d x m (waits)", time(backend, 50, [&] { backend.rough_squared_norm(H); }), 0, rows(1));
}

}  // namespace
}  // namespace widehead

int main() {
  if (widehead::cuda_devices() == 0) {
    fmt::print(stderr, "there is no GPU here\n");
    return 1;
  }
  widehead::bench<float>("float");
  widehead::bench<double>("double");
}
