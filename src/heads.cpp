#include "widehead/heads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <stdexcept>
#include <type_traits>

#include "widehead/dense_layer.h"
#include "widehead/reference.h"

namespace widehead {

namespace {

constexpr std::array<std::string_view, 7> names_of_heads = {"windowed", "factored",     "dense",  "reference",
                                                            "softmax",  "hierarchical", "sampled"};
constexpr std::size_t spherical_heads = 4;  // the first ones

template <class T>
void require_host(std::string_view head, const std::shared_ptr<Backend<T>>& backend) {
  if (!backend || backend->memory().is_host()) return;
  throw std::invalid_argument(
      fmt::format("head '{}' exists on the CPU only, but the device is {}", head, backend->device()));
}

}  // namespace

std::span<const std::string_view> head_names() { return names_of_heads; }
std::span<const std::string_view> spherical_head_names() { return head_names().first(spherical_heads); }

std::span<const Named<Initial>> initial_names() {
  static constexpr std::array<Named<Initial>, 2> names = {{{"zero", Initial::zero}, {"normal", Initial::normal}}};
  return names;
}

std::span<const Named<Inverse>> inverse_names() {
  static constexpr std::array<Named<Inverse>, 3> names = {
      {{"woodbury", Inverse::woodbury}, {"solve", Inverse::solve}, {"refresh", Inverse::refresh}}};
  return names;
}

std::span<const Named<Stabilize>> stabilize_names() {
  static constexpr std::array<Named<Stabilize>, 4> names = {{{"none", Stabilize::never},
                                                             {"pristine", Stabilize::pristine},
                                                             {"svd", Stabilize::svd},
                                                             {"power", Stabilize::power}}};
  return names;
}

std::span<const Named<RowPlace>> row_place_names() {
  static constexpr std::array<Named<RowPlace>, 3> names = {
      {{"auto", RowPlace::automatic}, {"device", RowPlace::device}, {"host", RowPlace::host}}};
  return names;
}

template <class T>
std::unique_ptr<OutputLayer<T>> make_head(const HeadOptions& options, std::shared_ptr<Backend<T>> backend) {
  if (options.head == "windowed") {
    return std::make_unique<WindowedLayer<T>>(options.layer, options.windowed, std::move(backend));
  }
  if (options.head == "dense") return std::make_unique<DenseLayer<T>>(options.layer, std::move(backend));
  if (options.head == "factored") {
    return std::make_unique<FactoredLayer<T>>(options.layer, options.factored, std::move(backend));
  }
  if (options.head == "reference") {
    require_host(options.head, backend);
    if constexpr (std::is_same_v<T, double>) {
      return std::make_unique<ReferenceLayer>(options.layer, options.factored.stabilizer, std::move(backend));
    }
    throw std::invalid_argument("head 'reference' exists in double only");
  }
  if (options.head == "softmax") {
    return std::make_unique<SoftmaxLayer<T>>(options.layer, options.softmax, std::move(backend));
  }
  if (options.head == "hierarchical") {
    return std::make_unique<HierarchicalLayer<T>>(options.layer, options.hierarchical, std::move(backend));
  }
  if (options.head == "sampled") {
    require_host(options.head, backend);
    return std::make_unique<SampledSoftmaxLayer<T>>(options.layer, options.softmax, options.sampled,
                                                    std::move(backend));
  }
  throw std::invalid_argument(
      fmt::format("head '{}' is unknown; there are: {}", options.head, fmt::join(head_names(), ", ")));
}

template std::unique_ptr<OutputLayer<float>> make_head(const HeadOptions&, std::shared_ptr<Backend<float>>);
template std::unique_ptr<OutputLayer<double>> make_head(const HeadOptions&, std::shared_ptr<Backend<double>>);

}  // namespace widehead
