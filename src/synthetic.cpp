#include "widehead/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace widehead {
namespace {

double apply(Activation activation, double x) {
  switch (activation) {
    case Activation::relu: return std::max(x, 0.0);
    case Activation::tanh: return std::tanh(x);
    case Activation::sigmoid: return 1 / (1 + std::exp(-x));
    case Activation::identity: break;
  }
  return x;
}

void require(bool condition, const char* name, Size value) {
  if (!condition) throw std::invalid_argument(fmt::format("synthetic data: {} = {} is out of range", name, value));
}

}  // namespace

std::span<const std::pair<std::string_view, TargetLaw>> target_law_names() {
  static constexpr std::array<std::pair<std::string_view, TargetLaw>, 2> names = {
      {{"zipf", TargetLaw::zipf}, {"uniform", TargetLaw::uniform}}};
  return names;
}

template <class T>
SyntheticStream<T>::SyntheticStream(const SyntheticOptions& options)
    : options_(options),
      random_targets_(options.seed, 1),
      random_values_(options.seed, 2),
      random_hidden_(options.seed, 3),
      random_meaning_(options.seed, 4) {
  require(options.outputs >= 1 && options.outputs <= std::numeric_limits<Index>::max(), "outputs (D)", options.outputs);
  require(options.dim >= 1, "dim (d)", options.dim);
  require(options.batch >= 1, "batch (m)", options.batch);
  require(options.nonzeros >= 0, "nonzeros (K)", options.nonzeros);
  if (options_.distinct == 0) options_.distinct = options_.outputs;
  if (options_.distinct < 1 || options_.distinct > options_.outputs) {
    throw std::invalid_argument(
        fmt::format("synthetic data: distinct = {}, but it must be 1 … D = {}", options_.distinct, options_.outputs));
  }
}

template <class T>
Index SyntheticStream<T>::draw_target(std::uint64_t example, Size k) const {
  const double u = random_targets_.uniform(example, static_cast<std::uint32_t>(k)).first;
  const auto n = static_cast<double>(options_.distinct);
  // The inverse of the distribution function ln(i + 1)/ln(n + 1) of the Zipf-like law.
  const double i = options_.targets == TargetLaw::zipf ? std::exp(u * std::log(n + 1)) - 1 : u * n;
  const auto rank = static_cast<Size>(std::min(std::floor(i), n - 1));
  return static_cast<Index>(rank * (options_.outputs / options_.distinct));
}

template <class T>
void SyntheticStream<T>::redraw_targets(std::uint64_t t, SyntheticBatch<T>& batch) const {
  const Size m = options_.batch, K = options_.nonzeros;
  batch.offsets.assign(1, 0);
  batch.indices.clear();
  batch.values.clear();
  for (Size j = 0; j < m; ++j) {
    const std::uint64_t example = t * static_cast<std::uint64_t>(m) + static_cast<std::uint64_t>(j);
    for (Size k = 0; k < K; ++k) {
      batch.indices.push_back(draw_target(example, k));
      const double value = K == 1 ? 1.0 : 0.5 + random_values_.uniform(example, static_cast<std::uint32_t>(k)).first;
      batch.values.push_back(static_cast<T>(static_cast<float>(value)));
    }
    batch.offsets.push_back(static_cast<std::int64_t>(batch.indices.size()));
  }
}

template <class T>
SyntheticBatch<T> SyntheticStream<T>::batch(std::uint64_t t) const {
  const Size d = options_.dim, m = options_.batch;
  SyntheticBatch<T> batch{options_.outputs, Matrix<T>(d, m), {}, {}, {}};
  redraw_targets(t, batch);
  for (Size j = 0; j < m; ++j) {
    const std::uint64_t example = t * static_cast<std::uint64_t>(m) + static_cast<std::uint64_t>(j);
    // Half of the pre-activation's scale is a direction that belongs to the first target.
    const auto first = static_cast<std::size_t>(batch.offsets[static_cast<std::size_t>(j)]);
    const std::uint64_t meaning = first < batch.indices.size() ? static_cast<std::uint64_t>(batch.indices[first]) : 0;
    for (Size i = 0; i < d; i += 2) {
      const auto unit = static_cast<std::uint32_t>(i);
      const auto mean = random_meaning_.normal(meaning, unit), noise = random_hidden_.normal(example, unit);
      const auto set = [&](Size k, double g, double e) {
        const double x = 0.5 * g + std::sqrt(0.75) * e;
        batch.H(k, j) = static_cast<T>(static_cast<float>(apply(options_.activation, x)));
      };
      set(i, mean.first, noise.first);
      if (i + 1 < d) set(i + 1, mean.second, noise.second);
    }
  }
  return batch;
}

template <class T>
double spectral_norm_squared(ConstView<T> H, double tolerance) {
  constexpr int max_iterations = 300;
  std::vector<double> x(static_cast<std::size_t>(H.cols)), y(static_cast<std::size_t>(H.rows));
  const Random random(0, 5);
  for (std::size_t j = 0; j < x.size(); ++j) x[j] = random.normal(j, 0).first;
  double norm = 0;
  for (int iteration = 0; iteration < max_iterations; ++iteration) {
    double length = 0;
    for (const double value : x) length += value * value;
    if (length == 0) return 0;
    length = std::sqrt(length);
    std::fill(y.begin(), y.end(), 0.0);
    for (Size j = 0; j < H.cols; ++j) {  // y = H x/‖x‖
      const double x_j = x[static_cast<std::size_t>(j)] / length;
      for (Size i = 0; i < H.rows; ++i) y[static_cast<std::size_t>(i)] += x_j * static_cast<double>(H(i, j));
    }
    double next = 0;
    for (Size j = 0; j < H.cols; ++j) {  // x = Hᵀy
      double sum = 0;
      const T* h = H.column(j);
#pragma omp simd reduction(+ : sum)
      for (Size i = 0; i < H.rows; ++i) sum += y[static_cast<std::size_t>(i)] * static_cast<double>(h[i]);
      x[static_cast<std::size_t>(j)] = sum;
    }
    for (const double value : y) next += value * value;  // ‖H x‖²/‖x‖²
    if (std::abs(next - norm) <= tolerance * next) return next;
    norm = next;
  }
  return norm;
}

template class SyntheticStream<float>;
template class SyntheticStream<double>;
template double spectral_norm_squared<float>(ConstView<float>, double);
template double spectral_norm_squared<double>(ConstView<double>, double);

}  // namespace widehead
