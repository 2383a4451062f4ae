#pragma once
/// The non-linearities of hidden layers, element by element.

#include <cmath>

#include "widehead/activation.h"

namespace widehead::cuda {

/// s(x). The exponent of σ(x) = 1/(1 + t) or t/(1 + t), t = e^(−|x|), is never positive, so nothing overflows.
template <class T>
__device__ T activation_of(Activation s, T x) {
  switch (s) {
    case Activation::relu: return x < T(0) ? T(0) : x;  // a NaN stays one
    case Activation::tanh: return tanh(x);
    case Activation::sigmoid: {
      const T t = exp(x < T(0) ? x : -x);
      return (x > T(0) ? T(1) : t) / (T(1) + t);
    }
    case Activation::identity: break;
  }
  return x;
}
/// s′ from y = s(x).
template <class T>
__device__ T slope_of(Activation s, T y) {
  switch (s) {
    case Activation::relu: return y > T(0) ? T(1) : T(0);
    case Activation::tanh: return T(1) - y * y;
    case Activation::sigmoid: return y * (T(1) - y);
    case Activation::identity: break;
  }
  return T(1);
}

}  // namespace widehead::cuda
