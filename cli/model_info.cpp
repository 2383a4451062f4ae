#include "model_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "model_argument.h"
#include "widehead/data/line_reader.h"
#include "widehead/model/model_folder.h"
#include "widehead/train/model.h"

namespace widehead::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// What was chosen: the options that differ from the job's defaults.
Json chosen_options(Job job, const TrainOptions& options) {
  const auto names = differences(job, default_options(job), options);
  Json chosen = Json::object();
  for (const auto& spec : option_table()) {
    if (!spec.is_for(job) || std::ranges::find(names, spec.name) == names.end()) continue;
    std::visit([&](auto field) { chosen[spec.name] = options.*field; }, spec.field);
  }
  return chosen;
}

/// The figures of the last evaluation in the log; null where there was none.
Json last_held_out(const ModelFolder& folder) {
  if (!folder.has(model_files::metrics)) return nullptr;
  LineReader lines(folder.path_of(model_files::metrics).string());
  Json last;
  while (const auto line = lines.next()) {
    const auto entry = Json::parse(*line, nullptr, false);
    if (entry.is_object() && entry.contains("held_out")) last = entry["held_out"];
  }
  return last;
}

Json files_of(const fs::path& folder) {
  std::vector<std::pair<std::string, std::uintmax_t>> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) files.emplace_back(entry.path().filename().string(), entry.file_size());
  }
  std::ranges::sort(files);
  Json list = Json::array();
  for (const auto& [name, bytes] : files) list.push_back({{"name", name}, {"bytes", bytes}});
  return list;
}

std::string in_bytes(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes / 1e9);
  if (bytes >= 1e6) return fmt::format("{:.1f} MB", bytes / 1e6);
  if (bytes >= 1e3) return fmt::format("{:.1f} kB", bytes / 1e3);
  return fmt::format("{:.0f} B", bytes);
}

std::string in_words(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::vector<std::string> parts;
  for (const auto& part : value) parts.push_back(in_words(part));
  return fmt::format("{}", fmt::join(parts, ","));
}

void print_text(const Json& model) {
  const auto line = [](std::string_view name, const std::string& text) { fmt::print("  {:<16} {}\n", name, text); };
  fmt::print("{}\n", model["model"].get<std::string>());
  line("job", model["job"].get<std::string>());
  line("outputs",
       fmt::format("{} {}s", model["outputs"].get<Size>(), output_noun(job_named(model["job"].get<std::string>()))));
  line("features", in_words(model["features"]));
  line("dim", in_words(model["dim"]));
  line("head", in_words(model["head"]));
  line("loss", in_words(model["loss"]));
  line("dtype", in_words(model["dtype"]));
  line("trained on", fmt::format("{} examples", model["examples"].get<std::int64_t>()));
  line("done",
       fmt::format("{:.1f}%, {} steps{}", 100 * model["share"].get<double>(), model["steps"].get<std::int64_t>(),
                   model["complete"].get<bool>() ? "" : "; train --resume goes on"));
  for (const auto& [name, value] : model["options"].items()) line("--" + name, in_words(value));
  if (!model["held_out"].is_null()) {
    std::string figures;
    for (const auto& [name, value] : model["held_out"].items()) {
      figures += fmt::format("{}{} {:.5g}", figures.empty() ? "" : "  ", name,
                             value.is_number() ? value.get<double>() : std::nan(""));
    }
    line("held out", figures);
  }
  for (const auto& file : model["files"]) {
    line(file["name"] == model["files"][0]["name"] ? "files" : "",
         fmt::format("{:<28} {:>10}", file["name"].get<std::string>(), in_bytes(file["bytes"].get<double>())));
  }
}

}  // namespace

int print_model_info(const std::string& path, bool json) {
  const auto folder = ModelFolder::open(path, ModelFolder::Access::read, ModelFolder::Verify::sizes);
  const auto info = ModelInfo::from_json(folder.info(), path);
  const auto options = read_toml(folder.path_of(model_files::config).string(), &info.job).options;
  const Json model = {{"model", path},
                      {"job", name_of(info.job)},
                      {"outputs", info.outputs},
                      {"features", info.features},
                      {"dim", options.dim},
                      {"head", options.head},
                      {"loss", options.loss},
                      {"dtype", options.dtype},
                      {"examples", info.examples},
                      {"steps", info.steps},
                      {"share", info.share},
                      {"complete", info.complete},
                      {"options", chosen_options(info.job, options)},
                      {"held_out", last_held_out(folder)},
                      {"files", files_of(folder.path())}};
  if (json) {
    fmt::print("{}\n", model.dump(-1, ' ', false, Json::error_handler_t::replace));
  } else {
    print_text(model);
  }
  return 0;
}

}  // namespace widehead::cli
