#pragma once
/// What can go wrong, by whose doing it is:
///  - the caller's: std::invalid_argument, with the offending value and its place in the text;
///  - the numerics': NumericalError (a step that does not exist, such as a singular 1 − 2η‖h‖²);
///  - a file's: FileError, with path and line in the text;
///  - a vendor library's: BackendError, with the failing call in the text.
/// Whichever is thrown by a step, the layer is as it was before the step.

#include <stdexcept>

namespace widehead {

class NumericalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class BackendError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A file that is not what it should be: "PATH:LINE: what was found, and what was expected".
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace widehead
