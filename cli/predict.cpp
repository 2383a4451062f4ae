/// widehead predict: the best outputs for each line of a file, or of what is piped in.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "model_argument.h"
#include "widehead/data/labels_file.h"
#include "widehead/data/line_reader.h"
#include "widehead/data/tokenizer.h"
#include "widehead/train/assemble.h"
#include "widehead/train/evaluate.h"

namespace widehead::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PredictSettings {
  ModelArgument model;
  std::string input = "-";
  TopKOption top_k{5};
  bool json = false;
};

/// Some lines as examples.
template <class T>
struct Examples {
  BatchRows<T> inputs;
  std::vector<std::string> users;  ///< of items
  SparseRows given;                ///< of items: what is not to be recommended
};

/// Reads the lines that a job's models predict for, `evaluation_batch` at a time.
template <class T>
class Reader {
 public:
  explicit Reader(const Model<T>& model) : model_(model) {}
  virtual ~Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// The next examples; none at the end.
  virtual Examples<T> read(LineReader& lines) = 0;
  /// What should be said when all is read, or nothing.
  virtual std::string remark() const { return {}; }

 protected:
  /// Rows as the network was trained on them.
  BatchRows<T> inputs_of(const SparseRows& rows) const {
    SparseRows no_targets;
    for (Size row = 0; row < rows.rows(); ++row) no_targets.end_row();
    const RowsSource<T> source(rows, model_.info.features, no_targets, model_.info.outputs, {},
                               rows_options(model_.options));
    Batch<T> batch;
    if (rows.rows() > 0) source.fill({}, rows.rows(), batch);
    return std::move(batch.inputs);
  }

  const Model<T>& model_;
};

/// A line of text, whose last words are the context.
template <class T>
class TextReader final : public Reader<T> {
 public:
  explicit TextReader(const Model<T>& model)
      : Reader<T>(model), tokenizer_(tokenization_from_name(model.options.tokens), !model.options.keep_case) {}

  Examples<T> read(LineReader& lines) override {
    const auto& model = this->model_;
    const auto options = ngram_options(model.options);
    Examples<T> examples;
    std::vector<Index> words;
    while (examples.inputs.examples() < evaluation_batch) {
      const auto line = lines.next();
      if (!line) break;
      words.clear();
      try {
        tokenizer_.split(*line, [&](std::string_view word) {
          words.push_back(model.vocabulary->find(word).value_or(Vocabulary::unknown));
        });
      } catch (const std::invalid_argument& error) {
        lines.fail(error.what());
      }
      add_context(std::span<const Index>(words), options, static_cast<Index>(model.info.outputs), examples.inputs);
    }
    return examples;
  }

 private:
  Tokenizer tokenizer_;
};

/// A line of features, as in training files.
template <class T>
class FeaturesReader final : public Reader<T> {
 public:
  FeaturesReader(const Model<T>& model, LineReader& lines)
      : Reader<T>(model), examples_(lines, model.info.features, model.info.outputs) {}

  Examples<T> read(LineReader& /*lines*/) override {
    return {this->inputs_of(examples_.read(evaluation_batch)), {}, {}};
  }

 private:
  ExampleReader examples_;
};

/// "USER ITEM ITEM …", separated by white space, or by tabs alone where the line has one. Blank lines are passed over.
template <class T>
class ItemsReader final : public Reader<T> {
 public:
  using Reader<T>::Reader;

  Examples<T> read(LineReader& lines) override {
    Examples<T> examples;
    while (examples.given.rows() < evaluation_batch) {
      const auto line = lines.next();
      if (!line) break;
      if (line->find_first_not_of(" \t") != std::string_view::npos) parse(*line, examples);
    }
    examples.inputs = this->inputs_of(examples.given);
    return examples;
  }

  std::string remark() const override {
    if (unknown_ == 0) return {};
    return fmt::format("{} of the items given are not known to the model and were left out", unknown_);
  }

 private:
  void parse(std::string_view line, Examples<T>& examples) {
    const std::string_view separators = line.find('\t') != std::string_view::npos ? "\t" : " ";
    auto& items = examples.given.indices;
    const auto first = static_cast<std::ptrdiff_t>(items.size());
    bool is_user = true;
    for (std::size_t begin = line.find_first_not_of(separators); begin != std::string_view::npos;) {
      const auto end = std::min(line.find_first_of(separators, begin), line.size());
      const auto name = line.substr(begin, end - begin);
      if (is_user) {
        examples.users.emplace_back(name);
      } else if (const auto item = this->model_.find(name)) {
        items.push_back(*item);
      } else {
        ++unknown_;
      }
      is_user = false;
      begin = line.find_first_not_of(separators, end);
    }
    std::sort(items.begin() + first, items.end());
    items.erase(std::unique(items.begin() + first, items.end()), items.end());
    examples.given.values.resize(items.size(), 1.0F);
    examples.given.end_row();
  }

