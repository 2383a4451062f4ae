#include "model_argument.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "common_options.h"
#include "widehead/model/model_folder.h"

namespace widehead::cli {

void add_model(CLI::App& command, ModelArgument& model) {
  command.add_option("MODEL", model.path, "folder of a trained model")->required()->type_name(folder_type);
  add_threads(command, model.threads);
  add_device(command, model.device, "where the model computes, whichever it was trained on");
}

AnyModel open(const ModelArgument& model) { return open_model(model.path, model.threads, model.device); }

void add_vector_kind(CLI::App& command, VectorKind& kind) {
  static constexpr std::array<std::pair<std::string_view, VectorKind>, 2> names = {
      {{"input", VectorKind::input}, {"output", VectorKind::output}}};
  add_choice<VectorKind>(command, "--vectors", kind, names, "embeddings of the input layer, or rows of W");
}

Job job_of(const std::string& path) {
  const auto folder = ModelFolder::open(path, ModelFolder::Access::read, ModelFolder::Verify::sizes);
  return ModelInfo::from_json(folder.info(), path).job;
}

void require_job(Job job, Job expected, std::string_view flag) {
  if (job == expected) return;
  throw std::invalid_argument(
      fmt::format("{} is for models of the job {}, but this one's is {}", flag, name_of(expected), name_of(job)));
}

std::string_view output_noun(Job job) {
  static constexpr std::array<std::string_view, 3> nouns = {"word", "label", "item"};
  return nouns[static_cast<std::size_t>(job)];
}

template <class T>
WordIndex name_index(const Model<T>& model) {
  std::vector<std::string> names;
  names.reserve(static_cast<std::size_t>(model.info.outputs));
  for (Size output = 0; output < model.info.outputs; ++output) {
    names.push_back(model.name_of(static_cast<Index>(output)));
  }
  const bool folds_case = model.info.job == Job::lm && !model.options.keep_case;
  return WordIndex(std::move(names), folds_case ? Case::ignored : Case::kept);
}

void TopKOption::add_to(CLI::App& command, const char* help) {
  command.add_option("--top-k", given, help)->type_name("N")->default_str(fmt::format("{}", usual));
}

Size TopKOption::of(Size outputs) const {
  if (!given) return std::min<Size>(usual, outputs);
  if (*given >= 1 && *given <= outputs) return *given;
  throw std::invalid_argument(fmt::format("--top-k {}: expected 1 … {}, the outputs of the model", *given, outputs));
}

template WordIndex name_index(const Model<float>&);
template WordIndex name_index(const Model<double>&);

}  // namespace widehead::cli
