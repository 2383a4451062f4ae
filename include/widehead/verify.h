#pragma once
/// Exactness, measured: a head runs beside the dense layer in float64 on the same minibatches.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "widehead/heads.h"
#include "widehead/synthetic.h"

namespace widehead {

struct VerifyOptions {
  HeadOptions head;
  SyntheticOptions data;  ///< outputs and dim are taken from head.layer
  std::int64_t steps = 1000;
  double lambda = 0.05;  ///< λ₁ = 2ηa‖H‖₂²: η follows each minibatch (OutputLayer::eta_for)
  int threads = 0;
  std::string device = "cpu";  ///< of the head; the truth is always computed on the CPU
  bool tf32 = false;           ///< of the head, on a GPU (CudaOptions)
};

/// Normwise relative differences (Frobenius) to the dense float64 layer, all at the last step both took.
struct VerifyReport {
  std::int64_t steps = 0;  ///< taken by both
  double rel_W = 0;
  double rel_Q = 0;
  double rel_w_bar = 0;  ///< of w̄ = Wᵀ1
  double rel_grad = 0;
  double rel_loss = 0;
  std::vector<double> losses;        ///< of the head, one a step
  std::vector<double> dense_losses;  ///< of the dense float64 layer
  Diagnostics diagnostics;
  std::string error;  ///< why the head stopped early, if it did
};

/// @param progress  called now and then with the number of steps done, if given
/// @throws std::invalid_argument for a head that is not among spherical_head_names()
template <class T>
VerifyReport verify(const VerifyOptions& options, const std::function<void(std::int64_t)>& progress = {});

/// ‖A − B‖_F / ‖B‖_F, computed in double; ‖A‖_F where B is zero.
template <class T>
double relative_difference(ConstView<T> A, MatrixView<const double> B);

}  // namespace widehead
