#pragma once
/// A trained matrix of the layers below the head: its value, its gradient, and what its optimiser remembers.

#include <cmath>
#include <cstdint>
#include <span>

#include "widehead/adam.h"
#include "widehead/backend.h"
#include "widehead/device_state.h"
#include "widehead/matrix.h"
#include "widehead/state.h"

namespace widehead {

enum class Optimizer { sgd, adam };

/// Whether all of A is: fast, unless its square overflows.
template <class T>
bool is_finite(Backend<T>& backend, ConstView<T> A) {
  return std::isfinite(backend.rough_squared_norm(A)) || backend.find_non_finite(A) < 0;
}

/// One update of all parameters.
struct Update {
  Optimizer optimizer = Optimizer::adam;
  double eta = 0;
  AdamOptions adam;
  std::int64_t t = 1;  ///< updates taken, this one included
  double scale = 1;    ///< gradients are multiplied by this first
};

/// Columns are updated all together (a dense layer's) or a few at a time (an embedding's): then Adam's moments of
/// the others stay as they are, which is what makes an update O(columns touched).
template <class T>
class Parameter {
 public:
  Parameter() = default;
  Parameter(Backend<T>& backend, Size rows, Size cols, Optimizer optimizer) : value_(rows, cols, backend.memory()) {
    if (optimizer == Optimizer::adam) {
      mean_ = Matrix<T>(rows, cols, backend.memory());
      square_ = Matrix<T>(rows, cols, backend.memory());
    }
  }

  MatrixView<T> value() { return value_; }
  ConstView<T> value() const { return value_; }

  void update(Backend<T>& backend, const Update& update, ConstView<T> gradient) {
    if (update.optimizer == Optimizer::adam) {
      backend.adam(adam_step(update), {}, gradient, value_, mean_, square_);
    } else {
      backend.add(static_cast<T>(-update.eta * update.scale), gradient, T(1), value_, value_);
    }
  }
  /// Column k of the gradient belongs to column columns[k]; columns are distinct.
  void update_columns(Backend<T>& backend, const Update& update, std::span<const Index> columns,
                      ConstView<T> gradient) {
    if (columns.empty()) return;
    if (update.optimizer == Optimizer::adam) {
      backend.adam(adam_step(update), columns, gradient, value_, mean_, square_);
      return;
    }
    backend.add_to_columns(static_cast<T>(-update.eta * update.scale), gradient, columns, value_);
  }

  /// Whether the value is: a gradient that is not leaves nothing finite, neither with Adam nor without.
  bool is_finite(Backend<T>& backend) const { return value_.size() == 0 || widehead::is_finite<T>(backend, value_); }

  void visit_state(StateVisitor& state, Backend<T>& backend) {
    visit_block(state, backend, "value", value_.view());
    if (mean_.size() == 0) return;
    visit_block(state, backend, "adam_mean", mean_.view());
    visit_block(state, backend, "adam_square", square_.view());
  }

 private:
  static AdamStep adam_step(const Update& update) { return {update.adam, update.eta, update.t, update.scale}; }

  Matrix<T> value_;
  Matrix<T> mean_, square_;  // shaped like value_, for Adam
};

}  // namespace widehead
