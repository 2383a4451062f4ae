/// widehead eval: how good a trained model is, by the measures of its job.

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "command.h"
#include "common_options.h"
#include "model_argument.h"
#include "widehead/eval/analogy.h"
#include "widehead/eval/word_similarity.h"
#include "widehead/train/evaluate_model.h"

namespace widehead::cli {
namespace {

using Json = nlohmann::ordered_json;

struct EvalSettings {
  ModelArgument model;
  std::vector<std::string> similarity;
  std::string analogy, corpus, test, train, exclude;
  std::string vectors = "both";
  std::int64_t most_frequent = AnalogyOptions{}.most_frequent;
  std::int64_t examples = 0;
  bool json = false;
};

std::vector<VectorKind> kinds_of(const EvalSettings& settings) {
  if (settings.vectors == "input") return {VectorKind::input};
  if (settings.vectors == "output") return {VectorKind::output};
  return {VectorKind::input, VectorKind::output};
}

// ── word similarity ──────────────────────────────────────────────────────────────────────────────

/// The vectors of the words in some pairs, and no others.
template <class T>
class PairVectors {
 public:
  PairVectors(const Model<T>& model, const std::vector<WordPairs>& sets) : model_(model), index_({}) {
    const auto all = name_index(model);
    std::vector<bool> needed(static_cast<std::size_t>(all.size()));
    for (const auto& set : sets) {
      for (const auto& pair : set.pairs) {
        for (const auto& word : {pair.first, pair.second}) {
          if (const Index i = all.find(word); i != WordIndex::none) needed[static_cast<std::size_t>(i)] = true;
        }
      }
    }
    std::vector<std::string> words;
    for (Index i = 0; i < all.size(); ++i) {
      if (!needed[static_cast<std::size_t>(i)]) continue;
      outputs_.push_back(i);
      words.push_back(all.word(i));
    }
    index_ = WordIndex(std::move(words), model.options.keep_case ? Case::kept : Case::ignored);
  }

  const WordIndex& index() const { return index_; }
  Matrix<float> vectors(VectorKind kind) const { return vectors_of(model_, kind, outputs_); }

