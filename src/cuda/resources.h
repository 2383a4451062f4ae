#pragma once
/// What CUDA hands out, each with an owner that gives it back.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "check.h"
#include "widehead/memory.h"

namespace widehead::cuda {

class Program;

/// A device that exists, and the thread's current one from here on.
class Device {
 public:
  /// @throws BackendError where there is no device, std::invalid_argument for a number that is none of theirs
  explicit Device(int number);
  int number() const { return number_; }
  void make_current() const { check(cudaSetDevice(number_), "cudaSetDevice"); }

 private:
  int number_;
};

/// Work in order. It does not wait for the default stream, nor that for it.
class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  /// @param flags  cudaEventDefault for one that tells the time
  explicit Event(unsigned flags = cudaEventDisableTiming) {
    check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags");
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  /// Returns at once where nothing was recorded.
  void wait() { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  /// What comes on that stream waits; not the host.
  void block(cudaStream_t stream) { check(cudaStreamWaitEvent(stream, event_), "cudaStreamWaitEvent"); }
  /// From another that tells the time to this one, which have both been reached.
  double seconds_since(const Event& start) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Matrices on the device. Allocation and release wait for the device: they are rare.
class DeviceMemory final : public Memory {
 public:
  /// @param program  to be started before anything is released, since it may use that; or nullptr
  DeviceMemory(const Device& device, const Stream& stream, Program* program)
      : device_(device), stream_(stream), program_(program) {}
  void* allocate(std::size_t bytes) override;
  void release(void* block) noexcept override;
  bool is_host() const override { return false; }

 private:
  const Device& device_;
  const Stream& stream_;
  Program* program_;
};

/// Matrices of the host that the device copies from and to without a detour.
class PinnedMemory final : public Memory {
 public:
  void* allocate(std::size_t bytes) override;
  void release(void* block) noexcept override;
  bool is_host() const override { return true; }
};

/// Matrices of the host that kernels read and write where they are, over the bus. Zero without being written.
class ColumnMemory final : public Memory {
 public:
  ColumnMemory(const Device& device, const Stream& stream, Program& program)
      : device_(device), stream_(stream), program_(program) {}
  /// @throws BackendError also where the host has not so much memory left
  void* allocate(std::size_t bytes) override;
  void release(void* block) noexcept override;
  bool is_host() const override { return true; }

 private:
  const Device& device_;
  const Stream& stream_;
  Program& program_;
  std::mutex mutex_;
  std::map<void*, std::size_t> registered_;  // blocks that are not the driver's own, and their bytes
};

/// Bytes in a Memory that grow to the most ever asked for. What they held is lost then, and nobody may be at work on
/// it: growing waits for the device.
class Buffer {
 public:
  explicit Buffer(Memory& memory) : memory_(&memory) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { drop(); }

  template <class U>
  U* room(std::size_t count) {
    reserve(count * sizeof(U));
    return static_cast<U*>(data_);
  }

 private:
  void reserve(std::size_t bytes);
  void drop() noexcept;

  Memory* memory_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// cuBLAS on a stream, with a workspace of its own. It is started by the first who asks, since that takes longer than
/// many a program of small products that never does.
class Blas {
 public:
  Blas(const Stream& stream, Memory& memory, cublasMath_t math) : stream_(stream), workspace_(memory), math_(math) {}
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  ~Blas();
  cublasHandle_t get();

 private:
  const Stream& stream_;
  Buffer workspace_;
  cublasMath_t math_;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace widehead::cuda
