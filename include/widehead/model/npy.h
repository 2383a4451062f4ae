#pragma once
/// Matrices for NumPy: a .npy file, version 1.0, of shape (rows, d) in C order, written block by block.

#include <string>

#include "widehead/model/row_writer.h"

namespace widehead {

/// T is float ('<f4') or double ('<f8').
template <class T>
class NpyWriter : public RowWriter<T> {
 public:
  NpyWriter(const std::string& path, Size rows, Size dim);
};

}  // namespace widehead
