#include "widehead/model/word_vectors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "widehead/errors.h"

namespace widehead {
namespace {

static_assert(std::endian::native == std::endian::little, "binary vectors are the bytes of memory");

constexpr std::string_view white_space = " \t\n\v\f\r";
/// More than any word, so that a binary file of something else is not read to its end in search of a space.
constexpr std::size_t longest_word = 65536;

bool is_white(char letter) { return white_space.find(letter) != std::string_view::npos; }

/// What a message shows of a text: its beginning, and no control characters.
std::string excerpt(std::string_view text) {
  constexpr std::size_t longest = 40;
  std::string shown(text.substr(0, longest));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, '?');
  return '"' + shown + (text.size() > longest ? "…\"" : "\"");
}

/// The whole of `text` as a finite float; a double too small for one becomes 0.
bool parse_float(std::string_view text, float& value) {
  const char *first = text.data(), *last = first + text.size();
  auto [end, error] = std::from_chars(first, last, value);
  if (error == std::errc::result_out_of_range) {
    double wide = 0;
    error = std::from_chars(first, last, wide).ec;
    if (!(std::abs(wide) < 1)) return false;
    value = static_cast<float>(wide);
  }
  return error == std::errc() && end == last && std::isfinite(value);
}

bool parse_extent(std::string_view text, Size& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

/// Takes the next field off a line; empty at its end.
std::string_view next_field(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(white_space), line.size()));
  const auto field = line.substr(0, std::min(line.find_first_of(white_space), line.size()));
  line.remove_prefix(field.size());
  return field;
}

}  // namespace

std::string written_word(const std::string& word) {
  std::string written = word;
  std::replace_if(written.begin(), written.end(), is_white, '_');
  return written;
}

// ── writing ──────────────────────────────────────────────────────────────────────────────────────

WordVectorWriter::WordVectorWriter(const std::string& path, WordVectorFormat format, Size words, Size dim)
    : file_(path), format_(format), words_(words), dim_(dim) {
  if (words < 0 || dim < 1) throw std::invalid_argument(fmt::format("{}: {} words of {} values", path, words, dim));
  file_.write(fmt::format("{} {}\n", words, dim));
}

void WordVectorWriter::write(std::span<const std::string> words, ConstView<float> vectors) {
  const auto count = static_cast<Size>(words.size());
  if (vectors.rows != dim_ || vectors.cols != count) {
    throw std::invalid_argument(fmt::format("{}: vectors of {} x {} for {} words, but d = {}", file_.path(),
                                            vectors.rows, vectors.cols, count, dim_));
  }
  if (count > words_ - written_) {
    throw std::invalid_argument(
        fmt::format("{}: {} words after {}, but the file has {}", file_.path(), count, written_, words_));
  }
  std::string text;
  for (Size j = 0; j < count; ++j, ++written_) {
    const std::string& word = words[static_cast<std::size_t>(j)];
    const std::string written = written_word(word);
    const std::span<const float> values(vectors.column(j), static_cast<std::size_t>(dim_));
    if (word.empty()) throw std::invalid_argument(fmt::format("{}: word {} is empty", file_.path(), written_));
    if (!seen_.insert(written).second) {
      throw std::invalid_argument(fmt::format(R"({}: word {}, "{}", is written as "{}", which was there before)",
                                              file_.path(), written_, word, written));
    }
    if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) {
      throw std::invalid_argument(
          fmt::format("{}: the vector of word {}, \"{}\", is not finite", file_.path(), written_, word));
    }
    file_.write(written);
    if (format_ == WordVectorFormat::binary) {
      file_.write(" ");
      file_.write_values(values);
    } else {
      text.clear();
      for (const float value : values) text += fmt::format(" {}", value);
      file_.write(text);
    }
    file_.write("\n");
  }
}

void WordVectorWriter::finish() {
  if (written_ != words_) {
    throw std::invalid_argument(
        fmt::format("{}: {} words were written, but the file has {}", file_.path(), written_, words_));
  }
  file_.commit();
}

// ── reading ──────────────────────────────────────────────────────────────────────────────────────

WordVectorReader::WordVectorReader(std::string path, WordVectorFormat format)
    : path_(std::move(path)), format_(format) {
  errno = 0;
  file_.open(path_, std::ios::binary);
  if (!file_) throw std::system_error(errno, std::generic_category(), path_ + ": cannot be opened");
  read_header();
}

