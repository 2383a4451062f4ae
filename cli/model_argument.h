#pragma once
/// What the commands that use a trained model have in common.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "help.h"
#include "widehead/eval/word_index.h"
#include "widehead/train/model_vectors.h"

namespace widehead::cli {

struct ModelArgument {
  std::string path;
  int threads = 0;
  std::string device = "cpu";  ///< where it computes now, not where it was trained: that device may not be here
};

/// MODEL, --threads and --device.
void add_model(CLI::App& command, ModelArgument& model);
AnyModel open(const ModelArgument& model);

/// --vectors input|output.
void add_vector_kind(CLI::App& command, VectorKind& kind);

/// What a model is for, without reading all of it.
Job job_of(const std::string& path);
/// @throws std::invalid_argument where a flag is for models of another job
void require_job(Job job, Job expected, std::string_view flag);

/// What the outputs of a job are called: "word", "label", "item".
std::string_view output_noun(Job job);

/// All names of outputs, by number; words of a model that lower-cases are found in any case.
template <class T>
WordIndex name_index(const Model<T>& model);

/// --top-k N.
struct TopKOption {
  std::int64_t usual;  ///< taken where nothing is given, or as many as there are
  std::optional<std::int64_t> given = {};

  void add_to(CLI::App& command, const char* help);
  /// @throws std::invalid_argument for a number given that is not in 1 … D
  Size of(Size outputs) const;
};

}  // namespace widehead::cli
