#pragma once
/// The non-linearities of hidden layers.

#include <span>
#include <string_view>
#include <utility>

namespace widehead {

enum class Activation {
  relu,  ///< max(0, x)
  tanh,
  sigmoid,  ///< 1 / (1 + e⁻ˣ)
  identity,
};
std::span<const std::pair<std::string_view, Activation>> activation_names();

}  // namespace widehead
