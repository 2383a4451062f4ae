#pragma once
/// A dense hidden layer: A = s(W X + b1ᵀ), W (out x in).

#include <vector>

#include "widehead/random.h"
#include "widehead/train/parameter.h"

namespace widehead {

struct HiddenLayerOptions {
  Size in = 0, out = 0;
  Activation activation = Activation::relu;
  Optimizer optimizer = Optimizer::adam;
};

template <class T>
class HiddenLayer {
 public:
  /// W starts normal with variance 2/in for relu, 1/in otherwise, which keeps the scale of what passes through.
  HiddenLayer(Backend<T>& backend, const HiddenLayerOptions& options, const Random& random);

  Size in() const { return options_.in; }
  Size out() const { return options_.out; }
  /// A (out x m), valid until the next call.
  ConstView<T> forward(Backend<T>& backend, ConstView<T> X);
  /// From ∂L/∂A, which is overwritten, the gradients of W and b and grad_X ← ∂L/∂X. After forward with the same X.
  void backward(Backend<T>& backend, ConstView<T> X, MatrixView<T> grad_A, MatrixView<T> grad_X);
  bool gradient_is_finite(Backend<T>& backend) const;
  double squared_gradient_norm(Backend<T>& backend) const;
  // The same without waiting: adds ‖gradient‖² to `sum`, and limits the gradient by the norm of which that is the
  // square.
  void add_squared_gradient_norm(Backend<T>& backend, MatrixView<double> sum) const;
  void limit_gradient(Backend<T>& backend, ConstView<double> sum, double limit);
  bool is_finite(Backend<T>& backend) const;  ///< of all parameters
  void update(Backend<T>& backend, const Update& update);

  void visit_state(StateVisitor& state, Backend<T>& backend);

 private:
  HiddenLayerOptions options_;
  Parameter<T> W_;  // out x in
  Parameter<T> b_;  // out x 1
  // of a step
  Matrix<T> A_;       // out x m
  Matrix<T> grad_W_;  // out x in
  Matrix<T> grad_b_;  // out x 1
};

}  // namespace widehead
