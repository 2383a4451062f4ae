#include "widehead/train/model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "widehead/device.h"
#include "widehead/errors.h"
#include "widehead/model/model_folder.h"
#include "widehead/model/safetensors.h"
#include "widehead/train/assemble.h"

namespace widehead {
namespace {

using Shape = StateVisitor::Shape;
constexpr std::int64_t any = -1;

/// The arrays of a state that make up most of a network with these options, and their shapes. What a head holds
/// besides is no larger.
std::vector<std::pair<std::string, Shape>> large_arrays(const NetworkOptions& options) {
  std::vector<std::pair<std::string, Shape>> arrays;
  arrays.push_back({"network.input.embeddings.value", {options.features, options.embedding}});
  Size in = options.slots * options.embedding;
  for (std::size_t k = 0; k < options.hidden.size(); ++k) {
    arrays.push_back({fmt::format("network.hidden{}.weights.value", k + 1), {in, options.hidden[k]}});
    in = options.hidden[k];
  }
  const Size D = options.head.layer.outputs, d = options.head.layer.dim;
  const auto& head = options.head.head;
  if (head == "windowed") {
    arrays.push_back({"network.head.rows.V", {D, d}});
    arrays.push_back({"network.head.high", {2 * d, d}});
  } else if (head == "factored") {
    arrays.push_back({"network.head.V", {D, d}});
    arrays.push_back({"network.head.S", {d, 3 * d}});
  } else if (head == "dense") {
    arrays.push_back({"network.head.W", {D, d}});
  } else if (head == "hierarchical") {
    arrays.push_back({"network.head.rows", {any, d}});  // D and the classes
  } else {
    arrays.push_back({"network.head.rows", {D, d}});
  }
  return arrays;
}

/// Before anything of a size that the config or the manifest names is made: does the state have it?
void check_sizes(const SafetensorsFile& state, const SafetensorsFile* rows, const NetworkOptions& options) {
  std::map<std::string_view, Shape> saved;
  for (const auto* file : {&state, rows}) {
    if (file == nullptr) continue;
    for (const auto& tensor : file->tensors()) saved.emplace(tensor.name, tensor.shape);
  }
  for (const auto& [name, shape] : large_arrays(options)) {
    const auto found = saved.find(name);
    if (found == saved.end()) {
      throw FileError(
          fmt::format("{}: tensor '{}' is missing, which the options ask for", state.path().string(), name));
    }
    if (!std::ranges::equal(found->second, shape, [](auto a, auto b) { return a == b || b == any; })) {
      throw FileError(fmt::format("{}: tensor '{}' is {}, but by the options it would be {}", state.path().string(),
                                  name, to_string(found->second), to_string(shape)));
    }
  }
}

/// Reads the state of a run as far as a model in use needs it.
template <class T>
Model<T> open_in(const ModelFolder& folder, const ModelInfo& info, TrainOptions options, int threads,
                 const std::string& device) {
  const auto backend = make_backend<T>(device, threads);  // first: there may be no such device
  Model<T> model;
  model.info = info;
  model.threads = threads;
  if (folder.has(model_files::vocabulary)) model.vocabulary = Vocabulary::load(folder.path_of(model_files::vocabulary));
  if (folder.has(model_files::items)) model.items = ItemIndex::load(folder.path_of(model_files::items));
  const auto named = model.vocabulary ? model.vocabulary->size() : model.items ? model.items->size() : info.outputs;
  if (named != info.outputs) {
    throw FileError(
        fmt::format("{}: names of {} outputs, but the model has {}", folder.path().string(), named, info.outputs));
  }
  if (!backend->memory().is_host()) options.rows_file.clear();  // V is read into the device's memory, or the host's
  options.rows = "auto";  // where it was trained there was room for something else
  std::string scratch;    // V of a model that was trained out of memory is read into a file that nobody else sees
  if (!options.rows_file.empty()) {
    scratch = (folder.path() / fmt::format("rows.{}.tmp", getpid())).string();
    options.rows_file = scratch;
  }
  const SafetensorsFile state(folder.path_of(model_files::state));
  state.load_part([&](StateVisitor& visitor) { visitor.list("counts", model.counts); });
  if (static_cast<Size>(model.counts.size()) != info.outputs) {
    throw FileError(
        fmt::format("{}: {} counts for {} outputs", folder.path().string(), model.counts.size(), info.outputs));
  }
  std::optional<SafetensorsFile> rows;
  if (folder.has(model_files::rows)) rows.emplace(folder.path_of(model_files::rows));
  const auto* const rows_file = rows ? &*rows : nullptr;
  const auto network = network_options(info.job, options, info.features, info.outputs, model.counts);
  check_sizes(state, rows_file, network);
  try {
    model.network = std::make_unique<Network<T>>(network, backend);
  } catch (const std::bad_alloc&) {
    if (!scratch.empty()) std::filesystem::remove(scratch);
    throw FileError(fmt::format("{}: device {} has no memory for the network that its options describe",
                                folder.path().string(), backend->device()));
  }
  if (!scratch.empty()) std::filesystem::remove(scratch);
  state.load_part(
      [&](StateVisitor& visitor) {
        const auto scope = visitor.scope("network");
        model.network->visit_state(visitor);
      },
      rows_file);
  model.options = std::move(options);
  return model;
}

}  // namespace

std::string ModelInfo::to_json() const {
  return nlohmann::ordered_json{{"job", widehead::name_of(job)}, {"features", features}, {"outputs", outputs},
                                {"examples", examples},          {"share", share},       {"steps", steps},
                                {"complete", complete}}
      .dump();
}

ModelInfo ModelInfo::from_json(const std::string& json, const std::string& path) {
  try {
    const auto document = nlohmann::json::parse(json);
    ModelInfo info;
    info.job = job_named(document.at("job").get<std::string>());
    info.features = document.at("features").get<Size>();
    info.outputs = document.at("outputs").get<Size>();
    info.examples = document.at("examples").get<std::int64_t>();
    info.share = document.at("share").get<double>();
    info.steps = document.at("steps").get<std::int64_t>();
    info.complete = document.at("complete").get<bool>();
    constexpr Size most = 0x7FFFFFFF;
    if (info.features < 1 || info.features > most || info.outputs < 1 || info.outputs > most) {
      throw FileError(fmt::format("{}: a model with {} features and {} outputs", path, info.features, info.outputs));
    }
    return info;
  } catch (const nlohmann::json::exception& error) {
    throw FileError(fmt::format("{}: the manifest's info is not that of a model: {}", path, error.what()));
  } catch (const std::invalid_argument& error) {
    throw FileError(fmt::format("{}: {}", path, error.what()));
  }
}

template <class T>
std::string Model<T>::name_of(Index output) const {
  if (vocabulary) return std::string(vocabulary->word(output));
  if (items) return std::string(items->name(output));
  return fmt::format("{}", output);
}

template <class T>
std::optional<Index> Model<T>::find(std::string_view name) const {
  if (vocabulary) return vocabulary->find(name);
  if (items) return items->find(name);
  Index label = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), label);
  const bool is_label = error == std::errc() && end == name.data() + name.size() && label >= 0 && label < info.outputs;
  return is_label ? std::optional(label) : std::nullopt;
}

template <class T>
Predictor<T> Model<T>::predictor() const {
  return Predictor<T>(*network, target_scale<T>(options, counts), threads);
}

AnyModel open_model(const std::string& path, int threads, const std::string& device) {
  const auto folder = ModelFolder::open(path);
  const auto info = ModelInfo::from_json(folder.info(), path);
  auto options = read_toml(folder.path_of(model_files::config), &info.job).options;
  options.out = path;
  check(info.job, options);
  if (options.dtype == "f64") return open_in<double>(folder, info, std::move(options), threads, device);
  return open_in<float>(folder, info, std::move(options), threads, device);
}

template struct Model<float>;
template struct Model<double>;

}  // namespace widehead
