/// widehead._core: the library as Python sees it, without comforts. Arrays are made by the callers
/// (python/widehead/*.py), which also convert what users pass; here they are checked for what memory safety needs.

#include "module.h"

#include "widehead/version.h"

NB_MODULE(_core, m) {
  using namespace widehead::python;
  m.attr("__version__") = WIDEHEAD_VERSION;
  nb::set_leak_warnings(false);  // a global tensor of the user that is alive when Python ends is no leak
  give_signals_a_stack();
  add_errors(m);
  add_targets(m);
  add_layers(m);
  add_files(m);
  add_training(m);
}
