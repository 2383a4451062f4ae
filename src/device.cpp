#include "widehead/device.h"

#include <fmt/format.h>

#include <charconv>
#include <stdexcept>
#include <type_traits>

namespace widehead {

template <class T>
std::shared_ptr<Backend<T>> make_backend(std::string_view device, int threads, bool tf32) {
  constexpr std::string_view numbered = "cuda:";
  if (tf32 && device == "cpu") throw std::invalid_argument("tf32: the device is cpu, and only GPUs have TF32");
  if (tf32 && !std::is_same_v<T, float>) {
    throw std::invalid_argument("tf32: it is for products of float32 matrices, and these are float64");
  }
  CudaOptions options;
  options.tf32 = tf32;
  if (device == "cpu") return make_cpu_backend<T>(threads);
  if (device == "cuda") return make_cuda_backend<T>(options);
  if (device.starts_with(numbered)) {
    const auto digits = device.substr(numbered.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), options.device);
    if (error == std::errc() && end == digits.data() + digits.size() && options.device >= 0) {
      return make_cuda_backend<T>(options);
    }
  }
  throw std::invalid_argument(fmt::format("device '{}' is unknown; there are: cpu, cuda, cuda:NUMBER", device));
}

template std::shared_ptr<Backend<float>> make_backend(std::string_view, int, bool);
template std::shared_ptr<Backend<double>> make_backend(std::string_view, int, bool);

}  // namespace widehead
