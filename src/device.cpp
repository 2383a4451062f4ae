#include "widehead/device.h"

#include <fmt/format.h>

#include <charconv>
#include <stdexcept>

namespace widehead {

template <class T>
std::shared_ptr<Backend<T>> make_backend(std::string_view device, int threads) {
  constexpr std::string_view numbered = "cuda:";
  if (device == "cpu") return make_cpu_backend<T>(threads);
  if (device == "cuda") return make_cuda_backend<T>();
  if (device.starts_with(numbered)) {
    const auto digits = device.substr(numbered.size());
    CudaOptions options;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), options.device);
    if (error == std::errc() && end == digits.data() + digits.size() && options.device >= 0) {
      return make_cuda_backend<T>(options);
    }
  }
  throw std::invalid_argument(fmt::format("device '{}' is unknown; there are: cpu, cuda, cuda:NUMBER", device));
}

template std::shared_ptr<Backend<float>> make_backend(std::string_view, int);
template std::shared_ptr<Backend<double>> make_backend(std::string_view, int);

}  // namespace widehead
