/// Recommender data: a user's items are input and target at once.

#include <fmt/format.h>

#include <optional>

#include "job_data_kinds.h"
#include "widehead/data/items_file.h"
#include "widehead/random.h"
#include "widehead/train/assemble.h"
#include "widehead/train/rows_source.h"

namespace widehead {
namespace {

constexpr std::uint32_t hold_out_stream = 0x48;  // "H"

/// Moves a random share of each user's items to the returned rows; a user keeps one at least.
SparseRows hold_out_items(SparseRows& rows, double share, std::uint64_t seed) {
  const Random random(seed, hold_out_stream);
  SparseRows kept, held_out;
  for (Size user = 0; user < rows.rows(); ++user) {
    const auto items = rows.row_indices(user);
    const auto values = rows.row_values(user);
    for (std::size_t k = 0; k < items.size(); ++k) {
      const bool last_chance = k + 1 == items.size() && kept.nonzeros() == kept.offsets.back();
      const auto item = static_cast<std::uint32_t>(items[k]);
      const bool is_held_out = !last_chance && random.uniform(static_cast<std::uint64_t>(user), item).first < share;
      auto& to = is_held_out ? held_out : kept;
      to.indices.push_back(items[k]);
      to.values.push_back(values[k]);
    }
    kept.end_row();
    held_out.end_row();
  }
  rows = std::move(kept);
  return held_out;
}

template <class T>
class ItemsData final : public JobData<T> {
 public:
  ItemsData(const TrainOptions& options, Interactions training, SparseRows held_out)
      : options_(options),
        training_(std::move(training)),
        held_out_(std::move(held_out)),
        counts_(static_cast<std::size_t>(training_.items.size())) {
    const Size D = training_.items.size();
    for (const auto item : training_.ratings.indices) ++counts_[static_cast<std::size_t>(item)];
    for (auto& value : training_.ratings.values) value = 1;  // a pair is a pair: ratings choose, they do not weigh
    const auto rows = rows_options(options);
    auto training_rows = rows;
    training_rows.shuffle = true;
    training_rows.dropout = options.dropout;
    source_.emplace(training_.ratings, D, training_.ratings, D, target_scale<T>(options, counts_), training_rows);
    validation_.emplace(training_.ratings, D, training_.ratings, D, std::vector<T>(), rows);
  }

  const BatchSource<T>& source() const override { return *source_; }
  std::span<const std::int64_t> counts() const override { return counts_; }
  std::int64_t examples() const override { return training_.ratings.rows(); }
  std::string description() const override {
    return fmt::format("{} users, {} items, {} pairs; {} held out", training_.ratings.rows(), training_.items.size(),
                       training_.ratings.nonzeros(), held_out_.nonzeros());
  }
  std::string names_file() const override { return "items.txt"; }
  void save_names(const std::string& path) const override { training_.items.save(path); }

  Figures evaluate(Network<T>& network) override {
    if (held_out_.nonzeros() == 0) return {};
    Predictor<T> predictor(network, target_scale<T>(options_, counts_), static_cast<int>(options_.threads));
    return evaluate_items<T>(predictor, *validation_, held_out_, training_.ratings, options_.valid_examples);
  }

 private:
  TrainOptions options_;
  Interactions training_;
  SparseRows held_out_;
  std::vector<std::int64_t> counts_;
  std::optional<RowsSource<T>> source_, validation_;
};

}  // namespace

template <class T>
std::unique_ptr<JobData<T>> load_items_data(const TrainOptions& options) {
  const auto file_options = items_options(options);
  auto training = read_items(options.train.front(), file_options);
  SparseRows held_out = options.valid.empty() ? hold_out_items(training.ratings, options.hold_out,
                                                               static_cast<std::uint64_t>(options.seed))
                                              : read_held_out_items(options.valid, training, file_options).ratings;
  return std::make_unique<ItemsData<T>>(options, std::move(training), std::move(held_out));
}

template std::unique_ptr<JobData<float>> load_items_data(const TrainOptions&);
template std::unique_ptr<JobData<double>> load_items_data(const TrainOptions&);

}  // namespace widehead