  std::int64_t unknown_ = 0;
};

template <class T>
std::unique_ptr<Reader<T>> reader_for(const Model<T>& model, LineReader& lines) {
  switch (model.info.job) {
    case Job::labels: return std::make_unique<FeaturesReader<T>>(model, lines);
    case Job::items: return std::make_unique<ItemsReader<T>>(model);
    case Job::lm: break;
  }
  return std::make_unique<TextReader<T>>(model);
}

/// Probabilities in place of scores.
template <class T>
void replace_scores(Network<T>& network, const SparseBatch<T>& X, std::vector<std::vector<Scored>>& ranked) {
  BatchRows<T> best;
  for (const auto& list : ranked) {
    for (const auto& scored : list) best.add(scored.output, T(1));
    best.end_example();
  }
  std::vector<double> log_p(best.indices.size());
  network.head().log_prob(network.hidden(X), best.view(network.head().outputs()), log_p);
  auto next = log_p.begin();
  for (auto& list : ranked) {
    for (auto& scored : list) scored.score = std::exp(*next++);
  }
}

template <class T>
void print(const Model<T>& model, const char* figure, bool json, const std::string* user,
           const std::vector<Scored>& ranked) {
  if (json) {
    const std::string noun(output_noun(model.info.job));
    Json object;
    if (user != nullptr) object["user"] = *user;
    auto& list = object[noun + "s"] = Json::array();
    for (const auto& [output, score] : ranked) list.push_back({{noun, model.name_of(output)}, {figure, score}});
    fmt::print("{}\n", object.dump(-1, ' ', false, Json::error_handler_t::replace));
    return;
  }
  std::string line;
  for (const auto& [output, score] : ranked) {
    line += fmt::format("{}{}:{:.5g}", line.empty() ? "" : " ", model.name_of(output), score);
  }
  if (user != nullptr) fmt::print("{}\t", *user);
  fmt::print("{}\n", line);
}

template <class T>
int predict(const Model<T>& model, const PredictSettings& settings) {
  const Size top_k = settings.top_k.of(model.info.outputs);
  LineReader lines(settings.input == "-" ? "/dev/stdin" : settings.input);
  const auto reader = reader_for(model, lines);
  auto predictor = model.predictor();
  const bool has_p = model.info.job == Job::lm && has_probabilities(model.network->head().options().loss);
  while (true) {
    const auto examples = reader->read(lines);
    if (examples.inputs.examples() == 0) break;
    const auto X = examples.inputs.view(model.info.features);
    const bool excludes = !examples.users.empty();
    const auto given = [&](Size j) { return examples.given.row_indices(j); };
    auto ranked = excludes ? predictor.top_k(X, top_k, given) : predictor.top_k(X, top_k);
    if (has_p) replace_scores(*model.network, X, ranked);
    for (std::size_t j = 0; j < ranked.size(); ++j) {
      print(model, has_p ? "p" : "score", settings.json, excludes ? &examples.users[j] : nullptr, ranked[j]);
    }
    std::fflush(stdout);  // who reads along need not wait
  }
  if (const auto remark = reader->remark(); !remark.empty()) fmt::print(stderr, "widehead: {}\n", remark);
  return 0;
}

int run(const PredictSettings& settings) {
  const auto model = open(settings.model);
  return std::visit([&](const auto& opened) { return predict(opened, settings); }, model);
}

}  // namespace

void add_predict(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("predict", "the best words, labels or items for each line of input");
  auto settings = std::make_shared<PredictSettings>();
  add_model(*command, settings->model);
  command->add_option("FILE", settings->input, "what to predict for, plain, .gz, .xz or .zst; - for standard input")
      ->type_name(file_type)
      ->capture_default_str();
  settings->top_k.add_to(*command, "outputs for each line");
  command->add_flag("--json", settings->json, "print one JSON object a line");
  command->footer(
      "Lines of input are\n"
      "  lm      text, whose last words predict the next\n"
      "  labels  `f:v f:v …` as in training files, whose labels and header may be there\n"
      "  items   `USER ITEM ITEM …`, separated by tabs where there are any\n"
      "Each gives a line `name:score name:score …`, best first; probabilities where the head has them.\n\n"
      "Examples:\n"
      "  echo 'the king of' | widehead predict model\n"
      "  widehead predict model test.txt --top-k 10 --json > predictions.jsonl");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace widehead::cli
