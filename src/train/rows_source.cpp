#include "widehead/train/rows_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "widehead/random.h"
#include "widehead/train/permutation.h"

namespace widehead {
namespace {

constexpr std::uint32_t dropout_stream = 0x4400;  // "D", and a stream for each epoch after it

}  // namespace

template <class T>
RowsSource<T>::RowsSource(const SparseRows& inputs, Size features, const SparseRows& targets, Size outputs,
                          std::vector<T> target_scale, const RowsOptions& options)
    : inputs_(inputs),
      targets_(targets),
      features_(features),
      outputs_(outputs),
      target_scale_(std::move(target_scale)),
      options_(options) {
  inputs.validate("inputs", targets.rows(), features);
  targets.validate("targets", targets.rows(), outputs);
}

template <class T>
void RowsSource<T>::add_example(std::int64_t epoch, Size row, Batch<T>& batch) const {
  const auto features = inputs_.row_indices(row);
  const auto values = inputs_.row_values(row);
  double scale = 1;
  if (options_.unit_length) {
    double sum = 0;
    for (const auto value : values) sum += static_cast<double>(value) * static_cast<double>(value);
    if (sum > 0) scale = 1 / std::sqrt(sum);
  }
  if (options_.dropout > 0) scale /= 1 - options_.dropout;
  const Random random(options_.seed, dropout_stream + static_cast<std::uint32_t>(epoch));
  for (std::size_t k = 0; k < features.size(); ++k) {
    const auto feature = static_cast<std::uint32_t>(features[k]);
    if (options_.dropout > 0 && random.uniform(static_cast<std::uint64_t>(row), feature).first < options_.dropout) {
      continue;
    }
    batch.inputs.add(features[k], static_cast<T>(scale * static_cast<double>(values[k])));
  }
  batch.inputs.end_example();

  const auto outputs = targets_.row_indices(row);
  const auto target_values = targets_.row_values(row);
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const T factor = target_scale_.empty() ? T(1) : target_scale_[static_cast<std::size_t>(outputs[k])];
    batch.targets.add(outputs[k], factor * static_cast<T>(target_values[k]));
  }
  batch.targets.end_example();
}

template <class T>
void RowsSource<T>::fill(const Cursor& at, Size m, Batch<T>& batch) const {
  batch.clear();
  const Size rows = inputs_.rows(), first = static_cast<Size>(at.position), last = std::min(rows, first + m);
  const Permutation order(static_cast<std::uint64_t>(rows),
                          options_.seed * 0x10001 + static_cast<std::uint64_t>(at.epoch));
  for (Size k = first; k < last; ++k) {
    const auto row = options_.shuffle ? static_cast<Size>(order(static_cast<std::uint64_t>(k))) : k;
    add_example(at.epoch, row, batch);
  }
  batch.next = last < rows ? Cursor{at.epoch, last} : Cursor{at.epoch + 1, 0};
}

template <class T>
double RowsSource<T>::share_of_epoch(const Cursor& at) const {
  return inputs_.rows() == 0 ? 1 : static_cast<double>(at.position) / static_cast<double>(inputs_.rows());
}

template class RowsSource<float>;
template class RowsSource<double>;

}  // namespace widehead
