#pragma once
/// Where matrices live: the host's memory, or a device's.

#include <cstddef>

namespace widehead {

class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  /// Zeroed bytes, aligned to a cache line at least. @throws std::bad_alloc
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* block) noexcept = 0;
  /// Whether the host can read and write it as its own.
  virtual bool is_host() const = 0;

  /// The host's. Large blocks start as untouched zero pages, so that they take no time and no memory until written.
  static Memory& host();
};

}  // namespace widehead
