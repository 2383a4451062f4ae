/// A first look: a layer with 100,000 outputs learns, and each step costs as if there were 64.
///
///   cmake --preset dev && cmake --build --preset dev && build-dev/examples/1_first_step

#include <widehead/widehead.h>

#include <cstdint>
#include <cstdio>

int main() {
  // 1. What the layer is: o = W h with W of D x d. "factored" is the paper's head; W is never formed.
  widehead::HeadOptions options;
  options.head = "factored";
  options.layer.outputs = 100000;  // D
  options.layer.dim = 64;          // d

  // 2. Where it computes: on the CPU, one thread per core.
  const auto layer = widehead::make_head<float>(options, widehead::make_cpu_backend<float>());

  // 3. Something to learn: five minibatches of 32 hidden vectors (the columns of H, d x m), each with
  //    one target. In your program H comes out of a network, and ∂L/∂H goes back into it.
  widehead::SyntheticOptions data;
  data.outputs = options.layer.outputs;
  data.dim = options.layer.dim;
  data.batch = 32;  // m
  const widehead::SyntheticStream<float> stream(data);
  widehead::Matrix<float> grad_H(data.dim, data.batch);

  // 4. Fifty exact gradient steps. η follows the size of H: λ₁ = 2η‖H‖₂² = 0.2 is a brisk rate.
  double first_loss = 0, loss = 0;
  for (std::uint64_t t = 0; t < 50; ++t) {
    const auto batch = stream.batch(t % 5);
    const double eta = 0.2 / (2 * widehead::spectral_norm_squared<float>(batch.H));
    loss = layer->step(batch.H, batch.targets(), eta, grad_H);  // the loss and ∂L/∂H before the step
    if (t == 0) first_loss = loss;
    if (t % 5 == 0) std::printf("step %2d   loss %.3f\n", static_cast<int>(t) + 1, loss);
  }

  // 5. Ask for the five outputs that score highest for one hidden vector.
  const auto batch = stream.batch(0);
  const auto top = layer->top_k(batch.H.view().columns(0, 1), 5);
  std::printf("the target is %d; the best outputs are", batch.indices[0]);
  for (widehead::Size i = 0; i < 5; ++i)
    std::printf(" %d (%.3f)", top.outputs(i, 0), static_cast<double>(top.scores(i, 0)));
  std::printf("\n");
  return loss < 0.9 * first_loss ? 0 : 1;
}
