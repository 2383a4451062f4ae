#include "widehead/memory.h"

#include <cstdlib>
#include <memory>
#include <new>

namespace widehead {
namespace {

constexpr std::size_t alignment = 64;

/// calloc, because the system's fresh pages are zero already; the block's own address is kept in the word before the
/// aligned data.
class HostMemory final : public Memory {
 public:
  void* allocate(std::size_t bytes) override {
    std::size_t room = bytes + alignment;
    void* block = std::calloc(1, sizeof(void*) + room);
    if (block == nullptr) throw std::bad_alloc();
    void* data = static_cast<void**>(block) + 1;
    std::align(alignment, bytes, data, room);
    static_cast<void**>(data)[-1] = block;
    return data;
  }
  void release(void* data) noexcept override { std::free(static_cast<void**>(data)[-1]); }
  bool is_host() const override { return true; }
};

}  // namespace

Memory& Memory::host() {
  static HostMemory memory;
  return memory;
}

}  // namespace widehead
