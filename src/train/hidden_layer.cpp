#include "widehead/train/hidden_layer.h"

#include <cmath>

#include "initialize.h"

namespace widehead {

template <class T>
HiddenLayer<T>::HiddenLayer(Backend<T>& backend, const HiddenLayerOptions& options, const Random& random)
    : options_(options),
      W_(backend, options.out, options.in, options.optimizer),
      b_(backend, options.out, 1, options.optimizer),
      A_(backend.memory()),
      grad_W_(options.out, options.in, backend.memory()),
      grad_b_(options.out, 1, backend.memory()) {
  const double gain = options.activation == Activation::relu ? 2 : 1;
  fill_normal<T>(random, std::sqrt(gain / static_cast<double>(options.in)), backend, W_.value());
}

template <class T>
ConstView<T> HiddenLayer<T>::forward(Backend<T>& backend, ConstView<T> X) {
  const auto A = A_.scratch(options_.out, X.cols);
  backend.gemm(Op::none, Op::none, T(1), W_.value(), X, T(0), A);  // W X
  backend.activate(options_.activation, b_.value(), A);
  return A;
}

template <class T>
void HiddenLayer<T>::backward(Backend<T>& backend, ConstView<T> X, MatrixView<T> grad_A, MatrixView<T> grad_X) {
  backend.activate_backward(options_.activation, A_.scratch(options_.out, X.cols), grad_A);
  backend.gemm(Op::none, Op::transpose, T(1), grad_A, X, T(0), grad_W_);          // ∂L/∂W = G Xᵀ
  backend.sum_columns(grad_A, grad_b_);                                           // ∂L/∂b = G 1
  backend.gemm(Op::transpose, Op::none, T(1), W_.value(), grad_A, T(0), grad_X);  // ∂L/∂X = Wᵀ G
}

template <class T>
bool HiddenLayer<T>::gradient_is_finite(Backend<T>& backend) const {
  return widehead::is_finite<T>(backend, grad_W_) && widehead::is_finite<T>(backend, grad_b_);
}

template <class T>
double HiddenLayer<T>::squared_gradient_norm(Backend<T>& backend) const {
  return backend.dot(grad_W_, grad_W_) + backend.dot(grad_b_, grad_b_);
}

template <class T>
void HiddenLayer<T>::add_squared_gradient_norm(Backend<T>& backend, MatrixView<double> sum) const {
  backend.squared_norm(grad_W_, 1, sum);
  backend.squared_norm(grad_b_, 1, sum);
}

template <class T>
void HiddenLayer<T>::limit_gradient(Backend<T>& backend, ConstView<double> sum, double limit) {
  backend.limit_norm(sum, limit, grad_W_);
  backend.limit_norm(sum, limit, grad_b_);
}

template <class T>
bool HiddenLayer<T>::is_finite(Backend<T>& backend) const {
  return W_.is_finite(backend) && b_.is_finite(backend);
}

template <class T>
void HiddenLayer<T>::update(Backend<T>& backend, const Update& update) {
  W_.update(backend, update, grad_W_);
  b_.update(backend, update, grad_b_);
}

template <class T>
void HiddenLayer<T>::visit_state(StateVisitor& state, Backend<T>& backend) {
  {
    const auto scope = state.scope("weights");
    W_.visit_state(state, backend);
  }
  const auto scope = state.scope("bias");
  b_.visit_state(state, backend);
}

template class HiddenLayer<float>;
template class HiddenLayer<double>;

}  // namespace widehead
