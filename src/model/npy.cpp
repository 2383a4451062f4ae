#include "widehead/model/npy.h"

#include <fmt/format.h>

#include <bit>
#include <stdexcept>

namespace widehead {
namespace {

static_assert(std::endian::native == std::endian::little, "'<f4' are the bytes of memory");

/// "\x93NUMPY", version 1.0, the length of the rest of the header as two bytes, a Python dictionary padded with
/// spaces, a newline. Together 128 bytes, which hold any shape, and after which the data can be mapped aligned.
std::string npy_header(const char* descr, Size rows, Size dim) {
  constexpr std::size_t total = 128, prefix = 10, length = total - prefix;
  std::string header("\x93NUMPY\x01\x00", 8);
  header += {static_cast<char>(length & 0xffU), static_cast<char>(length >> 8U)};
  header += fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}, {}), }}", descr, rows, dim);
  header.resize(total - 1, ' ');
  return header + '\n';
}

template <class T>
const char* descr();
template <>
const char* descr<float>() {
  return "<f4";
}
template <>
const char* descr<double>() {
  return "<f8";
}

}  // namespace

template <class T>
NpyWriter<T>::NpyWriter(const std::string& path, Size rows, Size dim) : file_(path), rows_(rows), dim_(dim) {
  if (rows < 0 || dim < 0) throw std::invalid_argument(fmt::format("{}: shape ({}, {})", path, rows, dim));
  file_.write(npy_header(descr<T>(), rows, dim));
}

template <class T>
void NpyWriter<T>::write(ConstView<T> block) {
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
void NpyWriter<T>::finish() {
  if (written_ != rows_) {
    throw std::invalid_argument(
        fmt::format("{}: {} rows were written, but the file has {}", file_.path(), written_, rows_));
  }
  file_.commit();
}

template class NpyWriter<float>;
template class NpyWriter<double>;

}  // namespace widehead
