/// widehead neighbours: the outputs whose vectors are nearest to that of a word, or to a combination of words.

#include "widehead/eval/neighbours.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "command.h"
#include "model_argument.h"

namespace widehead::cli {
namespace {

using Json = nlohmann::ordered_json;

struct NeighboursSettings {
  ModelArgument model;
  std::vector<std::string> queries;
  TopKOption top_k{10};
  VectorKind vectors = VectorKind::output;
  bool json = false;
};

/// A name as it is, whatever it holds, or else words joined by + and −.
WordCombination combination_of(const std::string& query, const WordIndex& index) {
  if (const Index word = index.find(query); word != WordIndex::none) return {{{word, 1.0}}};
  return parse_combination(query, index);
}

template <class T>
Matrix<float> all_vectors(const Model<T>& model, VectorKind kind) {
  std::vector<Index> all(static_cast<std::size_t>(model.info.outputs));
  std::iota(all.begin(), all.end(), Index{0});
  return vectors_of(model, kind, all);
}

template <class T>
int find(const Model<T>& model, const NeighboursSettings& settings) {
  const Size top_k = settings.top_k.of(model.info.outputs);
  const auto index = name_index(model);
  std::vector<WordCombination> combinations;
  for (const auto& query : settings.queries) combinations.push_back(combination_of(query, index));
  const auto backend = make_cpu_backend<float>(settings.model.threads);
  const auto lists = nearest_words(combinations, top_k, all_vectors(model, settings.vectors), *backend);
  for (std::size_t i = 0; i < lists.size(); ++i) {
    Json object = {{"query", settings.queries[i]}, {"neighbours", Json::array()}};
    if (!settings.json) fmt::print("{}{}\n", i > 0 ? "\n" : "", settings.queries[i]);
    for (const auto& [word, cosine] : lists[i]) {
      if (settings.json) {
        object["neighbours"].push_back(
            {{std::string(output_noun(model.info.job)), index.word(word)}, {"cosine", cosine}});
      } else {
        fmt::print("  {:.4f}  {}\n", cosine, index.word(word));
      }
    }
    if (settings.json) fmt::print("{}\n", object.dump());
  }
  return 0;
}

int run(const NeighboursSettings& settings) {
  const auto model = open(settings.model);
  return std::visit([&](const auto& opened) { return find(opened, settings); }, model);
}

}  // namespace

void add_neighbours(CLI::App& app, Action& action) {
  auto* command =
      app.add_subcommand("neighbours", "the nearest words, items or labels, by the cosine of their vectors");
  auto settings = std::make_shared<NeighboursSettings>();
  add_model(*command, settings->model);
  command
      ->add_option("WORD", settings->queries,
                   R"(words, items or numbers of labels; or a combination in quotes: "king - man + woman")")
      ->required()
      ->type_name("WORD");
  settings->top_k.add_to(*command, "neighbours of each");
  add_vector_kind(*command, settings->vectors);
  command->add_flag("--json", settings->json, "print one JSON object a line");
  command->footer(
      "Examples:\n"
      "  widehead neighbours model paris london\n"
      "  widehead neighbours model 'king - man + woman' --vectors input --top-k 3");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace widehead::cli
