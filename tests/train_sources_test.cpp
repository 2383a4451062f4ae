/// Where minibatches come from: n-grams, rows, and the thread that is ahead.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <tuple>

#include "dice.h"
#include "widehead/train/ngram_source.h"
#include "widehead/train/prefetcher.h"
#include "widehead/train/rows_source.h"

namespace widehead::test {
namespace {

// ── n-grams ─────────────────────────────────────────────────────────────────────────────────────

/// An example as it stands in a minibatch.
struct Example {
  std::vector<Index> inputs;
  std::vector<double> input_values;
  std::vector<Index> targets;
  std::vector<double> target_values;
  auto operator<=>(const Example&) const = default;
};

template <class T>
std::vector<Example> examples_of(const Batch<T>& batch) {
  std::vector<Example> list;
  const auto take = [](const BatchRows<T>& rows, std::size_t j, std::vector<Index>& indices,
                       std::vector<double>& values) {
    for (auto e = static_cast<std::size_t>(rows.offsets[j]); e < static_cast<std::size_t>(rows.offsets[j + 1]); ++e) {
      indices.push_back(rows.indices[e]);
      values.push_back(static_cast<double>(rows.values[e]));
    }
  };
  EXPECT_EQ(batch.inputs.examples(), batch.targets.examples());
  for (std::size_t j = 0; j < static_cast<std::size_t>(batch.examples()); ++j) {
    auto& example = list.emplace_back();
    take(batch.inputs, j, example.inputs, example.input_values);
    take(batch.targets, j, example.targets, example.target_values);
  }
  return list;
}

/// All examples of an epoch, in minibatches whose sizes `size` draws.
template <class T, class NextSize>
std::vector<Example> epoch_of(const BatchSource<T>& source, std::int64_t epoch, const NextSize& size) {
  std::vector<Example> all;
  Batch<T> batch;
  Cursor at{epoch, 0};
  double share = -1;
  while (at.epoch == epoch) {
    EXPECT_GT(source.share_of_epoch(at), share);
    share = source.share_of_epoch(at);
    EXPECT_LT(share, 1);
    const Size m = size();
    source.fill(at, m, batch);
    EXPECT_LE(batch.examples(), m);
    if (batch.next.epoch == epoch) {
      EXPECT_EQ(batch.examples(), m);
    } else {
      EXPECT_EQ(batch.next, (Cursor{epoch + 1, 0}));
      EXPECT_TRUE(batch.examples() > 0 || at.position == 0);
    }
    for (auto& example : examples_of(batch)) all.push_back(std::move(example));
    at = batch.next;
  }
  return all;
}
template <class T>
std::vector<Example> epoch_of(const BatchSource<T>& source, std::int64_t epoch) {
  return epoch_of(source, epoch, [] { return Size{7}; });
}

/// Lines of words 0 … D − 1, some empty.
std::vector<Index> make_tokens(Dice& dice, Size lines, Size D) {
  std::vector<Index> tokens;
  for (Size line = 0; line < lines; ++line) {
    for (Size k = dice.between(0, 9); k > 0; --k) tokens.push_back(static_cast<Index>(dice.between(0, D - 1)));
    tokens.push_back(-1);
  }
  return tokens;
}

constexpr Size D = 6;  // words; padding is 6
const std::vector<std::int64_t> equal_counts(D, 10);

/// The examples by definition: line after line, word after word.
std::vector<Example> ngrams(const std::vector<Index>& tokens, const NGramOptions& options) {
  std::vector<Example> list;
  std::vector<Index> line;
  for (const Index token : tokens) {
    if (token < 0) {
      line.clear();
      continue;
    }
    if (token > 0 || options.predict_unknown) {
      Example example;
      const auto n = static_cast<std::size_t>(options.context), known = std::min(line.size(), n);
      const std::vector<Index> near(line.end() - static_cast<std::ptrdiff_t>(known), line.end());
      if (options.combine == Combine::concat) {
        example.inputs.assign(n - known, static_cast<Index>(D));
        example.inputs.insert(example.inputs.end(), near.begin(), near.end());
        example.input_values.assign(n, 1.0);
      } else {
        example.inputs = near.empty() ? std::vector<Index>{static_cast<Index>(D)} : near;
        example.input_values.assign(example.inputs.size(), 1.0 / static_cast<double>(example.inputs.size()));
      }
      example.targets = {token};
      example.target_values = {1};
      list.push_back(example);
    }
    line.push_back(token);
  }
  return list;
}

TEST(AddContext, TakesTheLastWordsOfALongText) {
  const std::vector<Index> text{5, 6, 7, 8};
  for (const auto combine : {Combine::concat, Combine::mean}) {
    NGramOptions options;
    options.context = 2;
    options.combine = combine;
    BatchRows<float> inputs;
    add_context<float>(text, options, 9, inputs);
    EXPECT_EQ(inputs.indices, (std::vector<Index>{7, 8}));
    EXPECT_EQ(inputs.values, std::vector<float>(2, combine == Combine::mean ? 0.5F : 1.F));
  }
}

TEST(NGramSource, GivesTheNGramsOfTheCorpusByDefinition) {
  for (const auto seed : seeds(5)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Dice dice(seed);
    const auto tokens = make_tokens(dice, 60, D);
    for (const auto combine : {Combine::concat, Combine::mean}) {
      for (const bool unknown : {false, true}) {
        for (const Size context : {1, 2, 5}) {
          NGramOptions options{.context = context, .combine = combine, .predict_unknown = unknown, .shuffle = false};
          const NGramSource<double> ordered(tokens, equal_counts, {}, options);
          EXPECT_EQ(ordered.features(), D + 1);
          EXPECT_EQ(ordered.outputs(), D);
          auto truth = ngrams(tokens, options);
          EXPECT_EQ(epoch_of(ordered, 0), truth);
          options.shuffle = true;
          options.seed = seed;
          const NGramSource<double> shuffled(tokens, equal_counts, {}, options);
          auto first = epoch_of(shuffled, 0), second = epoch_of(shuffled, 1);
          EXPECT_NE(first, truth);
          EXPECT_NE(first, second);
          std::ranges::sort(truth);
          std::ranges::sort(first);
          std::ranges::sort(second);
          EXPECT_EQ(first, truth);
          EXPECT_EQ(second, truth);
        }
      }
    }
  }
}

TEST(NGramSource, IsAPureFunctionOfTheCursorHoweverMinibatchesAreCut) {
  Dice dice(81);
  const auto tokens = make_tokens(dice, 80, D);
  const NGramSource<float> source(tokens, equal_counts, {}, {.context = 3, .subsample = 0.05, .seed = 4});
  for (const std::int64_t epoch : {0, 1, 1000}) {
    const auto whole = epoch_of(source, epoch, [] { return Size{100000}; });
    EXPECT_EQ(epoch_of(source, epoch, [] { return Size{1}; }), whole);
    EXPECT_EQ(epoch_of(source, epoch, [&] { return dice.between(1, 20); }), whole);
    EXPECT_EQ(epoch_of(source, epoch, [&] { return dice.between(1, 20); }), whole);
  }
}

TEST(NGramSource, DependsOnItsSeed) {
  Dice dice(82);
  const auto tokens = make_tokens(dice, 80, D);
  const auto order = [&](std::uint64_t seed) {
    return epoch_of(NGramSource<float>(tokens, equal_counts, {}, {.seed = seed}), 0);
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(NGramSource, ScalesTargets) {
  const std::vector<Index> tokens = {3, 5, -1};
  const NGramSource<double> source(tokens, equal_counts, {0.5, 1, 2, 3, 4, 5}, {.shuffle = false});
  const auto examples = epoch_of(source, 0);
  EXPECT_EQ(examples.at(0).target_values, std::vector<double>{3});
  EXPECT_EQ(examples.at(1).target_values, std::vector<double>{5});
}

/// A word of frequency p is kept with probability √(t/p) + t/p, anew in every epoch.
TEST(NGramSource, SubsamplesFrequentWords) {
  Dice dice(83);
  std::vector<Index> tokens;
  std::vector<std::int64_t> counts(D);
  for (int k = 0; k < 30000; ++k) {
    const auto word = static_cast<Index>(std::min<Size>({dice.between(1, 5), dice.between(1, 5), dice.between(1, 5)}));
    tokens.push_back(word);
    ++counts[static_cast<std::size_t>(word)];
  }
  constexpr double t = 0.02;
  const NGramSource<float> source(tokens, counts, {}, {.context = 1, .subsample = t, .seed = 9});
  std::map<Index, double> met;
  for (const auto& example : epoch_of(source, 3)) ++met[example.targets[0]];
  for (std::size_t word = 1; word < static_cast<std::size_t>(D); ++word) {
    const auto count = static_cast<double>(counts[word]);
    const double ratio = t / (count / 30000), keep = std::min(1.0, std::sqrt(ratio) + ratio);
    EXPECT_NEAR(met[static_cast<Index>(word)], keep * count, 5 * std::sqrt(keep * (1 - keep) * count)) << word;
  }
  EXPECT_LT(met[1], 0.4 * static_cast<double>(counts[1]));  // the frequent one
  EXPECT_EQ(met[5], static_cast<double>(counts[5]));        // the rare one, which is always kept
  const auto third = epoch_of(source, 3).size(), fourth = epoch_of(source, 4).size();
  EXPECT_NE(third, fourth);
}

TEST(NGramSource, EndsAnEmptyEpochAtOnce) {
  for (const auto& tokens : {std::vector<Index>{}, std::vector<Index>{-1, -1, 0, -1}}) {
    const NGramSource<float> source(tokens, equal_counts, {}, {});
    Batch<float> batch;
    source.fill({2, 0}, 5, batch);
    EXPECT_EQ(batch.examples(), 0);
    EXPECT_EQ(batch.next, (Cursor{3, 0}));
  }
  EXPECT_EQ((NGramSource<float>({}, equal_counts, {}, {}).share_of_epoch({})), 1);
}

// ── rows ────────────────────────────────────────────────────────────────────────────────────────

struct Rows {
  SparseRows inputs, targets;
  Size features = 40, outputs = 9;
};
Rows make_rows(Dice& dice, Size count) {
  Rows rows;
  const auto fill = [&](SparseRows& to, Size extent, double share) {
    for (Size i = 0; i < extent; ++i) {
      if (dice.uniform(0, 1) >= share) continue;
      to.indices.push_back(static_cast<Index>(i));
      to.values.push_back(static_cast<float>(dice.uniform(0.5, 2)));
    }
    to.end_row();
  };
  for (Size row = 0; row < count; ++row) {
    fill(rows.inputs, row == 3 ? 0 : rows.features, 0.4);
    fill(rows.targets, rows.outputs, 0.3);
  }
  return rows;
}

std::vector<Example> rows_by_definition(const Rows& rows) {
  std::vector<Example> list;
  for (Size row = 0; row < rows.inputs.rows(); ++row) {
    const auto take = [&](const SparseRows& from, std::vector<Index>& indices, std::vector<double>& values) {
      indices.assign(from.row_indices(row).begin(), from.row_indices(row).end());
      values.assign(from.row_values(row).begin(), from.row_values(row).end());
    };
    auto& example = list.emplace_back();
    take(rows.inputs, example.inputs, example.input_values);
    take(rows.targets, example.targets, example.target_values);
  }
  return list;
}

TEST(RowsSource, GivesEveryRowOnceInOrderOrShuffled) {
  Dice dice(84);
  const auto rows = make_rows(dice, 57);
  auto truth = rows_by_definition(rows);
  RowsOptions options{.shuffle = false, .seed = 6};
  const RowsSource<double> ordered(rows.inputs, rows.features, rows.targets, rows.outputs, {}, options);
  EXPECT_EQ(epoch_of(ordered, 0), truth);
  EXPECT_EQ(epoch_of(ordered, 5), truth);
  options.shuffle = true;
  const RowsSource<double> shuffled(rows.inputs, rows.features, rows.targets, rows.outputs, {}, options);
  EXPECT_EQ(shuffled.features(), 40);
  EXPECT_EQ(shuffled.outputs(), 9);
  auto first = epoch_of(shuffled, 0), second = epoch_of(shuffled, 1);
  EXPECT_NE(first, truth);
  EXPECT_NE(first, second);
  std::ranges::sort(truth);
  std::ranges::sort(first);
  std::ranges::sort(second);
  EXPECT_EQ(first, truth);
  EXPECT_EQ(second, truth);
}

TEST(RowsSource, IsAPureFunctionOfTheCursorHoweverMinibatchesAreCut) {
  Dice dice(85);
  const auto rows = make_rows(dice, 61);
  const RowsSource<float> source(rows.inputs, rows.features, rows.targets, rows.outputs, {},
                                 {.unit_length = true, .dropout = 0.4, .seed = 2});
  for (const std::int64_t epoch : {0, 7}) {
    const auto whole = epoch_of(source, epoch, [] { return Size{61}; });
    EXPECT_EQ(epoch_of(source, epoch, [] { return Size{1}; }), whole);
    EXPECT_EQ(epoch_of(source, epoch, [&] { return dice.between(1, 20); }), whole);
    EXPECT_EQ(epoch_of(source, epoch, [] { return Size{1000}; }), whole);
  }
}

TEST(RowsSource, LeavesARowOfZerosAsItIsWhereUnitLengthIsAskedFor) {
  SparseRows inputs, targets;
  inputs.indices = {2};
  inputs.values = {0};
  inputs.end_row();
  targets.end_row();
  const RowsSource<float> source(inputs, 3, targets, 2, {}, {.unit_length = true, .shuffle = false});
  Batch<float> batch;
  source.fill({}, 1, batch);
  EXPECT_EQ(batch.inputs.values, std::vector<float>{0});
}

TEST(RowsSource, ScalesInputsToUnitLengthAndTargetsByOutput) {
  Dice dice(86);
  const auto rows = make_rows(dice, 20);
  const std::vector<double> scale = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const RowsSource<double> source(rows.inputs, rows.features, rows.targets, rows.outputs, scale,
                                  {.unit_length = true, .shuffle = false});
  auto truth = rows_by_definition(rows);
  for (auto& example : truth) {
    double sum = 0;
    for (const double value : example.input_values) sum += value * value;
    for (double& value : example.input_values) value /= std::sqrt(sum);
    for (std::size_t k = 0; k < example.targets.size(); ++k) {
      example.target_values[k] *= scale[static_cast<std::size_t>(example.targets[k])];
    }
  }
  const auto examples = epoch_of(source, 0);
  ASSERT_EQ(examples.size(), truth.size());
  for (std::size_t j = 0; j < truth.size(); ++j) {
    EXPECT_EQ(examples[j].inputs, truth[j].inputs);
    EXPECT_EQ(examples[j].targets, truth[j].targets);
    EXPECT_EQ(examples[j].target_values, truth[j].target_values);
    for (std::size_t k = 0; k < truth[j].inputs.size(); ++k) {
      EXPECT_NEAR(examples[j].input_values[k], truth[j].input_values[k], 1e-15);
    }
  }
}

/// The length is that before the dropout, so that the expectation of an input is the input.
TEST(RowsSource, DropsAShareOfTheInputsAnewInEveryEpochAndScalesTheOthers) {
  Dice dice(87);
  const auto rows = make_rows(dice, 500);
  for (const double dropout : {0.2, 0.7}) {
    const RowsSource<double> source(rows.inputs, rows.features, rows.targets, rows.outputs, {},
                                    {.dropout = dropout, .shuffle = false, .seed = 3});
    const auto truth = rows_by_definition(rows), first = epoch_of(source, 0), second = epoch_of(source, 1);
    double all = 0, kept = 0, twice = 0;
    for (std::size_t j = 0; j < truth.size(); ++j) {
      EXPECT_EQ(first[j].targets, truth[j].targets);
      std::map<Index, double> values;
      for (std::size_t k = 0; k < truth[j].inputs.size(); ++k) values[truth[j].inputs[k]] = truth[j].input_values[k];
      for (std::size_t k = 0; k < first[j].inputs.size(); ++k) {
        EXPECT_NEAR(first[j].input_values[k], values.at(first[j].inputs[k]) / (1 - dropout), 1e-12);
        twice += std::ranges::find(second[j].inputs, first[j].inputs[k]) != second[j].inputs.end() ? 1 : 0;
      }
      all += static_cast<double>(truth[j].inputs.size());
      kept += static_cast<double>(first[j].inputs.size());
    }
    const double keep = 1 - dropout;
    EXPECT_NEAR(kept, keep * all, 5 * std::sqrt(keep * dropout * all));
    EXPECT_NEAR(twice, keep * keep * all, 5 * std::sqrt(keep * keep * all));
  }
}

TEST(RowsSource, RefusesRowsThatDoNotFit) {
  Dice dice(88);
  const auto rows = make_rows(dice, 5);
  EXPECT_THROW(RowsSource<float>(rows.inputs, 10, rows.targets, rows.outputs, {}, {}), std::invalid_argument);
  EXPECT_THROW(RowsSource<float>(rows.inputs, rows.features, rows.targets, 3, {}, {}), std::invalid_argument);
  EXPECT_THROW(RowsSource<float>(make_rows(dice, 4).inputs, rows.features, rows.targets, 9, {}, {}),
               std::invalid_argument);
}

TEST(RowsSource, EndsAnEmptyEpochAtOnce) {
  const SparseRows none;
  const RowsSource<float> source(none, 3, none, 3, {}, {});
  Batch<float> batch;
  source.fill({0, 0}, 5, batch);
  EXPECT_EQ(batch.examples(), 0);
  EXPECT_EQ(batch.next, (Cursor{1, 0}));
  EXPECT_EQ(source.share_of_epoch({}), 1);
}

// ── the thread that is ahead ────────────────────────────────────────────────────────────────────

TEST(Prefetcher, GivesWhatTheSourceGivesFromAnyCursor) {
  Dice dice(89);
  const auto tokens = make_tokens(dice, 40, D);
  const NGramSource<float> source(tokens, equal_counts, {}, {.context = 2, .seed = 5});
  constexpr std::int64_t epochs = 3;
  constexpr Size m = 11;
  std::vector<Cursor> cursors;
  std::vector<std::pair<std::vector<Example>, Cursor>> truth;
  Batch<float> batch;
  for (Cursor at; at.epoch < epochs; at = batch.next) {
    source.fill(at, m, batch);
    cursors.push_back(at);
    truth.emplace_back(examples_of(batch), batch.next);
  }
  for (std::size_t start = 0; start < cursors.size(); ++start) {
    Prefetcher<float> ahead(source, cursors[start], epochs, m);
    for (std::size_t k = start; k < truth.size(); ++k) {
      const auto* next = ahead.next();
      ASSERT_NE(next, nullptr);
      ASSERT_EQ(examples_of(*next), truth[k].first) << "from " << start << ", minibatch " << k;
      ASSERT_EQ(next->next, truth[k].second);
    }
    EXPECT_EQ(ahead.next(), nullptr);
    EXPECT_EQ(ahead.next(), nullptr);
  }
}

/// Examples that are numbers; throws at a cursor, and has epochs without examples.
class Counting final : public BatchSource<float> {
 public:
  std::int64_t broken_at = -1, empty_epoch = -1;
  Size features() const override { return 1000; }
  Size outputs() const override { return 1000; }
  void fill(const Cursor& at, Size m, Batch<float>& batch) const override {
    batch.clear();
    if (at.epoch * 10 + at.position == broken_at) throw std::runtime_error("the disk is gone");
    for (Size k = 0; at.epoch != empty_epoch && k < m; ++k) {
      batch.inputs.add(static_cast<Index>(at.epoch * 10 + at.position), 1);
      batch.inputs.end_example();
      batch.targets.end_example();
    }
    const bool is_last = at.position == 9 || at.epoch == empty_epoch;
    batch.next = is_last ? Cursor{at.epoch + 1, 0} : Cursor{at.epoch, at.position + 1};
  }
  double share_of_epoch(const Cursor& at) const override { return static_cast<double>(at.position) / 10; }
};

TEST(Prefetcher, LeavesWhatItHandedOutAloneUntilTheNextCall) {
  const Counting source;
  Prefetcher<float> ahead(source, {}, 4, 1);
  for (Index k = 0; k < 40; ++k) {
    const auto* batch = ahead.next();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // for the thread to run ahead as far as it will
    ASSERT_EQ(batch->inputs.indices, std::vector<Index>{k});
  }
  EXPECT_EQ(ahead.next(), nullptr);
  EXPECT_GE(ahead.seconds_waited(), 0);
}

TEST(Prefetcher, ThrowsWhatTheSourceThrewAfterWhatCameBefore) {
  Counting source;
  source.broken_at = 17;
  Prefetcher<float> ahead(source, {}, 4, 1);
  for (int k = 0; k < 17; ++k) ASSERT_NE(ahead.next(), nullptr);
  EXPECT_THROW(ahead.next(), std::runtime_error);
  EXPECT_THROW(ahead.next(), std::runtime_error);
}

TEST(Prefetcher, LeavesEmptyMinibatchesOut) {
  for (const std::int64_t empty : {0, 1, 2}) {
    Counting source;
    source.empty_epoch = empty;
    Prefetcher<float> ahead(source, {}, 3, 2);
    int count = 0;
    while (const auto* batch = ahead.next()) {
      EXPECT_EQ(batch->examples(), 2);
      ++count;
    }
    EXPECT_EQ(count, 20);
  }
}

TEST(Prefetcher, MayBeLeftEarly) {
  for (int taken = 0; taken < 12; ++taken) {
    const Counting source;
    Prefetcher<float> ahead(source, {}, 1000000, 1);
    for (int k = 0; k < taken; ++k) ASSERT_NE(ahead.next(), nullptr);
  }
}

}  // namespace
}  // namespace widehead::test
