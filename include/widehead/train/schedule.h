#pragma once
/// How learning rates change over a run. Both the lower layers' rate and the head's follow it.

#include <algorithm>
#include <cmath>
#include <numbers>

namespace widehead {

enum class Schedule {
  constant,
  linear,  ///< to zero
  cosine,  ///< to zero, half a cosine
  step,    ///< a tenth from half of the run on, a hundredth from three quarters on
};

/// What rates are multiplied by when a share `progress` ∈ [0, 1] of the run is done; during the first share
/// `warm_up` they rise linearly.
inline double rate_factor(Schedule schedule, double warm_up, double progress) {
  progress = std::clamp(progress, 0.0, 1.0);
  const double rise = progress < warm_up ? progress / warm_up : 1;
  switch (schedule) {
    case Schedule::linear: return rise * (1 - progress);
    case Schedule::cosine: return rise * (1 + std::cos(std::numbers::pi * progress)) / 2;
    case Schedule::step: return rise * (progress < 0.5 ? 1 : progress < 0.75 ? 0.1 : 0.01);
    case Schedule::constant: break;
  }
  return rise;
}

}  // namespace widehead
