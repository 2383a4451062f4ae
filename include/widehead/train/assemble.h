#pragma once
/// From the options of a run to the objects that make it up: the one place where words become enumerations.

#include <span>
#include <vector>

#include "widehead/data/items_file.h"
#include "widehead/train/network.h"
#include "widehead/train/ngram_source.h"
#include "widehead/train/options.h"
#include "widehead/train/rows_source.h"
#include "widehead/train/trainer.h"

namespace widehead {

/// @param counts  how often each output is a target, for heads that want to know; empty if unknown
NetworkOptions network_options(Job job, const TrainOptions& options, Size features, Size outputs,
                               std::span<const std::int64_t> counts);
TrainerOptions trainer_options(const TrainOptions& options);
ItemsOptions items_options(const TrainOptions& options);
/// Text as it is trained on; without subsampling it is as it is evaluated.
NGramOptions ngram_options(const TrainOptions& options);
/// Rows as they are evaluated: in order, nothing dropped.
RowsOptions rows_options(const TrainOptions& options);
Loss loss_of(const TrainOptions& options);

/// What the target of each output is multiplied by: none 1, log ln(1/p), sqrt 1/√p, with p the share of the targets
/// that are this output (an output never met counts as met once), scaled so that a target's mean is 1. Empty for none.
template <class T>
std::vector<T> target_scale(const TrainOptions& options, std::span<const std::int64_t> counts);

}  // namespace widehead
