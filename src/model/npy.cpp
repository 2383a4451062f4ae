#include "widehead/model/npy.h"

#include <fmt/format.h>

#include <bit>

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
NpyWriter<T>::NpyWriter(const std::string& path, Size rows, Size dim)
    : RowWriter<T>(path, npy_header(descr<T>(), rows, dim), rows, dim) {}

template class NpyWriter<float>;
template class NpyWriter<double>;

}  // namespace widehead
