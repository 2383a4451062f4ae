#include "widehead/eval/neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "best_list.h"
#include "cosines.h"

namespace widehead {
namespace {

/// out ← the combination, scaled to length 1.
void write_unit_combination(const WordCombination& combination, std::size_t number, ConstView<float> vectors,
                            float* out) {
  std::vector<double> sum(static_cast<std::size_t>(vectors.rows));
  for (const auto& [word, weight] : combination.terms) {
    if (word < 0 || word >= vectors.cols) {
      throw std::invalid_argument(
          fmt::format("combination {}: word {}, but there are {} vectors", number, word, vectors.cols));
    }
    if (!std::isfinite(weight)) throw std::invalid_argument(fmt::format("combination {}: weight {}", number, weight));
    add_unit_vector(vectors, word, weight, sum);
  }
  const double norm = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
  if (!(norm > 0)) throw std::invalid_argument(fmt::format("combination {} is zero and has no direction", number));
  std::transform(sum.begin(), sum.end(), out, [&](double x) { return static_cast<float>(x / norm); });
}

}  // namespace

WordCombination parse_combination(std::string_view text, const WordIndex& index) {
  WordCombination combination;
  double weight = 1;
  bool expects_word = true;
  constexpr std::string_view white = " \t";
  for (auto first = text.find_first_not_of(white); first != std::string_view::npos;) {
    const auto end = std::min(text.find_first_of(white, first), text.size());
    const auto token = text.substr(first, end - first);
    const bool is_sign = token == "+" || token == "-";
    const bool is_leading_sign = is_sign && first == text.find_first_not_of(white);
    if (is_sign == expects_word && !is_leading_sign) {
      throw std::invalid_argument(
          fmt::format(R"("{}": found "{}", expected {})", text, token, expects_word ? "a word" : R"("+" or "-")"));
    }
    if (is_sign) {
      weight = token == "-" ? -1 : 1;
    } else {
      const Index word = index.find(token);
      if (word == WordIndex::none) throw std::invalid_argument(fmt::format("\"{}\" is not a known word", token));
      combination.terms.push_back({word, weight});
    }
    expects_word = is_sign;
    first = text.find_first_not_of(white, end);
  }
  if (expects_word) throw std::invalid_argument(fmt::format("\"{}\": a word is expected at its end", text));
  return combination;
}

std::vector<std::vector<Neighbour>> nearest_words(std::span<const WordCombination> combinations, Size k,
                                                  ConstView<float> vectors, Backend<float>& backend) {
  if (k < 1) throw std::invalid_argument(fmt::format("k = {}, but it must be at least 1", k));
  Matrix<float> queries(vectors.rows, static_cast<Size>(combinations.size()));
  for (std::size_t j = 0; j < combinations.size(); ++j) {
    write_unit_combination(combinations[j], j, vectors, queries.view().column(static_cast<Size>(j)));
  }

  std::vector<BestList<float>> best(combinations.size(), BestList<float>(k));
  const auto words = columns_with_direction(vectors, vectors.cols);
  constexpr float excluded = -std::numeric_limits<float>::infinity();
  scan_cosines(vectors, words, queries, backend, [&](const CosineBlock& block) {
    for (Size j = 0; j < block.scores.cols; ++j) {
      const auto query = static_cast<std::size_t>(block.first_query + j);
      for (const auto& term : combinations[query].terms) block.exclude(term.word, j);
      for (Size i = 0; i < block.scores.rows; ++i) {
        if (block.scores(i, j) == excluded) continue;
        best[query].offer(block.columns[static_cast<std::size_t>(i)], block.scores(i, j));
      }
    }
  });

  std::vector<std::vector<Neighbour>> result(combinations.size());
  for (std::size_t j = 0; j < best.size(); ++j) {
    for (const auto& entry : best[j].take()) result[j].push_back({entry.index, entry.score});
  }
  return result;
}

}  // namespace widehead
