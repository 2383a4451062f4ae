#pragma once
/// A CPU that the heads take for a device which works by itself, and on several operations at the same time: they
/// enqueue their steps, and take the ways with few that wait for others. It counts how often it is asked for something
/// that a device would have to be waited for.

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "../src/cpu/cpu_backend.h"

namespace widehead::test {

template <class T>
class EnqueueingBackend : public CpuBackend<T> {
 public:
  EnqueueingBackend() : CpuBackend<T>(1) {}
  std::int64_t waits = 0;
  std::int64_t submits = 0;

  bool factorizes_fast() const override { return false; }
  bool overlaps(const GemmShape&) const override { return true; }
  bool takes_parts_at_once() const override { return true; }

  void wait() override { ++waits; }
  void submit() override { ++submits; }
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

/// Memory that knows its blocks.
class CountedMemory final : public Memory {
 public:
  explicit CountedMemory(bool is_host) : is_host_(is_host) {}
  void* allocate(std::size_t bytes) override {
    void* block = Memory::host().allocate(bytes);
    blocks_[static_cast<const char*>(block)] = bytes;
    return block;
  }
  void release(void* block) noexcept override {
    blocks_.erase(static_cast<const char*>(block));
    Memory::host().release(block);
  }
  bool is_host() const override { return is_host_; }
  bool has(const void* address) const {
    auto behind = blocks_.upper_bound(static_cast<const char*>(address));
    if (behind == blocks_.begin()) return false;
    --behind;
    return static_cast<const char*>(address) < behind->first + behind->second;
  }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const auto& [block, size] : blocks_) sum += size;
    return sum;
  }

 private:
  bool is_host_;
  std::map<const char*, std::size_t> blocks_;
};

/// And a CPU whose memory is not the host's, with columns in another that only move_columns may be given, and that
/// counts which of them it reads and writes.
template <class T>
class FakeDevice final : public EnqueueingBackend<T> {
 public:
  std::size_t free_bytes = 1 << 20;
  std::vector<Index> columns_read, columns_written;

  std::string device() const override { return "fake"; }
  CountedMemory& memory() override { return memory_; }
  CountedMemory& column_memory() override { return columns_; }
  std::size_t free_memory() const override { return free_bytes; }
  bool can_reach(const void* address) const override { return address == nullptr || memory_.has(address); }

  void move_columns(ConstView<T> A, std::span<const Index> from, std::span<const Index> to, MatrixView<T> C) override {
    if (columns_.has(A.data)) {
      for (const Index column : from) {
        if (column != Backend<T>::no_column) columns_read.push_back(column);
      }
    }
    if (columns_.has(C.data)) columns_written.insert(columns_written.end(), to.begin(), to.end());
    CpuBackend<T>::move_columns(A, from, to, C);
  }
  void express_columns(ConstView<T> V, std::span<const Index> rows, ConstView<T> matrices,
                       std::span<const Index> matrix, bool adds, MatrixView<T> Z) override {
    EXPECT_TRUE(memory_.has(V.data)) << "express_columns would fetch a row many times";
    CpuBackend<T>::express_columns(V, rows, matrices, matrix, adds, Z);
  }
  void gemm(Op op_a, Op op_b, T alpha, ConstView<T> A, ConstView<T> B, T beta, MatrixView<T> C) override {
    EXPECT_TRUE(is_here(A) && is_here(B) && is_here(C)) << "not in the device's memory";
    CpuBackend<T>::gemm(op_a, op_b, alpha, A, B, beta, C);
  }
  void copy(ConstView<T> A, MatrixView<T> C) override {
    EXPECT_TRUE(is_here(A) && is_here(C)) << "not in the device's memory";
    CpuBackend<T>::copy(A, C);
  }

 private:
  bool is_here(ConstView<T> A) const { return A.size() == 0 || memory_.has(A.data); }

  CountedMemory memory_{false}, columns_{true};
};

}  // namespace widehead::test
