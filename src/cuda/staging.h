#pragma once
/// The way of the host's small lists (indices, offsets, weights) to the device: packed into pinned memory, one copy for
/// each operation, and nobody waits unless the device is a whole ring of uploads behind.

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "resources.h"

namespace widehead::cuda {

/// The lists of one operation. First all are taken and written, then `send`; the addresses on the device may be given
/// to what is launched next.
class Upload {
 public:
  /// What a list takes up, so that the next one is aligned.
  template <class U>
  static std::size_t bytes(std::size_t count) {
    return (count * sizeof(U) + 15) / 16 * 16;
  }

  template <class U>
  struct List {
    U* host;
    const U* device;
  };
  /// The next list; nullptr, both of them, where it has no elements.
  template <class U>
  List<U> take(std::size_t count) {
    if (count == 0) return {nullptr, nullptr};
    const List<U> list{reinterpret_cast<U*>(host_ + used_), reinterpret_cast<const U*>(device_ + used_)};
    used_ += bytes<U>(count);
    return list;
  }
  template <class U>
  const U* put(std::span<const U> values) {
    const auto list = take<U>(values.size());
    std::copy(values.begin(), values.end(), list.host);
    return list.device;
  }
  void send(cudaStream_t stream) {
    if (used_ == 0) return;
    check(cudaMemcpyAsync(device_, host_, used_, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    sent_->record(stream);
  }

 private:
  friend class Staging;
  Upload(std::byte* host, std::byte* device, Event& sent) : host_(host), device_(device), sent_(&sent) {}

  std::byte* host_;
  std::byte* device_;
  Event* sent_;
  std::size_t used_ = 0;
};

class Staging {
 public:
  Staging(Memory& pinned, Memory& device) : pinned_(pinned), device_(device) {}

  /// An upload of at most so many bytes (Upload::bytes, added up).
  Upload begin(std::size_t bytes) { return begin(bytes, next_slot().device.room<std::byte>(bytes)); }
  /// The same, to a place of the caller's.
  Upload begin(std::size_t bytes, std::byte* to) {
    Slot& slot = next_slot();
    next_ = (next_ + 1) % slots_.size();
    slot.sent.wait();  // its pinned bytes have been read; the device's are written in the order of the stream
    return {slot.host.room<std::byte>(bytes), to, slot.sent};
  }

 private:
  struct Slot {
    Slot(Memory& pinned, Memory& on_device) : host(pinned), device(on_device) {}
    Buffer host, device;
    Event sent;
  };
  Slot& next_slot() {
    auto& slot = slots_[next_];
    if (!slot) slot = std::make_unique<Slot>(pinned_, device_);
    return *slot;
  }

  Memory& pinned_;
  Memory& device_;
  std::array<std::unique_ptr<Slot>, 32> slots_;
  std::size_t next_ = 0;
};

}  // namespace widehead::cuda
