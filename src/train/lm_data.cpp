/// Text: a corpus as ids, of which the end may be held out.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "job_data_kinds.h"
#include "widehead/data/corpus.h"
#include "widehead/data/token_file.h"
#include "widehead/data/vocabulary.h"
#include "widehead/errors.h"
#include "widehead/train/assemble.h"
#include "widehead/train/ngram_source.h"

namespace widehead {
namespace {

CorpusCallback corpus_progress(const ReadProgress& progress) {
  if (!progress) return {};
  return [progress](const CorpusProgress& p) {
    progress(p.bytes_total > 0 ? static_cast<double>(p.bytes_read) / static_cast<double>(p.bytes_total) : 1);
  };
}

template <class T>
class LmData final : public JobData<T> {
 public:
  LmData(const TrainOptions& options, Vocabulary vocabulary, TokenFile tokens, std::optional<TokenFile> held_out)
      : options_(options),
        vocabulary_(std::move(vocabulary)),
        tokens_(std::move(tokens)),
        held_out_(std::move(held_out)) {
    for (Index i = 0; i < vocabulary_.size(); ++i) counts_.push_back(vocabulary_.count(i));
    auto training = tokens_.tokens();
    std::span<const Index> validation;
    if (held_out_) {
      validation = held_out_->tokens();
    } else if (options.hold_out > 0) {
      auto cut = static_cast<std::size_t>((1 - options.hold_out) * static_cast<double>(training.size()));
      while (cut > 0 && training[cut - 1] != TokenFile::boundary) --cut;  // whole lines
      validation = training.subspan(cut);
      training = training.first(cut);
    }
    if (training.empty()) {
      throw std::invalid_argument("--hold-out: nothing is left to train on: the corpus is one line or hardly more");
    }
    const auto in_corpus = counts_;
    if (!options.predict_unknown) counts_[0] = 0;  // never a target
    const auto scale = target_scale<T>(options, counts_);
    auto ngram = ngram_options(options);
    source_.emplace(training, in_corpus, scale, ngram);
    ngram.subsample = 0;  // what is held out is evaluated as it is
    if (!validation.empty()) validation_.emplace(validation, in_corpus, scale, ngram);
    training_tokens_ = static_cast<std::int64_t>(training.size());
  }

  const BatchSource<T>& source() const override { return *source_; }
  std::span<const std::int64_t> counts() const override { return counts_; }
  std::int64_t examples() const override { return training_tokens_; }
  std::string description() const override {
    return fmt::format("{:.3f} M words, {} different{}", static_cast<double>(tokens_.words()) / 1e6,
                       vocabulary_.size() - 1, validation_ ? "" : ", nothing held out");
  }
  std::string names_file() const override { return "vocabulary.txt"; }
  void save_names(const std::string& path) const override { vocabulary_.save(path); }

  Figures evaluate(Network<T>& network) override {
    if (!validation_) return {};
    Predictor<T> predictor(network, target_scale<T>(options_, counts_), static_cast<int>(options_.threads));
    return evaluate_words<T>(network, predictor, *validation_, options_.valid_examples);
  }

 private:
  TrainOptions options_;
  Vocabulary vocabulary_;
  TokenFile tokens_;
  std::optional<TokenFile> held_out_;
  std::vector<std::int64_t> counts_;
  std::optional<NGramSource<T>> source_, validation_;
  std::int64_t training_tokens_ = 0;
};

}  // namespace

template <class T>
std::unique_ptr<JobData<T>> load_lm_data(const TrainOptions& options, const std::string& names_path,
                                         const std::string& tokens_path, const ReadProgress& progress) {
  const auto tokenization = tokenization_from_name(options.tokens);
  const bool lowercase = !options.keep_case;
  std::optional<Vocabulary> vocabulary;
  if (names_path.empty()) {
    VocabularyOptions words;
    words.min_count = options.min_count;
    words.max_size =
        options.max_words > 0 ? options.max_words + 1 : 0;  // the unknown word is not counted by the option
    words.lowercase = lowercase;
    vocabulary = build_corpus(options.train, tokenization, words, tokens_path, corpus_progress(progress)).vocabulary;
  } else {
    vocabulary = Vocabulary::load(names_path);
    if (!std::filesystem::exists(tokens_path)) {
      encode_corpus(options.train, tokenization, lowercase, *vocabulary, tokens_path, corpus_progress(progress));
    }
  }
  TokenFile tokens(tokens_path);
  tokens.verify();  // it may have lain in the folder since an earlier run; its ids will be used as indices
  if (tokens.vocabulary_size() != vocabulary->size()) {
    throw FileError(fmt::format("{}: ids of {} words, but the vocabulary has {}; remove it, and it will be made again",
                                tokens_path, tokens.vocabulary_size(), vocabulary->size()));
  }
  std::optional<TokenFile> held_out;
  if (!options.valid.empty()) {
    const auto held_out_path = tokens_path + ".valid";
    encode_corpus({options.valid}, tokenization, lowercase, *vocabulary, held_out_path);
    held_out.emplace(held_out_path);
    std::filesystem::remove(held_out_path);  // the mapping keeps it
  }
  return std::make_unique<LmData<T>>(options, std::move(*vocabulary), std::move(tokens), std::move(held_out));
}

template std::unique_ptr<JobData<float>> load_lm_data(const TrainOptions&, const std::string&, const std::string&,
                                                      const ReadProgress&);
template std::unique_ptr<JobData<double>> load_lm_data(const TrainOptions&, const std::string&, const std::string&,
                                                       const ReadProgress&);

}  // namespace widehead
