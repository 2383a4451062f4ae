#pragma once
/// A matrix written to a file block by block, after a header: what formats of bare arrays have in common. Our d x rows,
/// one row of W or V per column, has the very bytes of an array of shape (rows, d) in C order.

#include <string>

#include "widehead/data/output_file.h"
#include "widehead/matrix.h"

namespace widehead {

/// The file appears when it is finished.
template <class T>
class RowWriter {
 public:
  RowWriter(const std::string& path, const std::string& header, Size rows, Size dim);

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
