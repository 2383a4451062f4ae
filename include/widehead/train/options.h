#pragma once
/// Everything a training run can be told, in one table: it drives the command line, the config file, what is stored in
/// the model and the manual. A new option is a member here and a row in options.cpp.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace widehead {

enum class Job {
  lm,      ///< text: preceding words → next word
  labels,  ///< extreme multi-label: sparse features → labels
  items,   ///< recommender: a user's items → all items
};
std::string_view name_of(Job job);
/// @throws std::invalid_argument for an unknown name
Job job_named(std::string_view name);

/// Words stand for enumerations; the table lists and checks them.
struct TrainOptions {
  // data
  std::vector<std::string> train;   ///< files; only the corpus of lm may be several
  std::string valid;                ///< held-out file, or empty
  double hold_out = 0;              ///< share of the training data held out where there is no such file
  std::int64_t valid_examples = 0;  ///< at most so many are evaluated; 0 for all
  std::int64_t valid_every = 1;     ///< epochs between evaluations; the last one is always evaluated
  std::string tokens;               ///< words | whitespace
  bool keep_case = false;
  std::int64_t min_count = 0;
  std::int64_t max_words = 0;
  std::int64_t context = 0;      ///< preceding words
  double subsample = 0;          ///< word2vec's threshold t; 0 for none
  bool predict_unknown = false;  ///< whether the unknown word is a target
  std::string layout;            ///< auto | lists | csv
  double min_rating = 0;
  std::string input_norm;  ///< none | l2
  double dropout = 0;      ///< of inputs

  // network
  std::string combine;         ///< concat | mean, of the words of a context
  std::int64_t embedding = 0;  ///< e; 0 means as wide as what follows
  std::vector<std::int64_t> hidden;
  std::int64_t dim = 0;  ///< d
  std::string activation;
  double input_scale = 0;

  // head
  std::string head;
  std::string loss;
  double epsilon = 0, scale = 0, shift = 0, unobserved = 0,
         observed = 0;       ///< of the losses that have them; NaN for their default
  std::string target_scale;  ///< none | log | sqrt, of the target of an output with frequency p: 1, ln 1/p, 1/√p
  std::string init;          ///< zero | normal
  double init_scale = 0;
  double weight_decay = 0;
  std::int64_t window = 0;
  std::int64_t samples = 0;  ///< of sampled softmax
  std::string rows_file;
  std::string rows = "auto";  ///< auto | device | host: where V of the windowed head is on a GPU

  // training
  std::int64_t epochs = 0;
  std::int64_t batch = 0;
  std::string optimizer;
  double lr = 0;
  double head_lr = 0;
  double lambda = 0;
  std::string schedule;
  double warm_up = 0;
  double clip = 0;
  std::string dtype;
  std::int64_t threads = 0;
  std::string device = "cpu";
  bool tf32 = false;
  std::int64_t seed = 0;

  // the run itself, not the model
  std::string out;
  bool resume = false;
  bool overwrite = false;
  double save_every = 0;  ///< minutes between checkpoints
  double log_every = 0;   ///< seconds between lines where there is no terminal
};

/// What a job starts from.
TrainOptions default_options(Job job);

struct OptionSpec {
  using Field = std::variant<bool TrainOptions::*, std::int64_t TrainOptions::*, double TrainOptions::*,
                             std::string TrainOptions::*, std::vector<std::int64_t> TrainOptions::*,
                             std::vector<std::string> TrainOptions::*>;
  enum class Kind {
    data,   ///< stored in the model
    model,  ///< stored in the model; what the network is rebuilt from
    run,    ///< of one run only: not stored, and free to change when a run is resumed
  };

  std::string name;  ///< as the flag --name and as the key in config files
  std::string group;
  std::vector<Job> jobs;
  Kind kind;
  std::string help;
  Field field;
  double least = 0, most = 0;        ///< of numbers
  std::vector<std::string> choices;  ///< of words
  bool required = false;

  bool is_for(Job job) const;
};

std::span<const OptionSpec> option_table();

/// Checks every option of the job against the table, and those that belong together.
/// @throws std::invalid_argument naming the flag, the value and what it may be
void check(Job job, const TrainOptions& options);

/// The options of a job as a TOML document, a key for each; run options only when asked for.
std::string to_toml(Job job, const TrainOptions& options, bool with_run_options);
struct JobOptions {
  Job job;
  TrainOptions options;
};
/// Reads what to_toml wrote, or a config file of the user's: keys not given keep the job's default.
/// @param job  what the file must be for, if it says; a file without the key `job` is for this
/// @throws FileError with path and line for a bad document, an unknown key, a value of another type
JobOptions read_toml(const std::string& path, const Job* job);
/// Names of the options that differ, run options apart.
std::vector<std::string> differences(Job job, const TrainOptions& a, const TrainOptions& b);

}  // namespace widehead
