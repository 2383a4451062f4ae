#include "widehead/activation.h"

#include <array>

namespace widehead {

std::span<const std::pair<std::string_view, Activation>> activation_names() {
  static constexpr std::array<std::pair<std::string_view, Activation>, 4> names = {
      {{"relu", Activation::relu},
       {"tanh", Activation::tanh},
       {"sigmoid", Activation::sigmoid},
       {"identity", Activation::identity}}};
  return names;
}

}  // namespace widehead
