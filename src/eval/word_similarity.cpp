#include "widehead/eval/word_similarity.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "../data/text.h"
#include "cosines.h"
#include "widehead/data/line_reader.h"

namespace widehead {
namespace {

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

/// 1-based ranks; equal values get the mean of the ranks they occupy.
std::vector<double> mean_ranks(std::span<const double> x) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return x[a] < x[b]; });
  std::vector<double> ranks(x.size());
  for (std::size_t first = 0, end = 0; first < order.size(); first = end) {
    while (end < order.size() && x[order[end]] == x[order[first]]) ++end;
    const double mean = static_cast<double>(first + 1 + end) / 2;  // of first + 1 … end
    for (std::size_t i = first; i < end; ++i) ranks[order[i]] = mean;
  }
  return ranks;
}

}  // namespace

WordPairs read_word_pairs(const std::string& path) {
  WordPairs result{path, {}};
  LineReader lines(path);
  bool may_be_header = true;
  while (const auto line = lines.next()) {
    const auto fields = fields_of(*line);
    if (fields.empty() || line->front() == '#') continue;
    if (fields.size() < 3) {
      lines.fail(
          fmt::format("found {} field{}, expected \"WORD WORD SCORE\"", fields.size(), fields.size() == 1 ? "" : "s"));
    }
    const auto score = parse_number(fields[2]);
    if (!score && !may_be_header) lines.fail(fmt::format("found \"{}\", expected a number as score", fields[2]));
    if (score) result.pairs.push_back({std::string(fields[0]), std::string(fields[1]), *score});
    may_be_header = false;
  }
  return result;
}

double spearman(std::span<const double> x, std::span<const double> y) {
  if (x.size() != y.size()) throw std::invalid_argument(fmt::format("{} values of x, but {} of y", x.size(), y.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) || std::isnan(y[i])) throw std::invalid_argument(fmt::format("value {} is NaN", i));
  }
  const auto a = mean_ranks(x), b = mean_ranks(y);
  const double middle = (static_cast<double>(x.size()) + 1) / 2;
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - middle) * (b[i] - middle);
    aa += (a[i] - middle) * (a[i] - middle);
    bb += (b[i] - middle) * (b[i] - middle);
  }
  if (!(aa > 0 && bb > 0)) return std::numeric_limits<double>::quiet_NaN();
  return ab / std::sqrt(aa * bb);
}

WordSimilarity evaluate_similarity(const WordPairs& pairs, const WordIndex& index, ConstView<float> vectors) {
  check_columns(index, vectors);
  std::vector<double> scores, cosines;
  WordSimilarity result;
  result.path = pairs.path;
  for (const auto& pair : pairs.pairs) {
    const Index a = index.find(pair.first), b = index.find(pair.second);
    const bool known = a != WordIndex::none && b != WordIndex::none;
    const double norms = known ? column_norm(vectors, a) * column_norm(vectors, b) : 0;
    if (norms == 0) {
      ++result.missing;
      continue;
    }
    scores.push_back(pair.score);
    cosines.push_back(column_dot(vectors, a, b) / norms);
  }
  result.found = static_cast<Size>(scores.size());
  result.spearman = spearman(scores, cosines);
  return result;
}

}  // namespace widehead
