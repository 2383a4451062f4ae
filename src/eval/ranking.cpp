#include "widehead/eval/ranking.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

#include "best_list.h"

namespace widehead {
namespace {

void check_k(Size k) {
  if (k < 1) throw std::invalid_argument(fmt::format("k = {}, but it must be at least 1", k));
}

void check_increasing(const char* name, std::span<const Index> list) {
  for (std::size_t i = 1; i < list.size(); ++i) {
    if (list[i] > list[i - 1]) continue;
    throw std::invalid_argument(
        fmt::format("{}: [{}] = {} follows {}, but they must increase", name, i, list[i], list[i - 1]));
  }
}

void check_relevant(std::span<const Index> relevant) {
  if (relevant.empty()) throw std::invalid_argument("relevant: no output, and so nothing to be measured against");
  check_increasing("relevant", relevant);
}

/// Positions 0, 1, … of those among the first k that are in R.
template <class Visit>
void for_each_hit(Size k, std::span<const Index> ranked, std::span<const Index> relevant, const Visit& visit) {
  check_k(k);
  check_relevant(relevant);
  const auto first = ranked.subspan(0, std::min(static_cast<std::size_t>(k), ranked.size()));
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (!std::binary_search(relevant.begin(), relevant.end(), first[i])) continue;
    // A repeated hit would count twice, and lift a metric above 1.
    const auto before = std::find(first.begin(), first.begin() + static_cast<Size>(i), first[i]) - first.begin();
    if (before != static_cast<Size>(i)) {
      throw std::invalid_argument(fmt::format("ranked: [{}] = {} stands at {} already", i, first[i], before));
    }
    visit(i);
  }
}

double hits_at(Size k, std::span<const Index> ranked, std::span<const Index> relevant) {
  double hits = 0;
  for_each_hit(k, ranked, relevant, [&](std::size_t) { ++hits; });
  return hits;
}

/// 1/log₂(i + 1) of the formula, whose i begins at 1.
double discount(std::size_t position) { return 1 / std::log2(static_cast<double>(position) + 2); }

}  // namespace

double precision_at(Size k, std::span<const Index> ranked, std::span<const Index> relevant) {
  return hits_at(k, ranked, relevant) / static_cast<double>(k);
}

double recall_at(Size k, std::span<const Index> ranked, std::span<const Index> relevant) {
  return hits_at(k, ranked, relevant) / static_cast<double>(relevant.size());
}

double ndcg_at(Size k, std::span<const Index> ranked, std::span<const Index> relevant) {
  double gain = 0, ideal = 0;
  for_each_hit(k, ranked, relevant, [&](std::size_t i) { gain += discount(i); });
  for (std::size_t i = 0; i < std::min(static_cast<std::size_t>(k), relevant.size()); ++i) ideal += discount(i);
  return gain / ideal;
}

double accuracy_at(Size k, std::span<const Index> ranked, std::span<const Index> relevant) {
  return hits_at(k, ranked, relevant) > 0 ? 1 : 0;
}

double reciprocal_rank(std::span<const Index> ranked, std::span<const Index> relevant) {
  double best = 0;
  for_each_hit(std::numeric_limits<Size>::max(), ranked, relevant,
               [&](std::size_t i) { best = std::max(best, 1 / (static_cast<double>(i) + 1)); });
  return best;
}

std::vector<double> inverse_propensities(std::span<const std::int64_t> examples_with_output, std::int64_t examples,
                                         const PropensityModel& model) {
  if (examples < 3) throw std::invalid_argument(fmt::format("examples = {}, but log N must exceed 1", examples));
  if (!(model.A >= 0 && std::isfinite(model.A))) throw std::invalid_argument(fmt::format("A = {}, but A ≥ 0", model.A));
  if (!(model.B > 0 && std::isfinite(model.B))) throw std::invalid_argument(fmt::format("B = {}, but B > 0", model.B));
  const double C = (std::log(static_cast<double>(examples)) - 1) * std::pow(model.B + 1, model.A);
  std::vector<double> inverse;
  inverse.reserve(examples_with_output.size());
  for (const auto count : examples_with_output) {
    if (count < 0 || count > examples) {
      throw std::invalid_argument(
          fmt::format("examples_with_output: [{}] = {}, but there are {} examples", inverse.size(), count, examples));
    }
    inverse.push_back(1 + C * std::pow(static_cast<double>(count) + model.B, -model.A));
  }
  return inverse;
}

