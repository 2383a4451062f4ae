#include <csignal>
#include <cstddef>

#include "module.h"

namespace widehead::python {
namespace {

constexpr std::size_t stack_bytes = std::size_t{1} << 16;
alignas(64) std::byte stack_room[stack_bytes];  // NOLINT(modernize-avoid-c-arrays): of a C interface

}  // namespace

void give_signals_a_stack() {
  stack_t stack{};
  if (sigaltstack(nullptr, &stack) != 0 || (stack.ss_flags & SS_DISABLE) == 0) return;  // faulthandler has one, too
  stack = {};
  stack.ss_sp = stack_room;
  stack.ss_size = stack_bytes;
  sigaltstack(&stack, nullptr);
}

}  // namespace widehead::python
