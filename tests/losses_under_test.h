#pragma once
/// The heads and losses that are tested together.

#include <fmt/format.h>

#include <vector>

#include "heads_under_test.h"
#include "loss_oracle.h"

namespace widehead::test {

inline HeadCase windowed_case(double absorb_limit, double deflate_below) {
  auto options = options_of("windowed");
  options.windowed.window = 12;
  options.windowed.absorb_limit = absorb_limit;
  options.windowed.deflation.below = deflate_below;
  return {.label = fmt::format("windowed_{:g}_{:g}", absorb_limit, 10 * deflate_below), .options = options};
}

/// Heads of the spherical family, the windowed one with something to absorb and to deflate.
inline std::vector<HeadCase> heads_with_losses() {
  std::vector<HeadCase> list{{.label = "dense", .options = options_of("dense")}};
  for (const auto inverse : {Inverse::solve, Inverse::woodbury}) {
    list.push_back({.label = inverse == Inverse::solve ? "factored_solve" : "factored_woodbury",
                    .options = factored_options(inverse, Stabilize::power)});
  }
  for (const double absorb_limit : {1.0, 30.0}) {
    for (const double deflate_below : {0.2, 0.8}) list.push_back(windowed_case(absorb_limit, deflate_below));
  }
  return in_each_dtype(list);
}

/// The losses, some with other parameters, and one of the user's own.
inline std::vector<LossCase> losses_under_test() {
  auto list = default_losses();
  list.push_back(spherical_case(1.3));
  list.push_back(z_case(1.5, 0.4));
  list.push_back(own_case());
  return list;
}

}  // namespace widehead::test
