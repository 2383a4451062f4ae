#pragma once
/// The loss of each example, and their sum.

#include <cmath>
#include <utility>
#include <variant>

#include "sums.cuh"
#include "widehead/loss.h"

namespace widehead::cuda {

inline constexpr Index few_targets = 4;
/// What is known of an example and its targets, for few of them, and what the loss says of it.
template <class T>
struct FewOutputs {
  double o[few_targets], y[few_targets];
  T g[few_targets], a;
  Index first, count, entries[few_targets];
};

/// Example j, by one thread: the loss itself goes over its targets. Its q may be at hand, and o with whatever else is
/// known.
template <class L, class T>
__device__ __noinline__ void judge_example(const L& loss, const Judge<T>& x, Size j, double q, FewOutputs<T>* known) {
  const auto& Y = x.Y;
  const Index first = known != nullptr ? known->first : Y.example_starts[j],
              count = known != nullptr ? known->count : Y.example_starts[j + 1] - first;
  const bool is_known = known != nullptr && count <= few_targets;
  const auto entry = [&](Index k) { return is_known ? known->entries[k] : Y.by_example[first + k]; };
  double here[3 * few_targets];  // instead of the room, which is farther away
  double *o = count <= few_targets ? here : x.room + 3 * static_cast<Size>(first), *y = o + count, *g = y + count;
#pragma unroll 1
  for (Index k = 0; k < count; ++k) {
    const Index e = entry(k);
    o[k] = is_known ? known->o[k] : x.o[e];
    y[k] = is_known ? known->y[k] : static_cast<double>(Y.values[e]);
    g[k] = 0;
  }
  const auto size = static_cast<std::size_t>(count);
  const LossInput input{q, L::uses_sum ? x.s[j] : 0.0, x.outputs, std::span<const double>(o, size),
                        std::span<const double>(y, size)};
  const LossValue value = loss(input, std::span<double>(g, size));
  const double weight = x.weights == nullptr ? 1.0 : static_cast<double>(x.weights[j]);
  double gamma = 0, poison = value.L + value.a + value.b;
#pragma unroll 1
  for (Index k = 0; k < count; ++k) {
    const double weighted = weight * g[k];
    const T rounded = static_cast<T>(weighted);
    x.g[entry(k)] = rounded;
    if (is_known) known->g[k] = rounded;
    gamma += weighted;
    poison += static_cast<double>(rounded);
  }
  const T a = static_cast<T>(weight * value.a), b = static_cast<T>(weight * value.b), sum = static_cast<T>(gamma);
  x.a[j] = a;
  if (known != nullptr) known->a = a;
  x.b[j] = b;
  x.gamma[j] = sum;
  const bool bad = !isfinite(poison) || !isfinite(a + b + sum) || (!L::uses_sum && value.b != 0);
  x.out.L[j] = weight * value.L;
  x.out.largest_a[j] = static_cast<double>(a < T(0) ? -a : a);
  x.out.bad[j] = bad ? j : nobody;
  x.out.value[3 * j] = value.L;
  x.out.value[3 * j + 1] = value.a;
  x.out.value[3 * j + 2] = value.b;
}

template <class T, std::size_t... numbers>
__device__ void judge_with(const Judge<T>& x, Size j, double q, FewOutputs<T>* known, std::index_sequence<numbers...>) {
  const auto with = [&]<std::size_t number>() {
    using L = std::variant_alternative_t<number, Loss>;
    if (x.loss == static_cast<int>(number)) judge_example(*reinterpret_cast<const L*>(x.parameters), x, j, q, known);
  };
  (with.template operator()<numbers>(), ...);
}

/// All but CustomLoss, the last.
inline constexpr std::make_index_sequence<std::variant_size_v<Loss> - 1> device_losses = {};

/// A thread of every warp has an example: their ways through a loss differ.
template <class T>
__device__ void judge_tile(const Judge<T>& x, int tile) {
  const Size j = static_cast<Size>(tile) * dots_each + threadIdx.x / warp_size;
  if (threadIdx.x % warp_size != 0 || j >= x.examples) return;
  judge_with<T>(x, j, x.q[j], nullptr, device_losses);
}

/// Half a block, of which every thread comes here.
__device__ __forceinline__ void meet_half(int half) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + half), "n"(program_threads / judged_at_once) : "memory");
}

/// Elements of columns that a thread has at hand: of every `step` rows one, from its own on.
inline constexpr int rows_held = 4;
template <int step, class F>
__device__ __forceinline__ void for_held_rows(int first, int rows, const F& f) {
#pragma unroll
  for (int p = 0; p < rows_held; ++p) {
    const int i = first + p * step;
    f(p, i < rows ? i : 0, i < rows);  // all are read, so that nothing waits for anything
  }
}

