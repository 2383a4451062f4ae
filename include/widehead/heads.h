#pragma once
/// The heads by name, as the command line, files and bindings call them.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "widehead/factored_layer.h"
#include "widehead/hierarchical_layer.h"
#include "widehead/output_layer.h"
#include "widehead/sampled_softmax_layer.h"
#include "widehead/softmax_layer.h"
#include "widehead/windowed_layer.h"

namespace widehead {

struct HeadOptions {
  std::string head = "windowed";
  LayerOptions layer;
  WindowedOptions windowed;
  FactoredOptions factored;  ///< read by "factored"; "reference" takes its stabilizer
  SoftmaxOptions softmax;    ///< read by "softmax", and by "sampled" where it evaluates
  HierarchicalOptions hierarchical;
  SampledSoftmaxOptions sampled;
};

/// Makes the layer that options.head names.
/// @throws std::invalid_argument for an unknown name, for "reference" in float, for "reference" or "sampled" on a
/// device
///         that is not the CPU, or for a head with a loss of its own where options.layer.loss is not the default
template <class T>
std::unique_ptr<OutputLayer<T>> make_head(const HeadOptions& options, std::shared_ptr<Backend<T>> backend);

std::span<const std::string_view> head_names();
/// Those trained with any loss of the spherical family: they all do the same, and can be verified against each other.
std::span<const std::string_view> spherical_head_names();

/// Values of the options that are words, each with its name.
template <class Enum>
using Named = std::pair<std::string_view, Enum>;
std::span<const Named<Initial>> initial_names();
std::span<const Named<Inverse>> inverse_names();
std::span<const Named<Stabilize>> stabilize_names();
std::span<const Named<RowPlace>> row_place_names();

}  // namespace widehead
