/// Memory of the host's for more columns than the device has room for.

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <optional>
#include <string>

#include "program.h"
#include "resources.h"
#include "widehead/errors.h"

namespace widehead::cuda {
namespace {

std::optional<std::size_t> number_in(const char* path) {
  std::ifstream file(path);
  std::size_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;  // "max" is no number
}

/// Bytes that this process can have before the system or its container ends somebody: pinned pages cannot be given
/// back, and what takes the last of them is not told so by an error.
std::size_t bytes_to_be_had() {
  std::size_t least = std::numeric_limits<std::size_t>::max();
  std::ifstream memory("/proc/meminfo");
  for (std::string name; memory >> name;) {
    if (std::size_t kib = 0; name == "MemAvailable:" && memory >> kib) least = kib * 1024;
  }
  const auto within = [&](const char* limit, const char* used) {
    const auto most = number_in(limit), now = number_in(used);
    if (most && now) least = std::min(least, *most > *now ? *most - *now : 0);
  };
  within("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
  within("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes");
  return least;
}

}  // namespace

/// Pages of the system, which are zero, and then pinned where they are: nobody need write them. Where the driver does
/// not take pages that it has not allocated itself, or knows them by another address, it allocates some, which are
/// cleared, since it does not say what they hold.
void* ColumnMemory::allocate(std::size_t bytes) {
  const std::size_t free = bytes_to_be_had();
  if (bytes > free / 20 * 19) {
    throw BackendError(
        fmt::format("{} bytes are to be pinned in the host's memory, but of that {} are free", bytes, free));
  }
  device_.make_current();
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), room = (bytes + page - 1) / page * page;
  void* block = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) throw std::bad_alloc();
  madvise(block, room,
          MADV_HUGEPAGE);  // all of it is resident from here on: fewer faults, and fewer entries to look up
  if (cudaHostRegister(block, room, cudaHostRegisterPortable | cudaHostRegisterMapped) == cudaSuccess) {
    void* there = nullptr;
    if (cudaHostGetDevicePointer(&there, block, 0) == cudaSuccess && there == block) {
      const std::lock_guard lock(mutex_);
      registered_[block] = room;
      return block;
    }
    cudaHostUnregister(block);
  }
  cudaGetLastError();
  munmap(block, room);
  const auto status = cudaHostAlloc(&block, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw std::bad_alloc();
  }
  check(status, "cudaHostAlloc");
  std::memset(block, 0, bytes);
  return block;
}

void ColumnMemory::release(void* block) noexcept {
  try {
    program_.start();
    check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");  // unmapping waits for nobody
  } catch (...) {  // the device has failed, and says so again when next it is asked
  }
  const std::lock_guard lock(mutex_);
  const auto found = registered_.find(block);
  if (found == registered_.end()) {
    cudaFreeHost(block);
    return;
  }
  cudaHostUnregister(block);
  munmap(block, found->second);
  registered_.erase(found);
}

}  // namespace widehead::cuda
