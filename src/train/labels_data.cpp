/// Extreme multi-label data.

#include <fmt/format.h>

#include <optional>

#include "job_data_kinds.h"
#include "widehead/data/labels_file.h"
#include "widehead/errors.h"
#include "widehead/train/assemble.h"
#include "widehead/train/rows_source.h"

namespace widehead {
namespace {

template <class T>
class LabelsData final : public JobData<T> {
 public:
  LabelsData(const TrainOptions& options, SparseDataset training, SparseDataset held_out)
      : options_(options),
        training_(std::move(training)),
        held_out_(std::move(held_out)),
        counts_(static_cast<std::size_t>(training_.outputs)) {
    for (const auto label : training_.targets.indices) ++counts_[static_cast<std::size_t>(label)];
    const auto rows = rows_options(options);
    auto training_rows = rows;
    training_rows.shuffle = true;
    training_rows.dropout = options.dropout;
    source_.emplace(training_.features, training_.inputs, training_.targets, training_.outputs, scale(), training_rows);
    if (held_out_.examples > 0) {
      validation_.emplace(held_out_.features, held_out_.inputs, held_out_.targets, held_out_.outputs, scale(), rows);
    }
  }

  const BatchSource<T>& source() const override { return *source_; }
  std::span<const std::int64_t> counts() const override { return counts_; }
  std::int64_t examples() const override { return training_.examples; }
  std::string description() const override {
    return fmt::format("{} examples, {} features, {} labels; {} held out", training_.examples, training_.inputs,
                       training_.outputs, held_out_.examples);
  }
  std::string names_file() const override { return {}; }
  void save_names(const std::string&) const override {}

  Figures evaluate(Network<T>& network) override {
    if (!validation_) return {};
    Predictor<T> predictor(network, scale(), static_cast<int>(options_.threads));
    return evaluate_labels<T>(network, predictor, *validation_, held_out_.targets, counts_, training_.examples,
                              options_.valid_examples);
  }

 private:
  std::vector<T> scale() const { return target_scale<T>(options_, counts_); }

  TrainOptions options_;
  SparseDataset training_, held_out_;
  std::vector<std::int64_t> counts_;
  std::optional<RowsSource<T>> source_, validation_;
};

}  // namespace

template <class T>
std::unique_ptr<JobData<T>> load_labels_data(const TrainOptions& options) {
  auto training = read_labels(options.train.front());
  if (training.examples == 0) throw FileError(fmt::format("{}:1: no examples to train on", options.train.front()));
  SparseDataset held_out;
  if (!options.valid.empty()) {
    held_out = read_labels(options.valid);
    if (held_out.inputs != training.inputs || held_out.outputs != training.outputs) {
      throw FileError(fmt::format("{}:1: {} features and {} labels, but {} has {} and {}", options.valid,
                                  held_out.inputs, held_out.outputs, options.train.front(), training.inputs,
                                  training.outputs));
    }
  }
  return std::make_unique<LabelsData<T>>(options, std::move(training), std::move(held_out));
}

template std::unique_ptr<JobData<float>> load_labels_data(const TrainOptions&);
template std::unique_ptr<JobData<double>> load_labels_data(const TrainOptions&);

}  // namespace widehead