 private:
  const Model<T>& model_;
  std::vector<Index> outputs_;
  WordIndex index_;
};

template <class T>
Json similarity(const Model<T>& model, const EvalSettings& settings) {
  std::vector<WordPairs> sets;
  for (const auto& path : settings.similarity) sets.push_back(read_word_pairs(path));
  const PairVectors<T> words(model, sets);
  Json results = Json::array();
  for (const auto& set : sets) results.push_back({{"file", set.path}});
  for (const auto kind : kinds_of(settings)) {
    const auto vectors = words.vectors(kind);
    for (std::size_t i = 0; i < sets.size(); ++i) {
      const auto result = evaluate_similarity(sets[i], words.index(), vectors);
      results[i][std::string(name_of(kind))] = {
          {"spearman", result.spearman}, {"found", result.found}, {"missing", result.missing}};
    }
  }
  return results;
}

// ── analogies ────────────────────────────────────────────────────────────────────────────────────

/// All but the unknown word, which is no answer.
template <class T>
Json analogies(const Model<T>& model, const EvalSettings& settings) {
  const auto questions = read_analogies(settings.analogy);
  const auto count = std::min<Size>(settings.most_frequent, model.info.outputs - 1);
  std::vector<Index> outputs(static_cast<std::size_t>(count));
  std::iota(outputs.begin(), outputs.end(), Index{1});
  std::vector<std::string> words;
  words.reserve(outputs.size());
  for (const auto output : outputs) words.push_back(model.name_of(output));
  const WordIndex index(std::move(words), model.options.keep_case ? Case::kept : Case::ignored);
  const auto backend = make_cpu_backend<float>(settings.model.threads);
  AnalogyOptions options;
  options.most_frequent = count;
  Json result = {{"file", settings.analogy}};
  for (const auto kind : kinds_of(settings)) {
    const auto vectors = vectors_of(model, kind, outputs);
    const auto answers = evaluate_analogies(questions, index, vectors, *backend, options);
    auto& of_kind = result[std::string(name_of(kind))];
    const auto add = [&](const AnalogyScore& score) {
      of_kind.push_back({{"section", score.name},
                         {"accuracy", score.accuracy()},
                         {"correct", score.correct},
                         {"found", score.found},
                         {"missing", score.missing}});
    };
    for (const auto& section : answers.sections) add(section);
    add(answers.total);
  }
  return result;
}

// ── files of examples ────────────────────────────────────────────────────────────────────────────

Json to_json(const Figures& figures) {
  Json object;
  for (const auto& [name, value] : figures) {
    const bool is_count = name == "examples" || name == "users";
    object[name] = is_count ? Json(static_cast<std::int64_t>(value)) : Json(value);
  }
  return object;
}

template <class T>
Json evaluate(const Model<T>& model, const EvalSettings& settings) {
  const Job job = model.info.job;
  Json result = {{"model", settings.model.path}, {"job", name_of(job)}};
  if (!settings.similarity.empty()) result["similarity"] = similarity(model, settings);
  if (!settings.analogy.empty()) result["analogy"] = analogies(model, settings);
  if (!settings.corpus.empty()) {
    result["held_out"] = to_json(evaluate_on_text(model, settings.corpus, settings.examples));
  }
  if (job == Job::labels) result["held_out"] = to_json(evaluate_on_labels(model, settings.test, settings.examples));
  if (job == Job::items) {
    const ItemFiles files{settings.train, settings.test, settings.exclude};
    result["held_out"] = to_json(evaluate_on_items(model, files, settings.examples));
  }
  return result;
}

/// Every flag given must be one of the job's, and the job's must be there: before a model is read.
void check(Job job, const EvalSettings& settings) {
  const auto only = [&](Job expected, bool given, std::string_view flag) {
    if (given) require_job(job, expected, flag);
  };
  only(Job::lm, !settings.similarity.empty(), "--similarity");
  only(Job::lm, !settings.analogy.empty(), "--analogy");
  only(Job::lm, !settings.corpus.empty(), "--corpus");
  only(Job::items, !settings.train.empty(), "--train");
  only(Job::items, !settings.exclude.empty(), "--exclude");
  if (job == Job::lm) {
    if (!settings.test.empty()) throw std::invalid_argument("--test: a language model is tested with --corpus");
    if (settings.similarity.empty() && settings.analogy.empty() && settings.corpus.empty()) {
      throw std::invalid_argument("a language model needs --corpus, --similarity or --analogy");
    }
  } else if (settings.test.empty() || (job == Job::items && settings.train.empty())) {
    throw std::invalid_argument(fmt::format("a model of the job {} needs {}", name_of(job),
                                            job == Job::items ? "--train and --test" : "--test"));
  }
}

// ── in words ─────────────────────────────────────────────────────────────────────────────────────

std::string number_or_dash(const Json& value) {
  return value.is_null() || std::isnan(value.get<double>()) ? "-" : fmt::format("{:.4f}", value.get<double>());
}

void print_text(const Json& result) {
  if (result.contains("similarity")) {
    fmt::print("{:<32} {:>7} {:>8} {:>9} {:>9}\n", "similarity", "vectors", "found", "missing", "Spearman");
    for (const auto& set : result["similarity"]) {
      for (const char* kind : {"input", "output"}) {
        if (!set.contains(kind)) continue;
        const auto& row = set[kind];
        fmt::print("{:<32} {:>7} {:>8} {:>9} {:>9}\n", set["file"].get<std::string>(), kind, row["found"].get<Size>(),
                   row["missing"].get<Size>(), number_or_dash(row["spearman"]));
      }
    }
  }
  if (result.contains("analogy")) {
    fmt::print("{:<32} {:>7} {:>8} {:>9} {:>9}\n", "analogies", "vectors", "found", "missing", "right");
    for (const char* kind : {"input", "output"}) {
      if (!result["analogy"].contains(kind)) continue;
      for (const auto& row : result["analogy"][kind]) {
        fmt::print("{:<32} {:>7} {:>8} {:>9} {:>9}\n", row["section"].get<std::string>(), kind,
                   row["found"].get<Size>(), row["missing"].get<Size>(), number_or_dash(row["accuracy"]));
      }
    }
  }
  if (result.contains("held_out")) {
    for (const auto& [name, value] : result["held_out"].items()) {
      if (value.is_number_integer()) {
        fmt::print("{:<12} {}\n", name, value.get<std::int64_t>());
      } else {
        fmt::print("{:<12} {:.5g}\n", name, value.get<double>());
      }
    }
  }
}

int run(const EvalSettings& settings) {
  check(job_of(settings.model.path), settings);
  const auto model = open(settings.model);
  const auto result = std::visit([&](const auto& opened) { return evaluate(opened, settings); }, model);
  if (settings.json) {
    fmt::print("{}\n", result.dump());
  } else {
    print_text(result);
  }
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("eval", "how good a trained model is, by the measures of its job");
  auto settings = std::make_shared<EvalSettings>();
  add_model(*command, settings->model);
  command->add_flag("--json", settings->json, "print one JSON object");
  command->add_option("--examples", settings->examples, "examples or users evaluated at most; 0 for all")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N")
      ->capture_default_str();

  constexpr auto* words = "Language models";
  command->add_option("--corpus", settings->corpus, "text: loss, perplexity where there is one, top-1, top-10, MRR")
      ->type_name(file_type)
      ->group(words);
  command
      ->add_option(
          "--similarity", settings->similarity,
          "word pairs with people's scores, `WORD WORD SCORE` a line: Spearman's rank correlation; several files")
      ->type_name(file_type)
      ->group(words);
  command->add_option("--analogy", settings->analogy, "questions in the layout of word2vec's questions-words.txt")
      ->type_name(file_type)
      ->group(words);
  command->add_option("--vectors", settings->vectors, "which vectors of words: embeddings, rows of W, or both")
      ->check(CLI::IsMember({"input", "output", "both"}))
      ->type_name("input|output|both")
      ->group(words)
      ->capture_default_str();
  command->add_option("--most-frequent", settings->most_frequent, "words that analogies are asked and answered with")
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->group(words)
      ->capture_default_str();

  constexpr auto* rows = "Labels and items";
  command
      ->add_option("--test", settings->test,
                   "labels: P@k, nDCG@k and PSP@k for k = 1, 3, 5; items: Recall@k and nDCG@k for k = 10, 20, 50")
      ->type_name(file_type)
      ->group(rows);
  command->add_option("--train", settings->train, "items: what users have, the inputs; these are not recommended")
      ->type_name(file_type)
      ->group(rows);
  command->add_option("--exclude", settings->exclude, "items: further pairs that are not recommended")
      ->type_name(file_type)
      ->group(rows);
  command->footer(
      "Examples:\n"
      "  widehead eval model --corpus test.txt --similarity simlex.txt --analogy questions-words.txt\n"
      "  widehead eval model --test test.txt\n"
      "  widehead eval model --train train.txt --test test.txt --exclude valid.txt --json");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace widehead::cli
