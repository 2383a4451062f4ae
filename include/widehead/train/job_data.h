#pragma once
/// The data of a training run, read from the user's files: what is trained on, what is held out, what outputs are
/// called.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "widehead/train/batch.h"
#include "widehead/train/evaluate.h"
#include "widehead/train/options.h"

namespace widehead {

template <class T>
class JobData {
 public:
  virtual ~JobData() = default;

  virtual const BatchSource<T>& source() const = 0;
  /// How often each output is a target (D values).
  virtual std::span<const std::int64_t> counts() const = 0;
  /// Examples in an epoch, subsampling apart.
  virtual std::int64_t examples() const = 0;
  /// One line that says what was read.
  virtual std::string description() const = 0;

  /// The file in a model's folder that holds the names of outputs; empty where they have only numbers.
  virtual std::string names_file() const = 0;
  virtual void save_names(const std::string& path) const = 0;

  /// Measures on what was held out; no figures where nothing was.
  virtual Figures evaluate(Network<T>& network) = 0;
};

/// Told while long work goes on: the share done, 0 … 1.
using ReadProgress = std::function<void(double)>;

/// @param names_path   names saved before, if the run is resumed; else empty
/// @param tokens_path  where a corpus is kept as ids; reused if the run is resumed
/// @throws FileError, std::system_error, std::invalid_argument
template <class T>
std::unique_ptr<JobData<T>> load_job_data(Job job, const TrainOptions& options, const std::string& names_path,
                                          const std::string& tokens_path, const ReadProgress& progress);

}  // namespace widehead
