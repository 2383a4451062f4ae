#include "widehead/model/row_writer.h"

#include <fmt/format.h>

#include <stdexcept>

namespace widehead {

template <class T>
RowWriter<T>::RowWriter(const std::string& path, const std::string& header, Size rows, Size dim)
    : file_(path), rows_(rows), dim_(dim) {
  if (rows < 0 || dim < 0) throw std::invalid_argument(fmt::format("{}: shape ({}, {})", path, rows, dim));
  file_.write(header);
}

template <class T>
void RowWriter<T>::write(ConstView<T> block) {
  if (block.rows != dim_) {
    throw std::invalid_argument(
        fmt::format("{}: a block with d = {}, but the file has {}", file_.path(), block.rows, dim_));
  }
  if (block.cols > rows_ - written_) {
    throw std::invalid_argument(
        fmt::format("{}: {} rows after {}, but the file has {}", file_.path(), block.cols, written_, rows_));
  }
  for (Size j = 0; j < block.cols; ++j) {
    file_.write_values(std::span<const T>(block.column(j), static_cast<std::size_t>(dim_)));
  }
  written_ += block.cols;
}

template <class T>
void RowWriter<T>::finish() {
  if (written_ != rows_) {
    throw std::invalid_argument(
        fmt::format("{}: {} rows were written, but the file has {}", file_.path(), written_, rows_));
  }
  file_.commit();
}

template class RowWriter<float>;
template class RowWriter<double>;

}  // namespace widehead
