#pragma once
/// Matrices of the whole library: column-major, one example per column.
///
/// D x d matrices (V, W) are held transposed, as d x D: column i is the row of output i, contiguous.
/// Seen from NumPy these are the C-ordered arrays (m, d) and (D, d).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "widehead/memory.h"

namespace widehead {

using Size = std::ptrdiff_t;  ///< extents and offsets
using Index = std::int32_t;   ///< an output; D is at most 2³¹ − 1

/// A non-owning view: element (i, j) is data[i + j·stride].
template <class T>
struct MatrixView {
  T* data = nullptr;
  Size rows = 0;
  Size cols = 0;
  Size stride = 0;

  MatrixView() = default;
  MatrixView(T* data_in, Size rows_in, Size cols_in, Size stride_in)
      : data(data_in), rows(rows_in), cols(cols_in), stride(stride_in) {}
  MatrixView(T* data_in, Size rows_in, Size cols_in) : MatrixView(data_in, rows_in, cols_in, rows_in) {}

  /// A view of T is also a view of const T.
  operator MatrixView<const T>() const  // NOLINT(google-explicit-constructor): as T* to const T*
      requires(!std::is_const_v<T>) {
    return {data, rows, cols, stride};
  }

  T& operator()(Size i, Size j) const { return data[i + j * stride]; }
  T* column(Size j) const { return data + j * stride; }
  MatrixView block(Size first_row, Size first_col, Size n_rows, Size n_cols) const {
    return {data + first_row + first_col * stride, n_rows, n_cols, stride};
  }
  MatrixView columns(Size first, Size count) const { return block(0, first, rows, count); }
  Size size() const { return rows * cols; }
  bool empty() const { return data == nullptr; }
};

/// Where a template is to take either kind of view without deducing T from it.
template <class T>
using ConstView = MatrixView<const std::type_identity_t<T>>;

/// An owning matrix, zero at first, in the host's memory unless another is given: then its elements are only for the
/// backend of that memory to reach.
template <class T>
class Matrix {
 public:
  Matrix() = default;
  Matrix(Matrix&& other) noexcept
      : memory_(other.memory_),
        data_(std::move(other.data_)),
        rows_(std::exchange(other.rows_, 0)),
        cols_(std::exchange(other.cols_, 0)) {}
  Matrix& operator=(Matrix&& other) noexcept {
    memory_ = other.memory_;
    data_ = std::move(other.data_);
    rows_ = std::exchange(other.rows_, 0);
    cols_ = std::exchange(other.cols_, 0);
    return *this;
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  ~Matrix() = default;

  Matrix(Size rows, Size cols, Memory& memory = Memory::host()) : memory_(&memory), rows_(rows), cols_(cols) {
    if (rows < 0 || cols < 0 || (rows > 0 && cols > max_elements / rows)) throw std::bad_array_new_length();
    if (rows * cols == 0) return;
    const auto bytes = static_cast<std::size_t>(rows * cols) * sizeof(T);
    data_ = {static_cast<T*>(memory.allocate(bytes)), Release{&memory}};
  }
  /// Empty, to grow in that memory.
  explicit Matrix(Memory& memory) : memory_(&memory) {}

  static Matrix identity(Size n) {
    Matrix matrix(n, n);
    for (Size i = 0; i < n; ++i) matrix(i, i) = T(1);
    return matrix;
  }
  static Matrix copy_of(MatrixView<const T> source) {
    Matrix matrix(source.rows, source.cols);
    for (Size j = 0; j < source.cols; ++j) {
      std::copy_n(source.column(j), source.rows, matrix.view().column(j));
    }
    return matrix;
  }

  Size rows() const { return rows_; }
  Size cols() const { return cols_; }
  Size size() const { return rows_ * cols_; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator()(Size i, Size j) { return data_.get()[i + j * rows_]; }
  const T& operator()(Size i, Size j) const { return data_.get()[i + j * rows_]; }

  MatrixView<T> view() { return {data(), rows_, cols_}; }
  MatrixView<const T> view() const { return {data(), rows_, cols_}; }
  operator MatrixView<T>() { return view(); }              // NOLINT(google-explicit-constructor)
  operator MatrixView<const T>() const { return view(); }  // NOLINT(google-explicit-constructor)

  /// Makes the matrix at least rows x cols of room; contents are lost when it must grow. This is how
  /// scratch follows the largest minibatch seen, and stops allocating: what grows again gets a quarter more.
  MatrixView<T> scratch(Size rows, Size cols) {
    if (rows * cols > size()) *this = Matrix(rows, cols + (size() > 0 ? cols / 4 : 0), *memory_);
    return {data(), rows, cols};
  }

 private:
  static constexpr Size max_elements = PTRDIFF_MAX / static_cast<Size>(sizeof(T));

  struct Release {
    Memory* memory = nullptr;
    void operator()(T* data) const { memory->release(data); }
  };

  Memory* memory_ = &Memory::host();
  std::unique_ptr<T, Release> data_;
  Size rows_ = 0;
  Size cols_ = 0;
};

}  // namespace widehead
