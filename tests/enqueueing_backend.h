#pragma once
/// A CPU that the heads take for a device which works by itself: they enqueue their steps. It counts how often it is
/// asked for something that a device would have to be waited for.

#include "../src/cpu/cpu_backend.h"

namespace widehead::test {

template <class T>
class EnqueueingBackend final : public CpuBackend<T> {
 public:
  EnqueueingBackend() : CpuBackend<T>(1) {}
  std::int64_t waits = 0;

  bool factorizes_fast() const override { return false; }
  bool takes_parts_at_once() const override { return true; }

  void wait() override { ++waits; }
  void transfer_bytes(const void* from, std::size_t from_stride, void* to, std::size_t to_stride, std::size_t width,
                      std::size_t count) override {
    ++waits;
    CpuBackend<T>::transfer_bytes(from, from_stride, to, to_stride, width, count);
  }
  double dot(ConstView<T> A, ConstView<T> B) override {
    ++waits;
    return CpuBackend<T>::dot(A, B);
  }
  T rough_squared_norm(ConstView<T> A) override {
    ++waits;
    return CpuBackend<T>::rough_squared_norm(A);
  }
  Size find_non_finite(ConstView<T> A) override {
    ++waits;
    return CpuBackend<T>::find_non_finite(A);
  }
  Verdict judge(const Loss& loss, Size outputs, const RowGroups<T>& Y, std::span<const T> weights,
                const Judged<T>& x) override {
    ++waits;
    return CpuBackend<T>::judge(loss, outputs, Y, weights, x);
  }

  // Made of the above on the CPU, and of kernels on a device.
  void squared_norm(ConstView<T> A, double beta, MatrixView<double> out) override {
    const auto before = waits;
    CpuBackend<T>::squared_norm(A, beta, out);
    waits = before;
  }
  void judge_later(const Loss& loss, Size outputs, const RowGroups<T>& Y, std::span<const T> weights,
                   const Judged<T>& x, MatrixView<double> ledger) override {
    const auto before = waits;
    CpuBackend<T>::judge_later(loss, outputs, Y, weights, x, ledger);
    waits = before;
  }
};

}  // namespace widehead::test