/// Half a block has an example: its q, its o one after the other, and then, by one thread, the loss. Of a dot product
/// each warp has a part; the parts of one target after another lie in two places in turns, so that they are read in
/// peace. What follows from the loss, Γ̂ and the gradient, is again for all threads.
template <class T>
__device__ void observe_and_judge_tile(const ObserveAndJudge<T>& all, int tile) {
  constexpr int threads = program_threads / judged_at_once, warps = threads / warp_size;
  const auto& x = all.observe;
  const int half = static_cast<int>(threadIdx.x) / threads, thread = static_cast<int>(threadIdx.x) % threads;
  const int j = tile * judged_at_once + half;
  if (j >= x.examples) return;
  auto* parts = reinterpret_cast<double2*>(pool()) + half * 2 * warps;
  auto& known = reinterpret_cast<FewOutputs<T>*>(reinterpret_cast<double2*>(pool()) + judged_at_once * 2 * warps)[half];
  const Index start = x.Y.example_starts[j], count = x.Y.example_starts[j + 1] - start;
  const bool few = count <= few_targets;
  const T *h = &x.H(0, j), *h_hat = &x.H_hat(0, j), *u = &x.UH(0, j);
  T own_h_hat[rows_held], own_w[rows_held];  // in the end, of the last rows and the last target
  double q = 0;
  for (Index k = 0; k == 0 || k < count; ++k) {
    const bool has_target = k < count;
    const Index e = has_target ? x.Y.by_example[start + k] : Index{0},
                group = has_target ? x.Y.group_by_example[start + k] : Index{0};
    const bool has_sum = has_target && x.has_sums;
    const T *z = has_target ? &x.Z(0, group) : h, *sum = has_sum ? &x.sums(0, group) : h;
    const T y = has_target ? x.Y.values[e] : T(0);
    double of_q = 0, of_o = 0;
    for (int first = thread; first < x.rows; first += rows_held * threads) {
      T own_h[rows_held], own_u[rows_held], own_z[rows_held], own_sum[rows_held];
      for_held_rows<threads>(first, x.rows, [&](int p, int i, bool) {
        own_h[p] = h[i], own_h_hat[p] = h_hat[i], own_u[p] = u[i], own_z[p] = z[i], own_sum[p] = sum[i];
      });
      for_held_rows<threads>(first, x.rows, [&](int p, int, bool there) {
        const double h_p = there ? static_cast<double>(own_h[p]) : 0;
        of_q += h_p * static_cast<double>(own_h_hat[p]);
        if (there && has_target) of_o += static_cast<double>(own_z[p]) * static_cast<double>(own_u[p]);
        if (has_sum) of_o += static_cast<double>(own_sum[p]) * h_p;
        own_w[p] = has_sum ? own_z[p] + own_sum[p] : own_z[p];
      });
    }
    const double2 part = {combine_warp(of_q, Plus{}), combine_warp(of_o, Plus{})};
    double2* here = parts + k % 2 * warps;
    if (thread % warp_size == 0) here[thread / warp_size] = part;
    meet_half(half);
    if (thread != 0) continue;
    double o = 0;
    for (int w = 0; w < warps; ++w) {
      if (k == 0) q += here[w].x;
      o += here[w].y;
    }
    if (!has_target) break;
    x.o[e] = o;
    if (few) known.o[k] = o, known.y[k] = static_cast<double>(y), known.entries[k] = e;
  }
  if (thread == 0) {
    x.q[j] = q;
    known.first = start, known.count = count;
    judge_with(all.judge, j, q, &known, device_losses);
  }
  if (!all.combines) return;
  meet_half(half);
  const T a = all.a_is_one ? T(1) : known.a;
  const auto write = [&](int i, T gamma, T h_hat_i) {
    all.Gamma_hat(i, j) = gamma;
    if (!all.splits) return;
    const T scaled = a * h_hat_i, gradient = 2 * scaled + gamma;
    all.grad(i, j) = gradient;
    all.C(i, j) = scaled + gamma;
    all.H_hat(i, j) = all.c * gradient;
  };
  if (count == 1 && x.rows <= rows_held * threads) {
    const T g = known.g[0];
    for_held_rows<threads>(thread, x.rows, [&](int p, int i, bool there) {
      if (there) write(i, g * own_w[p], own_h_hat[p]);
    });
    return;
  }
  for (int i = thread; i < x.rows; i += threads) {
    T gamma = 0;
    for (Index k = 0; k < count; ++k) {
      const Index group = x.Y.group_by_example[start + k];
      const T w = x.has_sums ? x.Z(i, group) + x.sums(i, group) : x.Z(i, group);
      gamma += (few ? known.g[k] : all.judge.g[x.Y.by_example[start + k]]) * w;
    }
    write(i, gamma, h_hat[i]);
  }
}

/// By one block, in a fixed order.
__device__ inline void summarize_tile(const Summarize& x) {
  double L = 0, largest_a = 0;
  Size bad = nobody;
  for (int j = static_cast<int>(threadIdx.x); j < x.examples; j += program_threads) {
    L += x.of.L[j];
    largest_a = Larger{}(largest_a, x.of.largest_a[j]);
    bad = Smaller{}(bad, x.of.bad[j]);
  }
  L = combine_block(L, Plus{});
  largest_a = combine_block(largest_a, Larger{});
  bad = combine_block(bad, Smaller{});
  if (threadIdx.x != 0) return;
  if (x.ledger != nullptr) {  // for judge_later
    x.ledger[0] += L;
    x.ledger[1] += bad == nobody ? 0 : 1;
    return;
  }
  x.summary->L = L;
  x.summary->largest_a = largest_a;
  x.summary->bad = bad;
  for (int k = 0; k < 3; ++k) x.summary->at_bad[k] = bad == nobody ? 0 : x.of.value[3 * bad + k];
}

}  // namespace widehead::cuda
