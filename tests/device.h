#pragma once
/// Matrices that a test and a backend both work on, wherever the backend's memory is.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "widehead/backend.h"

namespace widehead::test {

/// One matrix twice, the host's and the device's; whoever is asked for gets what the other was last given. A view amid
/// a larger matrix: stride > rows, and a rim that nobody may write to. Views are to be asked for anew after the other
/// side was at work. On the CPU these are two matrices as well, so that a test that mixes them up fails there, too.
template <class T>
class Both {
 public:
  template <class U>
  Both(Backend<U>& backend, Size rows, Size cols)
      : here_(rows + 5, cols + 2), there_(rows + 5, cols + 2, backend.memory()), rows_(rows), cols_(cols) {
    transfer_ = [&backend](MatrixView<const T> from, MatrixView<T> to) { backend.template transfer<T>(from, to); };
    std::fill_n(here_.data(), here_.size(), rim);
  }
  template <class U>
  Both(Backend<U>& backend, ConstView<T> A) : Both(backend, A.rows, A.cols) {
    for (Size j = 0; j < cols_; ++j) std::copy_n(A.column(j), rows_, host().column(j));
  }
  template <class U>
  Both(Backend<U>& backend, std::span<const T> column)
      : Both(backend, MatrixView<const T>(column.data(), static_cast<Size>(column.size()), 1)) {}

  MatrixView<T> host() {
    if (!current_here_) transfer_(there_, here_);
    current_here_ = true;
    return inside(here_);
  }
  MatrixView<T> device() {
    if (current_here_) transfer_(here_, there_);
    current_here_ = false;
    return inside(there_);
  }
  void fill(T value) {
    for (Size j = 0; j < cols_; ++j) std::fill_n(host().column(j), rows_, value);
  }
  T operator()(Size i, Size j) { return host()(i, j); }  ///< as the host sees it

  testing::AssertionResult rim_is_intact() {
    host();
    auto copy = Matrix<T>::copy_of(here_);
    for (Size j = 0; j < cols_; ++j) std::fill_n(inside(copy).column(j), rows_, rim);
    const bool intact = std::all_of(copy.data(), copy.data() + copy.size(), [](T value) { return value == rim; });
    return intact ? testing::AssertionSuccess()
                  : testing::AssertionFailure() << "something outside the view was written";
  }

 private:
  static constexpr T rim = T(777);
  MatrixView<T> inside(MatrixView<T> whole) const { return whole.block(3, 1, rows_, cols_); }

  Matrix<T> here_, there_;
  Size rows_, cols_;
  bool current_here_ = true;
  std::function<void(MatrixView<const T>, MatrixView<T>)> transfer_;
};

}  // namespace widehead::test
