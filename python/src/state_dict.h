#pragma once
/// States (state.h) as a dict of NumPy arrays, for pickles and for PyTorch's state_dict.

#include <functional>

#include "module.h"
#include "widehead/state.h"

namespace widehead::python {

/// Copies of all arrays that `visit` lists. Called without the GIL.
nb::dict save_to_dict(const std::function<void(StateVisitor&)>& visit);
/// Loads what `visit` lists, which must be all there is. Called without the GIL.
/// @throws FileError naming what is missing, does not fit, or is left over
void load_from_dict(const nb::dict& state, const std::function<void(StateVisitor&)>& visit);

}  // namespace widehead::python
