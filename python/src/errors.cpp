/// C++ exceptions as Python's, with the same text (errors.h says which is whose doing).

#include "widehead/errors.h"

#include <exception>
#include <stdexcept>
#include <system_error>

#include "module.h"

namespace widehead::python {
namespace {

/// OSError(errno, text), which Python turns into FileNotFoundError and the like.
void translate_system_errors(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const std::system_error& e) {
    const nb::object arguments = nb::make_tuple(e.code().value(), nb::str(e.what()));
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  } catch (const std::logic_error& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  }
}

}  // namespace

void add_errors(nb::module_& m) {
  nb::register_exception_translator(translate_system_errors);
  nb::exception<NumericalError>(m, "NumericalError", PyExc_ArithmeticError);
  nb::exception<BackendError>(m, "BackendError", PyExc_RuntimeError);
  nb::exception<FileError>(m, "FileError", PyExc_OSError);
}

}  // namespace widehead::python
