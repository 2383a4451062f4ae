#include "targets.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "../tests/compress.h"
#include "widehead/data/items_file.h"
#include "widehead/data/labels_file.h"
#include "widehead/data/line_reader.h"
#include "widehead/data/token_file.h"
#include "widehead/data/tokenizer.h"
#include "widehead/data/vocabulary.h"
#include "widehead/errors.h"

namespace widehead::fuzz {
namespace {

constexpr std::size_t max_line = std::size_t{1} << 20;  // enough to make the buffer grow, and quick

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

LineReader reader(Input bytes) { return {"f", bytes, max_line}; }

Input as_bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::string_view as_text(Input bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

/// A file may be refused, by this error and no other.
template <class Read>
void read_or_refuse(const Read& read) {
  try {
    read();
  } catch (const FileError& error) {
    require(std::string_view(error.what()).starts_with("f:"), "an error without the path");
  }
}

/// All lines, and the error that ended them, if any.
std::vector<std::string> outcome(std::string_view file) {
  std::vector<std::string> result;
  try {
    auto source = reader(as_bytes(file));
    while (const auto line = source.next()) result.emplace_back(*line);
  } catch (const FileError& error) {
    result.emplace_back(error.what());
  }
  return result;
}

unsigned take_number(Input& bytes, std::size_t count) {
  unsigned value = 0;
  for (; count > 0 && !bytes.empty(); --count, bytes = bytes.subspan(1)) {
    value = value << 8 | std::to_integer<unsigned>(bytes[0]);
  }
  return value;
}

}  // namespace

void lines(Input bytes) {
  read_or_refuse([&] {
    auto source = reader(bytes);
    Size count = 0;
    while (const auto line = source.next()) {
      ++count;
      require(source.line() == count, "a line without its number");
      require(line->size() <= max_line, "a line beyond the limit");
      require(line->find('\n') == std::string_view::npos, "two lines in one");
      require(line->find('\0') == std::string_view::npos, "a NUL in a line");
      require(source.bytes_read() >= 0 && source.bytes_read() <= source.bytes_total(), "impossible progress");
    }
    require(source.bytes_read() == source.bytes_total(), "an end before the end");
  });
}

void containers(Input bytes) {
  using Compress = std::string (*)(std::string_view);
  const Compress compress = std::array<Compress, 3>{test::gzip, test::xz, test::zstd}[take_number(bytes, 1) % 3];
  const auto cut = take_number(bytes, 2), missing = take_number(bytes, 2);
  const auto text = as_text(bytes);
  const auto first = compress(text.substr(0, std::min<std::size_t>(cut, text.size())));
  const auto whole = first + compress(text.substr(std::min<std::size_t>(cut, text.size())));
  const auto truth = outcome(compress(text));
  require(outcome(whole) == truth, "two members are not one text");

  const auto rest = whole.substr(0, whole.size() - std::min<std::size_t>(missing, whole.size()));
  constexpr std::size_t recognised = 6;
  if (rest.size() < recognised || rest.size() == first.size() || rest.size() == whole.size()) return;
  const auto found = outcome(rest);
  require(!found.empty() && found.back().starts_with("f:"), "a truncated file was accepted");
  require(std::equal(found.begin(), found.end() - 1, truth.begin(),
                     truth.begin() + std::min(found.end() - found.begin() - 1, truth.end() - truth.begin())),
          "a truncated file has other lines");
}

void words(Input bytes) {
  const auto number = take_number(bytes, 1);
  const auto kind = number % 2 == 0 ? Tokenization::words : Tokenization::whitespace;
  Tokenizer tokenizer(kind, number / 2 % 2 == 0);
  std::string joined;
  const auto collect = [&](std::string_view word) {
    require(!word.empty(), "an empty word");
    joined.append(word).append(" ");
  };
  try {
    tokenizer.split(as_text(bytes), collect);
  } catch (const std::invalid_argument&) {
    return;
  }
  require(joined.size() <= bytes.size() + 1, "more words than text");
  const auto once = std::exchange(joined, {});
  tokenizer.split(once, collect);  // does not throw: words of valid text are valid
  require(joined == once, "words of words are others");
}

void vocabulary(Input bytes) {
  read_or_refuse([&] {
    auto source = reader(bytes);
    const auto loaded = Vocabulary::load(source);
    require(loaded.size() >= 2, "a vocabulary without words");
    for (Index i = 0; i < static_cast<Index>(loaded.size()); ++i) {
      require(loaded.find(loaded.word(i)) == i, "a word that is not found");
      require(loaded.count(i) >= 0, "a negative count");
      require(i < 2 || loaded.count(i) <= loaded.count(i - 1), "counts that do not decrease");
    }
  });
  read_or_refuse([&] {
    auto source = reader(bytes);
    const auto loaded = ItemIndex::load(source);
    for (Index i = 0; i < static_cast<Index>(loaded.size()); ++i) {
      require(loaded.find(loaded.name(i)) == i, "an item that is not found");
    }
  });
}

void tokens(Input bytes) {
  std::vector<Index> aligned(bytes.size() / sizeof(Index) + 1);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(aligned.data()));
  const auto file = std::as_bytes(std::span(aligned)).first(bytes.size());
  const auto read = [&] {
    const TokenFile tokens("f", file);
    require(tokens.tokens().size_bytes() + 40 == bytes.size(), "ids beyond the file");
    tokens.verify();
    for (const auto id : tokens.tokens()) require(id >= -1 && id < tokens.vocabulary_size(), "an id out of range");
  };
  read_or_refuse(read);
  if (bytes.size() < 40) return;
  const std::uint64_t checksum = XXH3_64bits(file.data(), 32);
  std::memcpy(reinterpret_cast<std::byte*>(aligned.data()) + 32, &checksum, sizeof checksum);
  read_or_refuse(read);
}

void labels(Input bytes) {
  read_or_refuse([&] {
    auto source = reader(bytes);
    read_labels(source).validate();
  });
}

void items(Input bytes) {
  const auto choice = take_number(bytes, 1);
  const ItemsOptions options{.layout = static_cast<ItemsLayout>(choice % 3),
                             .header = static_cast<ItemsHeader>(choice / 3 % 3),
                             .min_rating = choice / 9 % 2 == 0 ? 0.0F : 2.5F,
                             .numeric = choice / 18 % 2 == 0};
  read_or_refuse([&] {
    auto source = reader(bytes);
    const auto training = read_items(source, options);
    training.ratings.validate("ratings", training.users.size(), training.items.size());
    auto again = reader(bytes);
    const auto held_out = read_held_out_items(again, training, options);
    require(held_out.unknown_users == 0 && held_out.unknown_items == 0, "names that were there are unknown");
    require(held_out.ratings.offsets == training.ratings.offsets &&
                held_out.ratings.indices == training.ratings.indices &&
                held_out.ratings.values == training.ratings.values,
            "the same file read as held out is another");
  });
}

}  // namespace widehead::fuzz
