#include "widehead/train/assemble.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace widehead {
namespace {

template <class Enum, std::size_t n>
using Words = std::array<std::pair<std::string_view, Enum>, n>;

/// The value of a word; the table of options has checked that it is one of them.
template <class Words>
auto value_of(const std::string& word, const Words& words) {
  return std::ranges::find_if(words, [&](const auto& named) { return named.first == word; })->second;
}

constexpr Words<Schedule, 4> schedules = {{{"linear", Schedule::linear},
                                           {"cosine", Schedule::cosine},
                                           {"step", Schedule::step},
                                           {"constant", Schedule::constant}}};
constexpr Words<Optimizer, 2> optimizers = {{{"adam", Optimizer::adam}, {"sgd", Optimizer::sgd}}};
constexpr Words<ItemsLayout, 3> layouts = {
    {{"auto", ItemsLayout::detect}, {"lists", ItemsLayout::lists}, {"csv", ItemsLayout::csv}}};
constexpr Words<Initial, 2> initials = {{{"zero", Initial::zero}, {"normal", Initial::normal}}};

}  // namespace

Loss loss_of(const TrainOptions& options) {
  Loss loss = make_loss(options.loss);
  const auto set = [&]<class L>(double L::*parameter, double value) {
    if (auto* l = std::get_if<L>(&loss); l != nullptr && !std::isnan(value)) l->*parameter = value;
  };
  set(&SphericalSoftmax::epsilon, options.epsilon);
  set(&SphericalSoftmaxOutside::epsilon, options.epsilon);
  set(&ZLoss::scale, options.scale);
  set(&ZLoss::shift, options.shift);
  set(&WeightedSquaredError::unobserved, options.unobserved);
  set(&WeightedSquaredError::observed, options.observed);
  return loss;
}

NetworkOptions network_options(Job job, const TrainOptions& options, Size features, Size outputs,
                               std::span<const std::int64_t> counts) {
  NetworkOptions network;
  network.features = features;
  network.slots = job == Job::lm && options.combine == "concat" ? options.context : 1;
  network.hidden.assign(options.hidden.begin(), options.hidden.end());
  network.hidden.push_back(options.dim);
  network.embedding = options.embedding;
  if (network.embedding == 0) {  // as wide as what follows; a sum then takes its place
    network.embedding = network.hidden.front();
    if (network.slots == 1) network.hidden.erase(network.hidden.begin());
  }
  network.activation = value_of(options.activation, activation_names());
  network.input_scale = options.input_scale;
  network.optimizer = value_of(options.optimizer, optimizers);
  network.clip = options.clip;
  network.head_rate = {options.head_lr, options.lambda};
  network.seed = static_cast<std::uint64_t>(options.seed);

  auto& head = network.head;
  head.head = options.head;
  head.layer.outputs = outputs;
  head.layer.dim = options.dim;
  const auto spherical = spherical_head_names();
  const bool is_spherical = std::ranges::find(spherical, options.head) != spherical.end();
  if (is_spherical) head.layer.loss = loss_of(options);  // the others have their own
  head.layer.weight_decay = options.weight_decay;
  head.layer.initial = value_of(options.init, initials);
  head.layer.initial_scale = options.init_scale;
  head.layer.seed = network.seed;
  head.windowed.window = options.window;
  head.windowed.rows_file = options.rows_file;
  head.windowed.rows = value_of(options.rows, row_place_names());
  head.hierarchical.frequencies.assign(counts.begin(), counts.end());
  head.sampled.samples = options.samples;
  return network;
}

TrainerOptions trainer_options(const TrainOptions& options) {
  TrainerOptions trainer;
  trainer.epochs = options.epochs;
  trainer.batch = options.batch;
  trainer.lr = options.lr;
  trainer.schedule = value_of(options.schedule, schedules);
  trainer.warm_up = options.warm_up;
  trainer.save_every_seconds = 60 * options.save_every;
  return trainer;
}

ItemsOptions items_options(const TrainOptions& options) {
  ItemsOptions items;
  items.layout = value_of(options.layout, layouts);
  items.min_rating = static_cast<float>(options.min_rating);
  return items;
}

NGramOptions ngram_options(const TrainOptions& options) {
  NGramOptions ngram;
  ngram.context = options.context;
  ngram.combine = options.combine == "mean" ? Combine::mean : Combine::concat;
  ngram.predict_unknown = options.predict_unknown;
  ngram.subsample = options.subsample;
  ngram.seed = static_cast<std::uint64_t>(options.seed);
  return ngram;
}

RowsOptions rows_options(const TrainOptions& options) {
  RowsOptions rows;
  rows.unit_length = options.input_norm == "l2";
  rows.seed = static_cast<std::uint64_t>(options.seed);
  rows.shuffle = false;
  return rows;
}

template <class T>
std::vector<T> target_scale(const TrainOptions& options, std::span<const std::int64_t> counts) {
  if (options.target_scale == "none") return {};
  double total = 0;
  for (const auto count : counts) total += static_cast<double>(std::max<std::int64_t>(1, count));
  std::vector<double> scale;
  double mean = 0;
  for (const auto count : counts) {
    const double p = static_cast<double>(std::max<std::int64_t>(1, count)) / total;
    scale.push_back(options.target_scale == "log" ? -std::log(p) : 1 / std::sqrt(p));
    mean += p * scale.back();
  }
  std::vector<T> factors;
  factors.reserve(scale.size());
  for (const double value : scale) factors.push_back(static_cast<T>(mean > 0 ? value / mean : 1));
  return factors;
}

template std::vector<float> target_scale(const TrainOptions&, std::span<const std::int64_t>);
template std::vector<double> target_scale(const TrainOptions&, std::span<const std::int64_t>);

}  // namespace widehead
