#pragma once
/// A trained model as a folder holds it: its options, what its outputs are called, its network.

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "widehead/data/item_index.h"
#include "widehead/data/vocabulary.h"
#include "widehead/train/network.h"
#include "widehead/train/options.h"
#include "widehead/train/predictor.h"

namespace widehead {

class ModelFolder;

/// What the manifest of a model says beside the list of its files.
struct ModelInfo {
  Job job = Job::lm;
  Size features = 0, outputs = 0;  ///< F, D
  std::int64_t examples = 0;       ///< in the training data
  double share = 0;                ///< of the run that is done
  std::int64_t steps = 0;
  bool complete = false;

  std::string to_json() const;
  /// @throws FileError naming the path
  static ModelInfo from_json(const std::string& json, const std::string& path);
};

/// Names of files in a model's folder.
namespace model_files {
inline constexpr const char* config = "config.toml";
inline constexpr const char* state = "state.safetensors";
inline constexpr const char* rows = "rows.safetensors";  ///< V and its rows' epochs, of a run with --rows-file
inline constexpr const char* metrics = "metrics.jsonl";
inline constexpr const char* vocabulary = "vocabulary.txt";
inline constexpr const char* items = "items.txt";
inline constexpr const char* tokens = "tokens.bin";  ///< the corpus as ids; not part of the model, made again if lost
}  // namespace model_files

template <class T>
struct Model {
  ModelInfo info;
  TrainOptions options;
  std::optional<Vocabulary> vocabulary;  ///< of lm
  std::optional<ItemIndex> items;        ///< of items
  std::vector<std::int64_t> counts;      ///< how often each output was a target
  int threads = 0;                       ///< of the CPU; 0 for one per core
  std::unique_ptr<Network<T>> network;

  /// What an output is called: a word, an item's name, a label's number.
  std::string name_of(Index output) const;
  std::optional<Index> find(std::string_view name) const;
  Predictor<T> predictor() const;
};

using AnyModel = std::variant<Model<float>, Model<double>>;

/// Opens a model for use, in the precision it was trained in.
/// @param threads  of the CPU; 0 for one per core
/// @param device   where it is to compute (device.h), whichever it was trained on
/// @throws FileError for what is no model, a damaged one or one of a newer version; std::system_error; BackendError
///         where there is no such device; std::invalid_argument for a head that this device does not have
AnyModel open_model(const std::string& path, int threads = 0, const std::string& device = "cpu");

}  // namespace widehead