void WordVectorReader::read_header() {
  std::array<char, 64> header{};  // two numbers are shorter; a file of something else is not searched for a newline
  file_.getline(header.data(), header.size());
  std::string_view rest = header.data();
  const auto words = next_field(rest), dim = next_field(rest);
  if (!file_ || !parse_extent(words, words_) || !parse_extent(dim, dim_) || dim_ == 0 || !next_field(rest).empty()) {
    fail(fmt::format("found {}, expected \"WORDS DIM\"", excerpt(header.data())));
  }
  // A word is at least a letter and a separator, a value four bytes, or a digit and a separator.
  std::error_code error;
  const auto bytes = static_cast<Size>(std::filesystem::file_size(path_, error));
  if (error) throw std::system_error(error, path_ + ": has no size");
  const Size least = format_ == WordVectorFormat::binary ? 4 : 2;
  if (words_ > 0 && (dim_ > bytes / least || words_ > bytes / (least * dim_ + 1))) {
    fail(fmt::format("found {} words of {} values, for which a file of {} bytes is too small", words_, dim_, bytes));
  }
  in_header_ = false;
  if (words_ == 0) expect_end();
}

Size WordVectorReader::read(std::vector<std::string>& words, MatrixView<float> vectors) {
  if (vectors.rows != dim_) {
    throw std::invalid_argument(fmt::format("vectors with d = {}, but {} has {}", vectors.rows, path_, dim_));
  }
  const Size count = std::min(vectors.cols, words_ - read_);
  for (Size j = 0; j < count; ++j) {
    float* out = vectors.column(j);
    words.push_back(format_ == WordVectorFormat::binary ? read_binary(out) : read_text(out));
    ++read_;
  }
  if (count > 0 && read_ == words_) expect_end();
  return count;
}

std::string WordVectorReader::read_text(float* out) {
  if (!next_line()) fail(fmt::format("found the end of the file, expected word {} of {}", read_ + 1, words_));
  std::string_view rest = line_;
  const auto word = next_field(rest);
  if (word.empty()) fail(fmt::format("found an empty line, expected a word and {} numbers", dim_));
  for (Size i = 0; i < dim_; ++i) {
    const auto field = next_field(rest);
    if (field.empty()) fail(fmt::format("found {} numbers, expected {}", i, dim_));
    if (!parse_float(field, out[i])) fail(fmt::format("found {}, expected a number", excerpt(field)));
  }
  if (const auto field = next_field(rest); !field.empty()) {
    fail(fmt::format("found {} after {} numbers, expected the end of the line", excerpt(field), dim_));
  }
  return std::string(word);
}

std::string WordVectorReader::read_binary(float* out) {
  std::string word;
  for (int letter = file_.get(); letter != ' '; letter = file_.get()) {
    if (letter == std::ifstream::traits_type::eof()) {
      fail(fmt::format("found the end of the file, expected {}", word.empty() ? "a word" : "a space after a word"));
    }
    if (letter == '\n' && word.empty()) continue;  // of the word before
    if (word.size() == longest_word) fail(fmt::format("found no space in {} bytes, expected a word", longest_word));
    word += static_cast<char>(letter);
  }
  if (word.empty()) fail("found a space, expected a word");
  if (!file_.read(reinterpret_cast<char*>(out), static_cast<std::streamsize>(dim_ * Size{sizeof(float)}))) {
    fail(fmt::format("found {} bytes of the vector of {}, expected {}", file_.gcount(), excerpt(word),
                     dim_ * Size{sizeof(float)}));
  }
  if (!std::all_of(out, out + dim_, [](float value) { return std::isfinite(value); })) {
    fail(fmt::format("found a value that is not finite in the vector of {}", excerpt(word)));
  }
  return word;
}

void WordVectorReader::expect_end() {
  if (format_ == WordVectorFormat::text) {
    while (next_line()) {
      std::string_view rest = line_;
      if (next_field(rest).empty()) continue;
      fail(fmt::format("found {}, expected the end after {} words", excerpt(line_), words_));
    }
    return;
  }
  for (int letter = file_.get(); letter != std::ifstream::traits_type::eof(); letter = file_.get()) {
    if (letter != '\n') fail(fmt::format("found more data, expected the end after {} words", words_));
  }
}

bool WordVectorReader::next_line() {
  errno = 0;
  if (!std::getline(file_, line_)) {
    if (file_.bad()) throw std::system_error(errno, std::generic_category(), path_ + ": cannot be read");
    return false;
  }
  ++line_number_;
  return true;
}

void WordVectorReader::fail(const std::string& what) const {
  if (file_.bad()) throw std::system_error(errno, std::generic_category(), path_ + ": cannot be read");
  const bool has_lines = in_header_ || format_ == WordVectorFormat::text;
  throw FileError(has_lines ? fmt::format("{}:{}: {}", path_, line_number_, what)
                            : fmt::format("{}: word {}: {}", path_, read_ + 1, what));
}

WordVectors read_word_vectors(const std::string& path, WordVectorFormat format, Size limit) {
  if (limit < 0) throw std::invalid_argument(fmt::format("limit = {}, but it must be at least 0", limit));
  WordVectorReader reader(path, format);
  WordVectors result{{}, Matrix<float>(reader.dim(), std::min(limit, reader.words()))};
  reader.read(result.words, result.vectors);
  return result;
}

}  // namespace widehead
