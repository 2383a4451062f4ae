#include "widehead/data/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "token_header.h"
#include "widehead/data/output_file.h"
#include "widehead/data/token_file.h"
#include "widehead/errors.h"

namespace widehead {
namespace {

constexpr std::int64_t lines_between_calls = 4096;

std::string_view as_bytes(const std::vector<Index>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Index)};
}

/// 0 where it cannot be told, as for a pipe.
std::int64_t size_of(const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<std::int64_t>(bytes);
}

/// Room for the header, then to_id(word) for every word of the texts and a boundary after every line.
template <class ToId>
CorpusProgress write_ids(const std::vector<std::string>& paths, Tokenizer tokenizer, OutputFile& out,
                         const CorpusCallback& callback, const ToId& to_id) {
  if (paths.empty()) throw std::invalid_argument("corpus: no text files");
  out.write(std::string(TokenHeader::bytes, '\0'));
  CorpusProgress progress;
  for (const auto& path : paths) progress.bytes_total += size_of(path);
  std::int64_t bytes_before = 0;
  std::vector<Index> ids;
  for (const auto& path : paths) {
    auto lines = LineReader::ahead(path);
    while (const auto line = lines.next()) {
      ids.clear();
      try {
        tokenizer.split(*line, [&](std::string_view word) { ids.push_back(to_id(word)); });
      } catch (const std::invalid_argument& error) {
        lines.fail(error.what());
      }
      if (!ids.empty()) {
        progress.words += static_cast<std::int64_t>(ids.size());
        ++progress.lines;
        ids.push_back(TokenFile::boundary);
        out.write(as_bytes(ids));
      }
      if (callback && lines.line() % lines_between_calls == 0) {
        progress.bytes_read = bytes_before + lines.bytes_read();
        callback(progress);
      }
    }
    bytes_before += lines.bytes_read();
  }
  if (progress.words == 0) {
    throw FileError(fmt::format("{}: no words{}", paths.front(),
                                paths.size() > 1 ? fmt::format(", nor in the {} other files", paths.size() - 1) : ""));
  }
  progress.bytes_read = bytes_before;
  if (callback) callback(progress);
  return progress;
}

void write_header(OutputFile& out, const CorpusProgress& progress, Size vocabulary) {
  const TokenHeader header{static_cast<std::uint32_t>(vocabulary),
                           static_cast<std::uint64_t>(progress.words + progress.lines),
                           static_cast<std::uint64_t>(progress.words)};
  out.write_at(0, header.to_bytes());
}

/// ids ← final_ids[ids] in place, boundaries excepted. By reading and writing rather than through a mapping:
/// there, a disk that is full would end the process instead of raising an error.
void replace_ids(OutputFile& out, std::int64_t count, const std::vector<Index>& final_ids) {
  constexpr std::int64_t ids_at_once = std::int64_t{1} << 18;
  std::vector<Index> ids;
  for (std::int64_t done = 0; done < count; done += ids_at_once) {
    ids.resize(static_cast<std::size_t>(std::min(ids_at_once, count - done)));
    const auto offset = static_cast<std::int64_t>(TokenHeader::bytes) + done * static_cast<std::int64_t>(sizeof(Index));
    out.read_at(offset, {reinterpret_cast<char*>(ids.data()), ids.size() * sizeof(Index)});
    for (auto& id : ids) {
      if (id != TokenFile::boundary) id = final_ids[static_cast<std::size_t>(id)];
    }
    out.write_at(offset, as_bytes(ids));
  }
}

}  // namespace

BuiltCorpus build_corpus(const std::vector<std::string>& text_paths, Tokenization tokenization,
                         const VocabularyOptions& options, const std::string& token_path,
                         const CorpusCallback& progress) {
  options.validate();
  OutputFile out(token_path);
  StringIndex words;                 // provisional ids: in the order of first occurrence
  std::vector<std::int64_t> counts;  // by provisional id
  const auto totals =
      write_ids(text_paths, Tokenizer(tokenization, options.lowercase), out, progress, [&](std::string_view word) {
        const auto [id, is_new] = words.insert(word);
        if (is_new) counts.push_back(0);
        ++counts[static_cast<std::size_t>(id)];
        return id;
      });
  Vocabulary vocabulary(words, counts, options);
  std::vector<Index> final_ids(counts.size(), Vocabulary::unknown);
  for (Index i = 1; i < static_cast<Index>(vocabulary.size()); ++i) {
    final_ids[static_cast<std::size_t>(*words.find(vocabulary.word(i)))] = i;
  }
  replace_ids(out, totals.words + totals.lines, final_ids);
  write_header(out, totals, vocabulary.size());
  out.commit();
  return {std::move(vocabulary), totals.words, totals.lines};
}

EncodedCorpus encode_corpus(const std::vector<std::string>& text_paths, Tokenization tokenization, bool lowercase,
                            const Vocabulary& vocabulary, const std::string& token_path,
                            const CorpusCallback& progress) {
  OutputFile out(token_path);
  std::int64_t unknown = 0;
  const auto totals =
      write_ids(text_paths, Tokenizer(tokenization, lowercase), out, progress, [&](std::string_view word) {
        const auto id = vocabulary.find(word).value_or(Vocabulary::unknown);
        unknown += id == Vocabulary::unknown ? 1 : 0;
        return id;
      });
  write_header(out, totals, vocabulary.size());
  out.commit();
  return {totals.words, unknown, totals.lines};
}

}  // namespace widehead
