#include "widehead/eval/analogy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

#include "../data/text.h"
#include "cosines.h"
#include "widehead/data/line_reader.h"

namespace widehead {
namespace {

struct Question {
  std::array<Index, 4> words;  // a, b, c, d
  std::size_t section;
};

struct Answer {
  Index word = WordIndex::none;
  float score = -std::numeric_limits<float>::infinity();
};

/// The words that may be asked for and answered with: frequent, with a direction, one of their spellings.
std::vector<Index> candidates(const WordIndex& index, ConstView<float> vectors, Size most_frequent) {
  auto words = columns_with_direction(vectors, std::min(most_frequent, vectors.cols));
  std::erase_if(words, [&](Index word) { return !index.is_first(word); });
  return words;
}

/// Column j ← b̂ − â + ĉ of question j.
Matrix<float> targets(const std::vector<Question>& questions, ConstView<float> vectors) {
  Matrix<float> Q(vectors.rows, static_cast<Size>(questions.size()));
  std::vector<double> sum(static_cast<std::size_t>(vectors.rows));
  for (std::size_t j = 0; j < questions.size(); ++j) {
    const auto& [a, b, c, d] = questions[j].words;
    std::fill(sum.begin(), sum.end(), 0.0);
    add_unit_vector(vectors, b, 1, sum);
    add_unit_vector(vectors, a, -1, sum);
    add_unit_vector(vectors, c, 1, sum);
    std::transform(sum.begin(), sum.end(), Q.view().column(static_cast<Size>(j)),
                   [](double x) { return static_cast<float>(x); });
  }
  return Q;
}

std::vector<Answer> answer(const std::vector<Question>& questions, const std::vector<Index>& words,
                           ConstView<float> vectors, Backend<float>& backend) {
  std::vector<Answer> answers(questions.size());
  const int threads = backend.threads();
  scan_cosines(vectors, words, targets(questions, vectors), backend, [&](const CosineBlock& block) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Size j = 0; j < block.scores.cols; ++j) {
      const auto number = static_cast<std::size_t>(block.first_query + j);
      for (std::size_t w = 0; w < 3; ++w) block.exclude(questions[number].words[w], j);
      Answer best = answers[number];
      for (Size i = 0; i < block.scores.rows; ++i) {
        if (block.scores(i, j) > best.score) best = {block.columns[static_cast<std::size_t>(i)], block.scores(i, j)};
      }
      answers[number] = best;
    }
  });
  return answers;
}

}  // namespace

AnalogyQuestions read_analogies(const std::string& path) {
  AnalogyQuestions result{path, {}};
  LineReader lines(path);
  while (const auto line = lines.next()) {
    const auto fields = fields_of(*line);
    if (fields.empty()) continue;
    if (fields[0].front() == ':') {
      std::string_view name = *line;
      name.remove_prefix(name.find(':') + 1);
      name.remove_prefix(std::min(name.find_first_not_of(" \t"), name.size()));
      result.sections.push_back({std::string(name.substr(0, name.find_last_not_of(" \t") + 1)), {}});
      continue;
    }
    if (fields.size() != 4) {
      lines.fail(fmt::format(R"(found {} word{}, expected "A B C D" or ": SECTION")", fields.size(),
                             fields.size() == 1 ? "" : "s"));
    }
    if (result.sections.empty()) lines.fail("found a question, expected \": SECTION\" before the first one");
    result.sections.back().questions.push_back(
        {std::string(fields[0]), std::string(fields[1]), std::string(fields[2]), std::string(fields[3])});
  }
  return result;
}

AnalogyResult evaluate_analogies(const AnalogyQuestions& questions, const WordIndex& index, ConstView<float> vectors,
                                 Backend<float>& backend, const AnalogyOptions& options) {
  check_columns(index, vectors);
  if (options.most_frequent < 1) {
    throw std::invalid_argument(fmt::format("most_frequent = {}, but it must be at least 1", options.most_frequent));
  }
  const auto words = candidates(index, vectors, options.most_frequent);

  AnalogyResult result{questions.path, {}, {"total"}};
  std::vector<Question> found;
  for (std::size_t section = 0; section < questions.sections.size(); ++section) {
    result.sections.push_back({questions.sections[section].name});
    for (const auto& [a, b, c, d] : questions.sections[section].questions) {
      const Question question{{index.find(a), index.find(b), index.find(c), index.find(d)}, section};
      const bool known = std::all_of(question.words.begin(), question.words.end(),
                                     [&](Index word) { return std::binary_search(words.begin(), words.end(), word); });
      ++(known ? result.sections[section].found : result.sections[section].missing);
      if (known) found.push_back(question);
    }
  }

  const auto answers = answer(found, words, vectors, backend);
  for (std::size_t j = 0; j < found.size(); ++j) {
    if (answers[j].word == found[j].words[3]) ++result.sections[found[j].section].correct;
  }
  for (const auto& section : result.sections) {
    result.total.correct += section.correct;
    result.total.found += section.found;
    result.total.missing += section.missing;
  }
  return result;
}

}  // namespace widehead
