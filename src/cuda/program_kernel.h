#pragma once
/// The kernel that carries out programs, for whoever launches them.

#include "program.h"

namespace widehead::cuda {

/// Programs of operations in T from now on.
template <class T>
void prepare_programs(Program& program, const Device& device);

}  // namespace widehead::cuda
