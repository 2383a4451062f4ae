#include "widehead/train/evaluate_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "widehead/data/corpus.h"
#include "widehead/data/items_file.h"
#include "widehead/data/labels_file.h"
#include "widehead/data/token_file.h"
#include "widehead/errors.h"
#include "widehead/train/assemble.h"

namespace widehead {
namespace {

/// The text as ids of the model's words. The file that holds them has no name any more: the mapping keeps it.
TokenFile encode(const std::string& path, const TrainOptions& options, const Vocabulary& vocabulary) {
  const auto ids = std::filesystem::temp_directory_path() / fmt::format("widehead-{}.tokens", getpid());
  encode_corpus({path}, tokenization_from_name(options.tokens), !options.keep_case, vocabulary, ids.string());
  TokenFile tokens(ids.string());
  std::filesystem::remove(ids);
  return tokens;
}

/// Rows over the items of a file as rows over those of the model, 1 where there was anything.
SparseRows rows_over(const ItemIndex& known, const Interactions& file) {
  SparseRows rows;
  for (Size user = 0; user < file.ratings.rows(); ++user) {
    const auto first = rows.indices.size();
    for (const auto item : file.ratings.row_indices(user)) {
      if (const auto found = known.find(file.items.name(item))) rows.indices.push_back(*found);
    }
    std::sort(rows.indices.begin() + static_cast<std::ptrdiff_t>(first), rows.indices.end());
    rows.values.resize(rows.indices.size(), 1.0F);
    rows.end_row();
  }
  return rows;
}

/// Row by row the union.
SparseRows united(const SparseRows& a, const SparseRows& b) {
  SparseRows rows;
  for (Size row = 0; row < a.rows(); ++row) {
    std::ranges::set_union(a.row_indices(row), b.row_indices(row), std::back_inserter(rows.indices));
    rows.values.resize(rows.indices.size(), 1.0F);
    rows.end_row();
  }
  return rows;
}

}  // namespace

template <class T>
Figures evaluate_on_text(const Model<T>& model, const std::string& path, std::int64_t limit) {
  const auto tokens = encode(path, model.options, *model.vocabulary);
  auto options = ngram_options(model.options);
  options.subsample = 0;  // text is evaluated as it is
  const NGramSource<T> source(tokens.tokens(), model.counts, target_scale<T>(model.options, model.counts), options);
  Batch<T> first;
  source.fill({}, 1, first);
  if (first.examples() == 0) throw FileError(fmt::format("{}: no word of it is one of the model's", path));
  auto predictor = model.predictor();
  return evaluate_words<T>(*model.network, predictor, source, limit);
}

template <class T>
Figures evaluate_on_labels(const Model<T>& model, const std::string& path, std::int64_t limit) {
  const auto data = read_labels(path);
  if (data.inputs != model.info.features || data.outputs != model.info.outputs) {
    throw FileError(fmt::format("{}:1: {} features and {} labels, but the model has {} and {}", path, data.inputs,
                                data.outputs, model.info.features, model.info.outputs));
  }
  const RowsSource<T> source(data.features, data.inputs, data.targets, data.outputs,
                             target_scale<T>(model.options, model.counts), rows_options(model.options));
  auto predictor = model.predictor();
  return evaluate_labels<T>(*model.network, predictor, source, data.targets, model.counts, model.info.examples, limit);
}

template <class T>
Figures evaluate_on_items(const Model<T>& model, const ItemFiles& files, std::int64_t limit) {
  const auto options = items_options(model.options);
  auto users = read_items(files.train, options);
  users.ratings = rows_over(*model.items, users);
  users.items = *model.items;
  const auto relevant = read_held_out_items(files.test, users, options).ratings;
  const auto excluded = files.exclude.empty()
                            ? users.ratings
                            : united(users.ratings, read_held_out_items(files.exclude, users, options).ratings);
  if (relevant.nonzeros() == 0) {
    throw FileError(fmt::format("{}: no pair of a user of {} and an item of the model", files.test, files.train));
  }
  const Size D = model.info.outputs;
  const RowsSource<T> source(users.ratings, D, users.ratings, D, {}, rows_options(model.options));
  auto predictor = model.predictor();
  return evaluate_items<T>(predictor, source, relevant, excluded, limit);
}

#define WIDEHEAD_INSTANTIATE(T)                                                           \
  template Figures evaluate_on_text(const Model<T>&, const std::string&, std::int64_t);   \
  template Figures evaluate_on_labels(const Model<T>&, const std::string&, std::int64_t); \
  template Figures evaluate_on_items(const Model<T>&, const ItemFiles&, std::int64_t)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
