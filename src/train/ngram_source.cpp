#include "widehead/train/ngram_source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "widehead/random.h"
#include "widehead/train/permutation.h"

namespace widehead {
namespace {

constexpr std::uint64_t chunk = std::uint64_t{1} << 24;  // tokens shuffled among each other: 64 MiB of them
constexpr std::uint32_t subsample_stream = 0x53;         // "S"

}  // namespace

template <class T>
void add_context(std::span<const Index> preceding, const NGramOptions& options, Index padding, BatchRows<T>& inputs) {
  const auto n = static_cast<std::size_t>(options.context);
  const auto words = preceding.last(std::min(n, preceding.size()));
  if (options.combine == Combine::concat) {
    for (std::size_t slot = words.size(); slot < n; ++slot) inputs.add(padding, T(1));
    for (const Index word : words) inputs.add(word, T(1));
  } else if (words.empty()) {
    inputs.add(padding, T(1));
  } else {
    for (const Index word : words) inputs.add(word, T(1) / static_cast<T>(words.size()));
  }
  inputs.end_example();
}

template <class T>
NGramSource<T>::NGramSource(std::span<const Index> tokens, std::span<const std::int64_t> counts,
                            std::vector<T> target_scale, const NGramOptions& options)
    : tokens_(tokens),
      outputs_(static_cast<Size>(counts.size())),
      target_scale_(std::move(target_scale)),
      options_(options) {
  if (options.subsample <= 0) return;
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  for (const auto count : counts) {
    const double ratio = options.subsample * total / std::max(1.0, static_cast<double>(count));  // t/p
    keep_.push_back(static_cast<float>(std::min(1.0, std::sqrt(ratio) + ratio)));
  }
}

template <class T>
bool NGramSource<T>::is_kept(std::int64_t epoch, std::uint64_t position) const {
  const Index word = tokens_[position];
  if (word < 0 || (word == 0 && !options_.predict_unknown)) return false;
  if (keep_.empty()) return true;
  const float keep = keep_[static_cast<std::size_t>(word)];
  const Random random(options_.seed, subsample_stream);
  return keep >= 1 || random.uniform(position, static_cast<std::uint32_t>(epoch)).first < static_cast<double>(keep);
}

template <class T>
void NGramSource<T>::add_example(std::uint64_t position, Batch<T>& batch) const {
  const auto n = static_cast<std::uint64_t>(options_.context);
  std::uint64_t known = 0;  // preceding words of the same line
  while (known < n && known < position && tokens_[position - known - 1] >= 0) ++known;
  add_context(tokens_.subspan(position - known, known), options_, padding(), batch.inputs);
  const Index word = tokens_[position];
  batch.targets.add(word, target_scale_.empty() ? T(1) : target_scale_[static_cast<std::size_t>(word)]);
  batch.targets.end_example();
}

/// The token at place k of an epoch's order.
template <class T>
std::uint64_t NGramSource<T>::token_at(std::int64_t epoch, std::uint64_t k) const {
  if (!options_.shuffle) return k;
  const std::uint64_t first = k / chunk * chunk, last = std::min<std::uint64_t>(tokens_.size(), first + chunk);
  const Permutation order(last - first,
                          options_.seed * 0x10001 + static_cast<std::uint64_t>(epoch) * 0x1000003 + first);
  return first + order(k - first);
}

template <class T>
void NGramSource<T>::fill(const Cursor& at, Size m, Batch<T>& batch) const {
  batch.clear();
  const std::uint64_t end = tokens_.size();
  auto k = static_cast<std::uint64_t>(at.position);
  for (; k < end; ++k) {  // beyond the m-th example, to the next there is: no minibatch is empty but a whole epoch
    const std::uint64_t token = token_at(at.epoch, k);
    if (!is_kept(at.epoch, token)) continue;
    if (batch.examples() == m) break;
    add_example(token, batch);
  }
  batch.next = k < end ? Cursor{at.epoch, static_cast<std::int64_t>(k)} : Cursor{at.epoch + 1, 0};
}

template <class T>
double NGramSource<T>::share_of_epoch(const Cursor& at) const {
  return tokens_.empty() ? 1 : static_cast<double>(at.position) / static_cast<double>(tokens_.size());
}

template void add_context(std::span<const Index>, const NGramOptions&, Index, BatchRows<float>&);
template void add_context(std::span<const Index>, const NGramOptions&, Index, BatchRows<double>&);
template class NGramSource<float>;
template class NGramSource<double>;

}  // namespace widehead
