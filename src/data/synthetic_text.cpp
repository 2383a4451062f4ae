#include "widehead/data/synthetic_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string_view>

#include "widehead/data/output_file.h"
#include "widehead/random.h"

namespace widehead {
namespace {

constexpr auto themes = std::to_array<std::string_view>(
    {"bird",   "metal",  "river",  "bread",  "star",     "horse", "ship",   "cloth",  "tree",   "stone",    "music",
     "fish",   "house",  "war",    "king",   "flower",   "wine",  "road",   "book",   "sea",    "mountain", "fire",
     "rain",   "tool",   "game",   "body",   "illness",  "law",   "money",  "colour", "animal", "fruit",    "planet",
     "engine", "letter", "number", "city",   "island",   "dance", "insect", "salt",   "glass",  "clock",    "school",
     "church", "market", "garden", "winter", "language", "dream", "bridge", "forest", "paper",  "wool",     "oil",
     "coal",   "bone",   "bell",   "mask",   "lamp",     "gate",  "song",   "leaf",   "wave"});
constexpr auto function_words = std::to_array<std::string_view>(
    {"the", "of", "and", "in", "to", "a", "is", "with", "for", "as", "on", "by", "that", "from", "at", "it"});

constexpr double function_word_share = 0.3;
constexpr Size shortest_sentence = 8, longest_sentence = 24;
constexpr std::uint32_t text_stream = 0x54, pairs_stream = 0x50;  // "T", "P"
constexpr Size frequent_ranks =
    40;  // words of a kind that pairs are made of: those a short text has taught something about

/// Draws in sequence.
class Dice {
 public:
  Dice(std::uint64_t seed, std::uint32_t stream) : random_(seed, stream) {}
  double uniform() {
    if (!spare_) pair_ = random_.uniform(count_++, 0);
    spare_ = !spare_;
    return spare_ ? pair_.first : pair_.second;
  }
  Size below(Size n) { return std::min(n - 1, static_cast<Size>(uniform() * static_cast<double>(n))); }
  /// 0 … n − 1 with probability about 1/(k + 1): Zipf's law.
  Size zipf(Size n) { return std::min(n - 1, static_cast<Size>(std::pow(static_cast<double>(n + 1), uniform())) - 1); }

 private:
  Random random_;
  Random::Pair pair_{};
  std::uint64_t count_ = 0;
  bool spare_ = false;
};

struct Word {
  Size theme, kind, rank;
};

void append(std::string& text, const Word& word) {
  text += fmt::format("{}{}{}", themes[static_cast<std::size_t>(word.theme)], static_cast<char>('a' + word.kind),
                      word.rank + 1);
}

Size words_per_kind(const SyntheticTextOptions& options) {
  return std::max<Size>(2, options.words / (static_cast<Size>(themes.size()) * options.kinds));
}

}  // namespace

void SyntheticTextOptions::validate() const {
  const auto check = [](const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value >= least && value <= most) return;
    throw std::invalid_argument(
        fmt::format("synthetic text: {} = {}, but it must be {} … {}", name, value, least, most));
  };
  check("words", words, 1000, 100'000'000);
  check("kinds", kinds, 1, 26);
  check("tokens", tokens, 1, 1'000'000'000'000);
  check("pairs", pairs, 3, 10'000'000);
}

void write_synthetic_text(const std::string& path, const SyntheticTextOptions& options) {
  options.validate();
  OutputFile file(path);
  Dice dice(options.seed, text_stream);
  const Size count = words_per_kind(options);
  std::string line;
  for (std::int64_t written = 0; written < options.tokens;) {
    line.clear();
    const Size theme = dice.zipf(static_cast<Size>(themes.size()) * 4) % static_cast<Size>(themes.size());
    Size kind = dice.below(options.kinds);
    const Size length = shortest_sentence + dice.below(longest_sentence - shortest_sentence + 1);
    for (Size i = 0; i < length; ++i, ++written) {
      if (i > 0) line.push_back(' ');
      if (dice.uniform() < function_word_share) {
        const auto word = function_words[static_cast<std::size_t>(dice.zipf(function_words.size()))];
        line += word;
        continue;
      }
      append(line, {theme, kind, dice.zipf(count)});
      kind = (2 * kind + 1 + dice.below(2)) % options.kinds;  // two kinds may follow each
    }
    line.push_back('\n');
    file.write(line);
  }
  file.commit();
}

void write_synthetic_pairs(const std::string& path, const SyntheticTextOptions& options) {
  options.validate();
  OutputFile file(path);
  Dice dice(options.seed, pairs_stream);
  const Size ranks = std::min(frequent_ranks, words_per_kind(options));
  const auto n_themes = static_cast<Size>(themes.size());
  std::string line;
  for (std::int64_t pair = 0; pair < options.pairs; ++pair) {
    const auto similarity = options.kinds > 1 ? pair % 3 : pair % 2 * 2;
    const Word first{dice.below(n_themes), dice.below(options.kinds), dice.below(ranks)};
    Word second{first.theme, first.kind, (first.rank + 1 + dice.below(ranks - 1)) % ranks};
    if (similarity < 2 && options.kinds > 1) {
      second.kind = (first.kind + 1 + dice.below(options.kinds - 1)) % options.kinds;
    }
    if (similarity < 1) second.theme = (first.theme + 1 + dice.below(n_themes - 1)) % n_themes;
    line.clear();
    append(line, first);
    line.push_back(' ');
    append(line, second);
    line += fmt::format(" {}\n", similarity);
    file.write(line);
  }
  file.commit();
}

}  // namespace widehead
