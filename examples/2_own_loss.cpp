/// A loss of your own: ten lines of C++, exact steps, and a cost that does not depend on D.
///
///   cmake --preset dev && cmake --build --preset dev && build-dev/examples/2_own_loss

#include <widehead/widehead.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <span>

/// A hinge: each target is to score at least 1 above the mean of all outputs, and the outputs are kept from
/// spreading, which is what pushes the others down. It sees q = ‖o‖², s = Σo, D and the outputs at the targets:
///   L = w (q − s²/D) + Σ y max(0, 1 − (o_t − s/D))²
/// and answers with L, a = ∂L/∂q, b = ∂L/∂s and g = ∂L/∂o_t.
widehead::LossValue squared_hinge(const widehead::LossInput& x, std::span<double> g) {
  const double w = 0.1, mean = x.s / x.outputs;
  widehead::LossValue value{w * (x.q - x.s * mean), w, -2 * w * mean};
  for (std::size_t k = 0; k < x.o.size(); ++k) {
    const double missing = std::max(0.0, 1 - (x.o[k] - mean));
    value.L += x.y[k] * missing * missing;
    value.b += 2 * x.y[k] * missing / x.outputs;
    g[k] = -2 * x.y[k] * missing;
  }
  return value;
}

int main() {
  // 1. A layer with that loss. (A loss that never looks at s says so with uses_sum = false, and saves a little.)
  widehead::HeadOptions options;
  options.head = "windowed";
  options.layer.outputs = 100000;  // D
  options.layer.dim = 64;          // d
  options.layer.loss = widehead::CustomLoss{.function = squared_hinge, .uses_sum = true, .name = "squared hinge"};
  const auto layer = widehead::make_head<float>(options, widehead::make_cpu_backend<float>());

  // 2. Something to learn: five minibatches of 32 hidden vectors, each with one target.
  widehead::SyntheticOptions data;
  data.outputs = options.layer.outputs;
  data.dim = options.layer.dim;
  data.batch = 32;  // m
  const widehead::SyntheticStream<float> stream(data);

  // 3. Fifty steps. Near a target L bends as (o_t − 1)² does, so η follows the size of H.
  double first_loss = 0, loss = 0;
  for (std::uint64_t t = 0; t < 50; ++t) {
    const auto batch = stream.batch(t % 5);
    const double eta = 0.2 / (2 * widehead::spectral_norm_squared<float>(batch.H));
    loss = layer->step(batch.H, batch.targets(), eta);
    if (t == 0) first_loss = loss;
    if (t % 5 == 0) std::printf("step %2d   loss %.3f\n", static_cast<int>(t) + 1, loss);
  }
  std::printf("the loss fell from %.3f to %.3f\n", first_loss, loss);
  return loss < 0.9 * first_loss ? 0 : 1;
}
