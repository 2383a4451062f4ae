#pragma once
/// The loss of a minibatch, example by example, in the host's memory: what a backend does where the loss is a function
/// of the host.

#include <cmath>
#include <span>
#include <variant>
#include <vector>

#include "widehead/backend.h"

namespace widehead {

/// Scratch for one example's targets.
struct JudgeRoom {
  std::vector<double> o, y, g;
};

/// Backend<T>::judge. Stops at the first example with something not finite.
template <class T>
Verdict judge_on_host(const Loss& loss, Size outputs, const RowGroups<T>& Y, std::span<const T> weights,
                      const Judged<T>& x, JudgeRoom& room) {
  const bool uses_s = uses_sum(loss);
  const auto D = static_cast<double>(outputs);
  Verdict verdict;
  verdict.a_is_one = true;
  for (Size j = 0; j < Y.examples(); ++j) {
    const auto entries = Y.of_example(j);
    room.o.resize(entries.size());
    room.y.resize(entries.size());
    room.g.assign(entries.size(), 0.0);
    for (std::size_t k = 0; k < entries.size(); ++k) {
      room.o[k] = x.o(entries[k], 0);
      room.y[k] = static_cast<double>(Y.entry(entries[k]).value);
    }
    const LossInput input{x.q(j, 0), uses_s ? x.s(j, 0) : 0.0, D, room.o, room.y};
    const auto value = std::visit([&](const auto& function) { return function(input, room.g); }, loss);
    const double weight = weights.empty() ? 1.0 : static_cast<double>(weights[static_cast<std::size_t>(j)]);
    double gamma = 0, poison = value.L + value.a + value.b;
    for (std::size_t k = 0; k < entries.size(); ++k) {
      const double g = weight * room.g[k];
      x.g(entries[k], 0) = static_cast<T>(g);
      gamma += g;
      poison += static_cast<double>(static_cast<T>(g));
    }
    const T a = x.a(j, 0) = static_cast<T>(weight * value.a);
    const T b = x.b(j, 0) = static_cast<T>(weight * value.b);
    x.gamma(j, 0) = static_cast<T>(gamma);
    if (!std::isfinite(poison) || !std::isfinite(a + b + static_cast<T>(gamma)) || (!uses_s && value.b != 0)) {
      verdict.bad = j;
      verdict.at_bad = value;
      return verdict;
    }
    verdict.a_is_one = verdict.a_is_one && a == T(1);
    verdict.largest_a = std::max(verdict.largest_a, static_cast<double>(std::abs(a)));
    verdict.L += weight * value.L;
  }
  return verdict;
}

}  // namespace widehead
