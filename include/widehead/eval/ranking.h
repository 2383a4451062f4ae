#pragma once
/// How good ranked lists of outputs are. In all formulas r₁, r₂, … is the list, best first, R the set of
/// the example's relevant outputs, and [·] is 1 where the condition holds, else 0.
///
/// Lists hold distinct outputs; places beyond the end of a short list are misses. R is given in
/// increasing order and is not empty: over an empty R most of these are 0/0, and RankingSummary leaves
/// such examples out. All of this is checked (std::invalid_argument).

#include <cstdint>
#include <span>
#include <vector>

#include "widehead/matrix.h"

namespace widehead {

/// P@k = (1/k) Σ_{i≤k} [rᵢ ∈ R]. Where |R| < k even the best list stays below 1.
double precision_at(Size k, std::span<const Index> ranked, std::span<const Index> relevant);

/// recall@k = (1/|R|) Σ_{i≤k} [rᵢ ∈ R], as in the protocol of LightGCN and its kin. Some divide by
/// min(k, |R|) instead, which is larger wherever |R| > k.
double recall_at(Size k, std::span<const Index> ranked, std::span<const Index> relevant);

/// nDCG@k = Σ_{i≤k} [rᵢ ∈ R]/log₂(i + 1)  /  Σ_{i≤min(k, |R|)} 1/log₂(i + 1): relevance is yes or no,
/// and the ideal list begins with as many of R as it has room for.
double ndcg_at(Size k, std::span<const Index> ranked, std::span<const Index> relevant);

/// Top-k accuracy: 1 if any of R is among r₁ … r_k, else 0.
double accuracy_at(Size k, std::span<const Index> ranked, std::span<const Index> relevant);

/// 1/i for the first rᵢ ∈ R, 0 if there is none. Its mean is the MRR.
double reciprocal_rank(std::span<const Index> ranked, std::span<const Index> relevant);

/// How likely a relevant output is to have been labelled as such (Jain, Prabhu, Varma 2016):
///   p_l = 1/(1 + C e^{−A log(N_l + B)}),   C = (log N − 1)(B + 1)^A,
/// N examples in the training set, N_l of which have output l.
struct PropensityModel {
  double A = 0.55;  ///< theirs for all sets but two: 0.5 and 0.4 for Wikipedia, 0.6 and 2.6 for Amazon
  double B = 1.5;
};

/// 1/p_l = 1 + C (N_l + B)^{−A} for every output. N must be at least 3, for C > 0.
std::vector<double> inverse_propensities(std::span<const std::int64_t> examples_with_output, std::int64_t examples,
                                         const PropensityModel& model = {});

/// PSP@k of one example, and of the list that is best by this measure.
struct PropensityScored {
  double gained;      ///< (1/k) Σ_{i≤k} [rᵢ ∈ R]/p_{rᵢ}
  double attainable;  ///< (1/k) times the sum of the min(k, |R|) largest 1/p_l over l ∈ R
};

/// The PSP@k of a set of examples is Σ gained / Σ attainable, a ratio of sums rather than a mean of
/// ratios: so do the scripts of the Extreme Classification Repository.
/// @param inverse_propensity  1/p_l of all outputs
PropensityScored propensity_scored_precision_at(Size k, std::span<const Index> ranked, std::span<const Index> relevant,
                                                std::span<const double> inverse_propensity);

/// Means over examples.
struct RankingMetrics {
  Size k;
  double precision, recall, ndcg, accuracy;
  double psp;  ///< NaN where there are no propensities
};

/// All of the above over many examples and for several k at once.
class RankingSummary {
 public:
  /// @param inverse_propensity  1/p_l of all outputs, or nothing: then there is no PSP
  explicit RankingSummary(std::vector<Size> ks, std::vector<double> inverse_propensity = {});

  /// Takes an example in, wholly or (by an exception) not at all. One without relevant outputs is skipped.
  /// @param ranked  at least largest_k() outputs, where there are as many
  void add(std::span<const Index> ranked, std::span<const Index> relevant);

  Size largest_k() const;
  std::int64_t examples() const { return examples_; }
  std::int64_t skipped() const { return skipped_; }

  /// One entry for each k, in the order given. NaN as long as there are no examples.
  std::vector<RankingMetrics> metrics() const;
  /// Mean reciprocal rank within the lists as they were given.
  double mrr() const;

 private:
  struct Sums {
    double precision = 0, recall = 0, ndcg = 0, accuracy = 0, gained = 0, attainable = 0;
  };
  std::vector<Size> ks_;
  std::vector<double> inverse_propensity_;
  std::vector<Sums> sums_;  // one for each k
  double reciprocal_ranks_ = 0;
  std::int64_t examples_ = 0, skipped_ = 0;
};

/// The k outputs of highest score, best first, equal scores ordered by output, without those in
/// `excluded` (increasing): what a recommender shows to somebody who has those already. Shorter than k
/// where no more are left. A score that is NaN is refused.
template <class T>
std::vector<Index> top_k_excluding(std::span<const T> scores, Size k, std::span<const Index> excluded);

}  // namespace widehead
