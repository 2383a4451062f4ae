#pragma once
/// Matrices of the whole library: column-major, one example per column.
///
/// D x d matrices (V, W) are held transposed, as d x D: column i is the row of output i, contiguous.
/// Seen from NumPy these are the C-ordered arrays (m, d) and (D, d).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

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

/// A ← I.
template <class T>
void set_identity(MatrixView<T> A) {
  for (Size j = 0; j < A.cols; ++j) {
    std::fill_n(A.column(j), A.rows, T(0));
    A(j, j) = T(1);
  }
}

/// An owning matrix, zero at first, aligned to a cache line. Large ones start as untouched zero
/// pages, so creating them takes no time and no memory until they are written.
template <class T>
class Matrix {
 public:
  Matrix() = default;
  Matrix(Matrix&& other) noexcept
      : data_(std::move(other.data_)), rows_(std::exchange(other.rows_, 0)), cols_(std::exchange(other.cols_, 0)) {}
  Matrix& operator=(Matrix&& other) noexcept {
    data_ = std::move(other.data_);
    rows_ = std::exchange(other.rows_, 0);
    cols_ = std::exchange(other.cols_, 0);
    return *this;
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  ~Matrix() = default;

  Matrix(Size rows, Size cols) : rows_(rows), cols_(cols) {
    if (rows < 0 || cols < 0 || (rows > 0 && cols > max_elements / rows)) throw std::bad_array_new_length();
    if (rows * cols > 0) data_.reset(allocate_zeroed(static_cast<std::size_t>(rows * cols) * sizeof(T)));
  }

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
  /// scratch follows the largest minibatch seen, and stops allocating.
  MatrixView<T> scratch(Size rows, Size cols) {
    if (rows * cols > size()) *this = Matrix(rows, cols);
    return {data(), rows, cols};
  }

 private:
  static constexpr Size max_elements = PTRDIFF_MAX / static_cast<Size>(sizeof(T));
  static constexpr std::size_t alignment = 64;

  struct Free {
    void operator()(T* pointer) const { std::free(reinterpret_cast<void**>(pointer)[-1]); }
  };

  /// calloc, because the system's fresh pages are zero already; the block's own address is kept in
  /// the word before the aligned data.
  static T* allocate_zeroed(std::size_t bytes) {
    std::size_t room = bytes + alignment;
    void* block = std::calloc(1, sizeof(void*) + room);
    if (block == nullptr) throw std::bad_alloc();
    void* data = static_cast<void**>(block) + 1;
    std::align(alignment, bytes, data, room);
    static_cast<void**>(data)[-1] = block;
    return static_cast<T*>(data);
  }

  std::unique_ptr<T, Free> data_;
  Size rows_ = 0;
  Size cols_ = 0;
};

}  // namespace widehead