PropensityScored propensity_scored_precision_at(Size k, std::span<const Index> ranked, std::span<const Index> relevant,
                                                std::span<const double> inverse_propensity) {
  check_k(k);
  check_relevant(relevant);
  for (const Index output : {relevant.front(), relevant.back()}) {  // the rest lies between
    if (output >= 0 && static_cast<std::size_t>(output) < inverse_propensity.size()) continue;
    throw std::invalid_argument(
        fmt::format("relevant: output {}, but there are {} propensities", output, inverse_propensity.size()));
  }
  const auto gain = [&](Index output) { return inverse_propensity[static_cast<std::size_t>(output)]; };
  PropensityScored result{0, 0};
  for_each_hit(k, ranked, relevant, [&](std::size_t i) { result.gained += gain(ranked[i]); });

  std::vector<double> gains(relevant.size());
  std::transform(relevant.begin(), relevant.end(), gains.begin(), gain);
  const auto end = gains.begin() + std::min(k, static_cast<Size>(gains.size()));
  std::partial_sort(gains.begin(), end, gains.end(), std::greater<>());
  for (auto best = gains.begin(); best != end; ++best) result.attainable += *best;

  result.gained /= static_cast<double>(k);
  result.attainable /= static_cast<double>(k);
  return result;
}

RankingSummary::RankingSummary(std::vector<Size> ks, std::vector<double> inverse_propensity)
    : ks_(std::move(ks)), inverse_propensity_(std::move(inverse_propensity)), sums_(ks_.size()) {
  if (ks_.empty()) throw std::invalid_argument("ks: none, but at least one is needed");
  for (const Size k : ks_) check_k(k);
}

Size RankingSummary::largest_k() const { return *std::max_element(ks_.begin(), ks_.end()); }

void RankingSummary::add(std::span<const Index> ranked, std::span<const Index> relevant) {
  if (relevant.empty()) {
    ++skipped_;
    return;
  }
  auto sums = sums_;
  for (std::size_t i = 0; i < ks_.size(); ++i) {
    sums[i].precision += precision_at(ks_[i], ranked, relevant);
    sums[i].recall += recall_at(ks_[i], ranked, relevant);
    sums[i].ndcg += ndcg_at(ks_[i], ranked, relevant);
    sums[i].accuracy += accuracy_at(ks_[i], ranked, relevant);
    if (inverse_propensity_.empty()) continue;
    const auto scored = propensity_scored_precision_at(ks_[i], ranked, relevant, inverse_propensity_);
    sums[i].gained += scored.gained;
    sums[i].attainable += scored.attainable;
  }
  reciprocal_ranks_ += reciprocal_rank(ranked, relevant);
  sums_ = std::move(sums);
  ++examples_;
}

std::vector<RankingMetrics> RankingSummary::metrics() const {
  const auto n = static_cast<double>(examples_);
  std::vector<RankingMetrics> list;
  for (std::size_t i = 0; i < ks_.size(); ++i) {
    const Sums& sum = sums_[i];
    list.push_back(
        {ks_[i], sum.precision / n, sum.recall / n, sum.ndcg / n, sum.accuracy / n, sum.gained / sum.attainable});
  }
  return list;
}

double RankingSummary::mrr() const { return reciprocal_ranks_ / static_cast<double>(examples_); }

template <class T>
std::vector<Index> top_k_excluding(std::span<const T> scores, Size k, std::span<const Index> excluded) {
  check_k(k);
  check_increasing("excluded", excluded);
  BestList<T> best(k);
  auto next = excluded.begin();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto output = static_cast<Index>(i);
    while (next != excluded.end() && *next < output) ++next;
    if (next != excluded.end() && *next == output) continue;
    if (std::isnan(scores[i])) throw std::invalid_argument(fmt::format("scores: [{}] is NaN", i));
    best.offer(output, scores[i]);
  }
  std::vector<Index> outputs;
  for (const auto& entry : best.take()) outputs.push_back(entry.index);
  return outputs;
}

template std::vector<Index> top_k_excluding<float>(std::span<const float>, Size, std::span<const Index>);
template std::vector<Index> top_k_excluding<double>(std::span<const double>, Size, std::span<const Index>);

}  // namespace widehead
