#pragma once
/// A line of progress on a terminal; plain lines now and then where there is none.

#include <chrono>
#include <string>

#include "widehead/train/trainer.h"

namespace widehead::cli {

/// "1:02:03" or "2:03".
std::string clock_of(double seconds);

class ProgressLine {
 public:
  /// @param every  seconds between plain lines
  explicit ProgressLine(double every);

  /// A message of its own line.
  void note(const std::string& text);
  void reading(double share);
  void training(const Progress& progress);
  /// Ends the line that is being rewritten, if there is one.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  bool due(double terminal_interval);
  void show(const std::string& text);

  bool terminal_;
  double every_;
  bool open_ = false;
  bool shown_ = false;
  Clock::time_point last_;
};

}  // namespace widehead::cli
