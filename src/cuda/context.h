#pragma once
/// What everything of one backend shares.

#include "program.h"
#include "resources.h"

namespace widehead::cuda {

/// A stream of a device, the program that goes there next, and memory. Whatever lives in that memory may keep it alive.
struct Context {
  explicit Context(int number)
      : device(number),
        programs(device, stream, nullptr),
        program(device, stream, pinned, programs),
        memory(device, stream, &program),
        columns(device, stream, program) {}
  Device device;
  Stream stream;
  PinnedMemory pinned;
  DeviceMemory programs;  ///< where they lie on the device
  Program program;
  DeviceMemory memory;
  ColumnMemory columns;
};

}  // namespace widehead::cuda
