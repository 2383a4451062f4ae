/// The entry point libFuzzer calls; WIDEHEAD_FUZZ_TARGET is a function of targets.h.

#include <cstddef>
#include <cstdint>

#include "targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  widehead::fuzz::WIDEHEAD_FUZZ_TARGET(std::as_bytes(std::span(data, size)));
  return 0;
}
