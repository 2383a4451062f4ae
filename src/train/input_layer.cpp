#include "widehead/train/input_layer.h"

#include <algorithm>

#include "initialize.h"

namespace widehead {

template <class T>
InputLayer<T>::InputLayer(Backend<T>& backend, const InputLayerOptions& options, const Random& random)
    : options_(options),
      E_(backend, options.width, options.features, options.optimizer),
      A_(backend.memory()),
      grad_E_(backend.memory()),
      grad_b_(backend.memory()) {
  fill_normal<T>(random, options.initial_scale, backend, E_.value());
  if (sums()) {
    b_ = Parameter<T>(backend, options.width, 1, options.optimizer);
    grad_b_ = Matrix<T>(options.width, 1, backend.memory());
  }
}

template <class T>
ConstView<T> InputLayer<T>::forward(Backend<T>& backend, const SparseBatch<T>& X) {
  const auto A = A_.scratch(options_.width, X.examples());
  backend.gather(E_.value(), X, A);  // E X
  if (sums()) backend.activate(options_.activation, b_.value(), A);
  return ConstView<T>(A.data, width(), X.examples() / options_.slots);
}

template <class T>
void InputLayer<T>::backward(Backend<T>& backend, const SparseBatch<T>& X, MatrixView<T> grad_A) {
  const MatrixView<T> grad(grad_A.data, options_.width, X.examples());
  if (sums()) {
    backend.activate_backward(options_.activation, A_.scratch(options_.width, X.examples()), grad);
    backend.sum_columns(grad, grad_b_);
  }
  touched_.assign(X);
  backend.combine_own(touched_, grad, grad_E_.scratch(options_.width, touched_.count()));
}

template <class T>
bool InputLayer<T>::gradient_is_finite(Backend<T>& backend) const {
  return widehead::is_finite<T>(backend, ConstView<T>(grad_E_.data(), options_.width, touched_.count())) &&
         (!sums() || widehead::is_finite<T>(backend, ConstView<T>(grad_b_.data(), options_.width, 1)));
}

template <class T>
double InputLayer<T>::squared_gradient_norm(Backend<T>& backend) const {
  const ConstView<T> grad_E(grad_E_.data(), options_.width, touched_.count());
  double sum = backend.dot(grad_E, grad_E);
  if (sums()) {
    sum += backend.dot(grad_b_, grad_b_);
  }
  return sum;
}

template <class T>
void InputLayer<T>::add_squared_gradient_norm(Backend<T>& backend, MatrixView<double> sum) const {
  backend.squared_norm(ConstView<T>(grad_E_.data(), options_.width, touched_.count()), 1, sum);
  if (sums()) backend.squared_norm(grad_b_, 1, sum);
}

template <class T>
void InputLayer<T>::limit_gradient(Backend<T>& backend, ConstView<double> sum, double limit) {
  backend.limit_norm(sum, limit, grad_E_.scratch(options_.width, touched_.count()));
  if (sums()) backend.limit_norm(sum, limit, grad_b_);
}

template <class T>
bool InputLayer<T>::is_finite(Backend<T>& backend) const {
  return E_.is_finite(backend) && b_.is_finite(backend);
}

template <class T>
void InputLayer<T>::update(Backend<T>& backend, const Update& update) {
  E_.update_columns(backend, update, touched_.rows(), grad_E_.scratch(options_.width, touched_.count()));
  if (sums()) b_.update(backend, update, grad_b_);
}

template <class T>
void InputLayer<T>::visit_state(StateVisitor& state, Backend<T>& backend) {
  {
    const auto scope = state.scope("embeddings");
    E_.visit_state(state, backend);
  }
  if (!sums()) return;
  const auto scope = state.scope("bias");
  b_.visit_state(state, backend);
}

template class InputLayer<float>;
template class InputLayer<double>;

}  // namespace widehead
