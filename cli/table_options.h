#pragma once
/// The table of training options (train/options.h) as flags of a subcommand.

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "widehead/train/options.h"

namespace widehead::cli {

/// What was given on the command line, above what a config file says, above the defaults.
class TableOptions {
 public:
  /// Adds every option of the job to the command, and --config.
  TableOptions(CLI::App& command, Job job);

  /// The options of the run, checked.
  /// @throws std::invalid_argument, FileError
  TrainOptions read() const;

 private:
  Job job_;
  TrainOptions given_;
  std::string config_;
  std::vector<std::pair<const OptionSpec*, CLI::Option*>> options_;
};

}  // namespace widehead::cli
