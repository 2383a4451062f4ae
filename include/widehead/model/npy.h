#pragma once
/// Matrices for NumPy: a .npy file, version 1.0, of shape (rows, d) in C order. Our d x rows, one row of W or V
/// per column, has these very bytes, and may be written block by block.

#include <string>

#include "widehead/data/output_file.h"
#include "widehead/matrix.h"

namespace widehead {

/// T is float ('<f4') or double ('<f8'). The file appears when it is finished.
template <class T>
class NpyWriter {
 public:
  NpyWriter(const std::string& path, Size rows, Size dim);

  /// The next block.cols rows.
  /// @param block  d x count, one row per column
  void write(ConstView<T> block);
  /// @throws std::invalid_argument if not all rows were written; std::system_error
  void finish();

 private:
  OutputFile file_;
  Size rows_, dim_;
  Size written_ = 0;
};

}  // namespace widehead
