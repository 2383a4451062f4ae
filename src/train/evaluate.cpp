#include "widehead/train/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "widehead/eval/ranking.h"

namespace widehead {
namespace {

/// visit(batch, first example) for the minibatches of the source's first epoch, `limit` examples in all.
template <class T, class Visit>
void for_each_batch(const BatchSource<T>& source, std::int64_t limit, const Visit& visit) {
  if (limit == 0) limit = std::numeric_limits<std::int64_t>::max();
  Batch<T> batch;
  Size done = 0;
  for (Cursor at; at.epoch == 0 && done < limit; at = batch.next) {
    source.fill(at, static_cast<Size>(std::min<std::int64_t>(evaluation_batch, limit - done)), batch);
    if (batch.examples() == 0) return;
    visit(batch, done);
    done += batch.examples();
  }
}

std::vector<Index> outputs_of(const std::vector<Scored>& ranked) {
  std::vector<Index> outputs;
  outputs.reserve(ranked.size());
  for (const auto& scored : ranked) outputs.push_back(scored.output);
  return outputs;
}

}  // namespace

template <class T>
Figures evaluate_words(Network<T>& network, Predictor<T>& predictor, const BatchSource<T>& source, std::int64_t limit) {
  double examples = 0, loss = 0, log_p = 0, first = 0, first_ten = 0, reciprocal = 0;
  const bool has_probabilities = network.head().has_probabilities();
  for_each_batch(source, limit, [&](const Batch<T>& batch, Size) {
    const auto X = batch.inputs.view(source.features());
    const auto Y = batch.targets.view(source.outputs());
    loss += network.evaluate(X, Y);
    if (has_probabilities) {
      std::vector<double> log_p_of(static_cast<std::size_t>(Y.nonzeros()));
      network.head().log_prob(network.hidden(X), Y, log_p_of);
      for (const double value : log_p_of) log_p += value;
    }
    for (const double rank : predictor.ranks(X, Y)) {
      first += rank <= 1 ? 1 : 0;
      first_ten += rank <= 10 ? 1 : 0;
      reciprocal += 1 / rank;
    }
    examples += static_cast<double>(batch.examples());
  });
  if (examples == 0) return {};  // nothing but unknown words
  Figures figures = {{"examples", examples}, {"loss", loss / examples}};
  if (has_probabilities) figures.emplace_back("perplexity", std::exp(-log_p / examples));
  figures.emplace_back("top1", first / examples);
  figures.emplace_back("top10", first_ten / examples);
  figures.emplace_back("mrr", reciprocal / examples);
  return figures;
}

template <class T>
Figures evaluate_labels(Network<T>& network, Predictor<T>& predictor, const BatchSource<T>& source,
                        const SparseRows& relevant, std::span<const std::int64_t> counts, std::int64_t examples,
                        std::int64_t limit) {
  constexpr std::int64_t fewest_for_propensities = 3;
  const bool scored = !counts.empty() && examples >= fewest_for_propensities;
  RankingSummary summary({1, 3, 5}, scored ? inverse_propensities(counts, examples) : std::vector<double>());
  const Size k = std::min<Size>(summary.largest_k(), source.outputs());
  double loss = 0, count = 0;
  for_each_batch(source, limit, [&](const Batch<T>& batch, Size first) {
    const auto X = batch.inputs.view(source.features());
    loss += network.evaluate(X, batch.targets.view(source.outputs()));
    count += static_cast<double>(batch.examples());
    const auto ranked = predictor.top_k(X, k);
    for (std::size_t j = 0; j < ranked.size(); ++j) {
      summary.add(outputs_of(ranked[j]), relevant.row_indices(first + static_cast<Size>(j)));
    }
  });
  Figures figures = {{"examples", static_cast<double>(summary.examples())}, {"loss", loss / count}};
  const auto metrics = summary.metrics();
  for (const auto& at : metrics) figures.emplace_back(fmt::format("P@{}", at.k), at.precision);
  for (const auto& at : metrics) figures.emplace_back(fmt::format("nDCG@{}", at.k), at.ndcg);
  if (scored) {
    for (const auto& at : metrics) figures.emplace_back(fmt::format("PSP@{}", at.k), at.psp);
  }
  return figures;
}

template <class T>
Figures evaluate_items(Predictor<T>& predictor, const BatchSource<T>& source, const SparseRows& relevant,
                       const SparseRows& excluded, std::int64_t limit) {
  RankingSummary summary({10, 20, 50});
  const Size k = std::min<Size>(summary.largest_k(), source.outputs());
  for_each_batch(source, limit, [&](const Batch<T>& batch, Size first) {
    const auto ranked = predictor.top_k(batch.inputs.view(source.features()), k,
                                        [&](Size j) { return excluded.row_indices(first + j); });
    for (std::size_t j = 0; j < ranked.size(); ++j) {
      summary.add(outputs_of(ranked[j]), relevant.row_indices(first + static_cast<Size>(j)));
    }
  });
  Figures figures = {{"users", static_cast<double>(summary.examples())}};
  const auto metrics = summary.metrics();
  for (const auto& at : metrics) figures.emplace_back(fmt::format("Recall@{}", at.k), at.recall);
  for (const auto& at : metrics) figures.emplace_back(fmt::format("nDCG@{}", at.k), at.ndcg);
  return figures;
}

#define WIDEHEAD_INSTANTIATE(T)                                                                               \
  template Figures evaluate_words(Network<T>&, Predictor<T>&, const BatchSource<T>&, std::int64_t);           \
  template Figures evaluate_labels(Network<T>&, Predictor<T>&, const BatchSource<T>&, const SparseRows&,      \
                                   std::span<const std::int64_t>, std::int64_t, std::int64_t);                \
  template Figures evaluate_items(Predictor<T>&, const BatchSource<T>&, const SparseRows&, const SparseRows&, \
                                  std::int64_t)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
