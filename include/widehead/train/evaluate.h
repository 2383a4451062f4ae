#pragma once
/// How good a network is on held-out data, by the measures that are usual for each job.

#include <string>
#include <utility>
#include <vector>

#include "widehead/data/sparse_dataset.h"
#include "widehead/train/batch.h"
#include "widehead/train/predictor.h"

namespace widehead {

/// Named figures about a model or a run, in an order worth reading.
using Figures = std::vector<std::pair<std::string, double>>;

/// Examples evaluated at once.
inline constexpr Size evaluation_batch = 256;

/// Next words: mean loss, perplexity where the head has probabilities, share of targets ranked first and among the
/// first ten, mean reciprocal rank; over the first `limit` examples of the source's first epoch (0 for all).
template <class T>
Figures evaluate_words(Network<T>& network, Predictor<T>& predictor, const BatchSource<T>& source, std::int64_t limit);

/// Labels: mean loss, P@k, nDCG@k and PSP@k for k = 1, 3, 5; over the first `limit` examples.
/// @param counts    how many of the training examples have each label, for PSP; empty for none
/// @param examples  training examples
template <class T>
Figures evaluate_labels(Network<T>& network, Predictor<T>& predictor, const BatchSource<T>& source,
                        const SparseRows& relevant, std::span<const std::int64_t> counts, std::int64_t examples,
                        std::int64_t limit);

/// Items: Recall@k and nDCG@k for k = 10, 20, 50; over users that have held-out items. Items a user has already are not
/// recommended.
/// @param source    users in order, not shuffled
/// @param relevant  held-out items of each user
/// @param excluded  items not to be recommended to each user
template <class T>
Figures evaluate_items(Predictor<T>& predictor, const BatchSource<T>& source, const SparseRows& relevant,
                       const SparseRows& excluded, std::int64_t limit);

}  // namespace widehead
