#pragma once
/// A training run from files to a model folder: what `widehead train` does.

#include <string>

#include "widehead/train/evaluate.h"
#include "widehead/train/options.h"
#include "widehead/train/trainer.h"

namespace widehead {

/// Who looks on. Every function may be left as it is.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void note(const std::string& /*text*/) {}  ///< something worth a line
  virtual void reading(double /*share*/) {}
  virtual void training(const Progress& /*progress*/) {}
  virtual void evaluated(const Progress& /*progress*/, const Figures& /*figures*/) {}
  /// Asked after every step: true saves and ends the run, which can be resumed.
  virtual bool should_stop() { return false; }
};

struct RunResult {
  bool complete = false;  ///< all epochs are over
  Progress progress;
  Figures figures;  ///< of the last evaluation on held-out data
};

/// Trains a model into options.out. The folder holds, after every checkpoint, everything that --resume needs to go on
/// as if nothing had happened, bit for bit (with the same number of threads); see docs/formats.md.
/// @throws std::invalid_argument, FileError, std::system_error, NumericalError
RunResult run_training(Job job, const TrainOptions& options, RunObserver& observer);

}  // namespace widehead
