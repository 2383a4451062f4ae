#include "widehead/eval/word_index.h"

#include <fmt/format.h>

#include <limits>
#include <stdexcept>
#include <utility>

namespace widehead {
namespace {

std::string fold(std::string_view word) {
  std::string folded(word);
  for (char& letter : folded) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return folded;
}

}  // namespace

WordIndex::WordIndex(std::vector<std::string> words, Case letter_case) : case_(letter_case), words_(std::move(words)) {
  if (words_.size() > static_cast<std::size_t>(std::numeric_limits<Index>::max())) {
    throw std::invalid_argument(fmt::format("words: {}, but 2³¹ − 1 at most can be numbered", words_.size()));
  }
  if (case_ == Case::ignored) {
    folded_.reserve(words_.size());
    for (const auto& word : words_) folded_.push_back(fold(word));
  }
  const auto& keys = case_ == Case::ignored ? folded_ : words_;
  numbers_.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) numbers_.emplace(keys[i], static_cast<Index>(i));
}

Index WordIndex::find(std::string_view word) const {
  const auto found = case_ == Case::ignored ? numbers_.find(fold(word)) : numbers_.find(word);
  return found == numbers_.end() ? none : found->second;
}

}  // namespace widehead
