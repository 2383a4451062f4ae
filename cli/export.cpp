/// widehead export: the vectors of a model in formats that other programs read.

#include <fmt/format.h>

#include <array>
#include <memory>

#include "command.h"
#include "common_options.h"
#include "model_argument.h"
#include "widehead/model/npy.h"
#include "widehead/model/safetensors.h"
#include "widehead/model/word_vectors.h"

namespace widehead::cli {
namespace {

enum class Format { word2vec, word2vec_binary, npy, safetensors };

struct ExportSettings {
  ModelArgument model;
  Format format = Format::word2vec;
  VectorKind vectors = VectorKind::output;
  std::string out;
};

template <class T>
void write_word2vec(const Model<T>& model, const ExportSettings& settings, WordVectorFormat format) {
  WordVectorWriter writer(settings.out, format, model.info.outputs, vector_dim(model, settings.vectors));
  std::vector<std::string> names;
  for_each_block_of_vectors(model, settings.vectors, [&](Size first, ConstView<float> block) {
    names.clear();
    for (Size i = 0; i < block.cols; ++i) names.push_back(model.name_of(static_cast<Index>(first + i)));
    writer.write(names, block);
  });
  writer.finish();
}

template <class T>
void write_npy(const Model<T>& model, const ExportSettings& settings) {
  NpyWriter<float> writer(settings.out, model.info.outputs, vector_dim(model, settings.vectors));
  for_each_block_of_vectors(model, settings.vectors, [&](Size, ConstView<float> block) { writer.write(block); });
  writer.finish();
}

/// One array "vectors" (D, dim) and, in the metadata, what it is.
template <class T>
void write_safetensors(const Model<T>& model, const ExportSettings& settings) {
  TensorWriter writer(
      settings.out, "vectors", model.info.outputs, vector_dim(model, settings.vectors),
      {{"job", std::string(name_of(model.info.job))}, {"vectors", std::string(name_of(settings.vectors))}});
  for_each_block_of_vectors(model, settings.vectors, [&](Size, ConstView<float> block) { writer.write(block); });
  writer.finish();
}

template <class T>
int write(const Model<T>& model, const ExportSettings& settings) {
  switch (settings.format) {
    case Format::word2vec: write_word2vec(model, settings, WordVectorFormat::text); break;
    case Format::word2vec_binary: write_word2vec(model, settings, WordVectorFormat::binary); break;
    case Format::npy: write_npy(model, settings); break;
    case Format::safetensors: write_safetensors(model, settings); break;
  }
  return 0;
}

int run(const ExportSettings& settings) {
  const auto model = open(settings.model);
  return std::visit([&](const auto& opened) { return write(opened, settings); }, model);
}

}  // namespace

void add_export(CLI::App& app, Action& action) {
  static constexpr std::array<std::pair<std::string_view, Format>, 4> formats = {
      {{"word2vec", Format::word2vec},
       {"word2vec-binary", Format::word2vec_binary},
       {"npy", Format::npy},
       {"safetensors", Format::safetensors}}};
  auto* command = app.add_subcommand("export", "write the vectors of words, items or labels for other programs");
  auto settings = std::make_shared<ExportSettings>();
  add_model(*command, settings->model);
  add_choice<Format>(*command, "--format", settings->format, formats,
                     "word2vec's text or binary format; float32 arrays (D, dim) for NumPy or as safetensors");
  add_vector_kind(*command, settings->vectors);
  command->add_option("--out", settings->out, "file to write")->required()->type_name(file_type);
  command->footer(
      "Rows stand in the order of vocabulary.txt or items.txt in the model's folder; those of labels by\n"
      "number.\n\n"
      "Examples:\n"
      "  widehead export model --out vectors.txt\n"
      "  widehead export model --format npy --vectors input --out embeddings.npy");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace widehead::cli
