/// One step with the installed library, and a look at the training library: exits with 0 if the loss falls.

#include <widehead/train/options.h>
#include <widehead/widehead.h>

#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  widehead::HeadOptions options;
  options.layer.outputs = 1000;
  options.layer.dim = 8;
  const auto layer = widehead::make_head<float>(options, widehead::make_cpu_backend<float>());
  widehead::Matrix<float> H(8, 1);
  H(3, 0) = 1;
  const std::vector<std::int64_t> offsets{0, 1};
  const std::vector<widehead::Index> indices{42};
  const std::vector<float> values{1};
  const widehead::SparseBatch<float> targets(1000, offsets, indices, values);
  const double before = layer->step(H, targets, 0.1), after = layer->evaluate(H, targets);
  std::printf("widehead %s: loss %g, then %g\n", WIDEHEAD_VERSION, before, after);
  const bool knows_options = widehead::default_options(widehead::Job::lm).head == "windowed";
  return before == 1 && after < before && knows_options ? 0 : 1;
}
