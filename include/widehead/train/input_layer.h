#pragma once
/// The first layer, for sparse inputs: F features, of which an example names a few (the paper, section 2.2). One row
/// of e weights per feature, held as e x F; O(Ke) forward, O(Ke) update, whatever F is. With n = slots:
///   n = 1   A = s(E X + b1ᵀ)                         X (F x m, sparse): a sum, or a mean if X's values say so
///   n > 1   A = the n looked-up rows, one below another (n e x m): an example of X for every slot

#include <string>
#include <vector>

#include "widehead/random.h"
#include "widehead/train/parameter.h"

namespace widehead {

struct InputLayerOptions {
  Size features = 0;                             ///< F
  Size width = 0;                                ///< e
  Size slots = 1;                                ///< n
  Activation activation = Activation::identity;  ///< of a sum
  double initial_scale = 0.1;                    ///< standard deviation of E
  Optimizer optimizer = Optimizer::adam;
};

template <class T>
class InputLayer {
 public:
  InputLayer(Backend<T>& backend, const InputLayerOptions& options, const Random& random);

  Size width() const { return options_.width * options_.slots; }  ///< rows of what forward gives
  /// A (width() x m), valid until the next call.
  ConstView<T> forward(Backend<T>& backend, const SparseBatch<T>& X);
  /// Takes ∂L/∂A, which is overwritten. After forward with the same X.
  void backward(Backend<T>& backend, const SparseBatch<T>& X, MatrixView<T> grad_A);
  bool gradient_is_finite(Backend<T>& backend) const;
  /// ‖gradient‖² over all parameters.
  double squared_gradient_norm(Backend<T>& backend) const;
  // The same without waiting: adds ‖gradient‖² to `sum`, and limits the gradient by the norm of which that is the
  // square.
  void add_squared_gradient_norm(Backend<T>& backend, MatrixView<double> sum) const;
  void limit_gradient(Backend<T>& backend, ConstView<double> sum, double limit);
  bool is_finite(Backend<T>& backend) const;  ///< of all parameters
  void update(Backend<T>& backend, const Update& update);

  ConstView<T> embeddings() const { return E_.value(); }  ///< e x F
  void visit_state(StateVisitor& state, Backend<T>& backend);

 private:
  bool sums() const { return options_.slots == 1; }

  InputLayerOptions options_;
  Parameter<T> E_;  // e x F
  Parameter<T> b_;  // e x 1, for sums
  // of a step
  Matrix<T> A_;           // e x (slots m)
  RowGroups<T> touched_;  // X by feature
  Matrix<T> grad_E_;      // e x features touched
  Matrix<T> grad_b_;      // e
};

}  // namespace widehead
