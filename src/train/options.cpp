#include "widehead/train/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "widehead/heads.h"
#include "widehead/loss.h"

namespace widehead {
namespace {

using O = TrainOptions;
using Kind = OptionSpec::Kind;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double unset = std::numeric_limits<double>::quiet_NaN();
constexpr double largest_count = 2147483647;

const std::vector<Job>& every_job() {
  static const std::vector<Job> jobs = {Job::lm, Job::labels, Job::items};
  return jobs;
}

OptionSpec number(const char* name, OptionSpec::Field field, double least, double most, const char* help) {
  return {name, {}, every_job(), Kind::model, help, field, least, most, {}, false};
}
OptionSpec word(const char* name, OptionSpec::Field field, std::vector<std::string> choices, const char* help) {
  return {name, {}, every_job(), Kind::model, help, field, 0, 0, std::move(choices), false};
}
OptionSpec text(const char* name, OptionSpec::Field field, const char* help) { return word(name, field, {}, help); }
OptionSpec flag(const char* name, bool O::*field, const char* help) { return word(name, field, {}, help); }

OptionSpec only(std::vector<Job> jobs, OptionSpec spec) {
  spec.jobs = std::move(jobs);
  return spec;
}
OptionSpec required(OptionSpec spec) {
  spec.required = true;
  return spec;
}

/// All but the one that is there to be read.
std::vector<std::string> trained_heads() {
  std::vector<std::string> heads(head_names().begin(), head_names().end());
  std::erase(heads, "reference");
  return heads;
}

template <class Names>
std::vector<std::string> words_of(const Names& names) {
  return {names.begin(), names.end()};
}

template <class Enum>
std::vector<std::string> names_of(std::span<const std::pair<std::string_view, Enum>> named) {
  std::vector<std::string> names;
  for (const auto& [name, value] : named) names.emplace_back(name);
  return names;
}

/// Gives the specs of a group its name and kind, and appends them.
void append(std::vector<OptionSpec>& table, const char* group, Kind kind, std::vector<OptionSpec> specs) {
  for (auto& spec : specs) {
    spec.group = group;
    spec.kind = kind;
    table.push_back(std::move(spec));
  }
}

std::vector<OptionSpec> make_table() {
  std::vector<OptionSpec> table;
  append(
      table, "Data", Kind::data,
      {
          required(only({Job::lm}, text("corpus", &O::train, "text files, plain, .gz, .xz or .zst; a line is a unit"))),
          required(only({Job::labels},
                        text("train", &O::train, "training file: header `N F L`, then `l1,l2 f:v f:v` per line"))),
          required(only({Job::items}, text("train", &O::train,
                                           "training file: `user item item …` or `user,item[,rating]` per line"))),
          text("valid", &O::valid, "held-out file of the same format"),
          only({Job::lm, Job::items},
               number("hold-out", &O::hold_out, 0, 0.5,
                      "without --valid: share of the data held out (the end of the corpus; some items of each user)")),
          number("valid-examples", &O::valid_examples, 0, largest_count,
                 "held-out examples evaluated at most; 0 for all"),
          number("valid-every", &O::valid_every, 1, largest_count,
                 "epochs between evaluations on held-out data; there is always one at the end"),
          only({Job::lm}, word("tokens", &O::tokens, {"words", "whitespace"},
                               "what a word is: runs of letters and digits, or what white space separates")),
          only({Job::lm}, flag("keep-case", &O::keep_case, "do not lower-case")),
          only({Job::lm}, number("min-count", &O::min_count, 1, largest_count, "rarer words become the unknown word")),
          only({Job::lm}, number("max-words", &O::max_words, 0, largest_count,
                                 "only so many words, the most frequent; 0 for no limit")),
          only({Job::lm}, number("context", &O::context, 1, 64, "preceding words that predict the next")),
          only({Job::lm}, number("subsample", &O::subsample, 0, 1,
                                 "drop a target of frequency p with probability 1 − √(t/p) − t/p; 0 for never")),
          only({Job::lm},
               flag("predict-unknown", &O::predict_unknown, "train and evaluate on the unknown word as a target, too")),
          only({Job::items},
               word("layout", &O::layout, {"auto", "lists", "csv"}, "of the files; auto looks at the first line")),
          only({Job::items},
               number("min-rating", &O::min_rating, 0, infinity, "pairs with a lower rating are dropped")),
          only({Job::labels, Job::items},
               word("input-norm", &O::input_norm, {"none", "l2"}, "inputs as they are, or scaled to unit length")),
          only({Job::labels, Job::items}, number("dropout", &O::dropout, 0, 0.99,
                                                 "share of the inputs dropped in training, the others scaled up")),
      });
  append(table, "Network", Kind::model,
         {
             only({Job::lm}, word("combine", &O::combine, {"concat", "mean"},
                                  "how the embeddings of a context become the first layer")),
             number("embedding", &O::embedding, 0, 65536,
                    "width of the input layer (for each word of a concatenation); 0 means as what follows"),
             number("hidden", &O::hidden, 1, 65536, "widths of hidden layers before the last; a list"),
             number("dim", &O::dim, 1, 65536, "width d of the last hidden layer"),
             word("activation", &O::activation, names_of(activation_names()), "of every hidden layer"),
             number("input-scale", &O::input_scale, 0, 100, "standard deviation of initial embeddings"),
         });
  append(table, "Head", Kind::model,
         {
             word("head", &O::head, trained_heads(), "how the output layer is held and updated"),
             word("loss", &O::loss, words_of(loss_names()),
                  "what the head minimises; softmax, hierarchical and sampled minimise the cross-entropy"),
             number("epsilon", &O::epsilon, 0, infinity, "ε of spherical and spherical-outside"),
             number("scale", &O::scale, 0, infinity, "α of z"),
             number("shift", &O::shift, -infinity, infinity, "β of z"),
             number("unobserved", &O::unobserved, 0, infinity, "w₀ of weighted, for outputs that are no targets"),
             number("observed", &O::observed, 0, infinity, "w₁ of weighted"),
             word("target-scale", &O::target_scale, {"none", "log", "sqrt"},
                  "targets of an output with frequency p: 1, ln 1/p or 1/√p"),
             word("init", &O::init, {"zero", "normal"}, "initial W"),
             number("init-scale", &O::init_scale, 0, infinity, "standard deviation of a normal W; 0 means 1/√D"),
             number("weight-decay", &O::weight_decay, 0, infinity, "λ: W shrinks by 1 − ηλ per step"),
             number("window", &O::window, 0, largest_count,
                    "rows of E (targets, or examples) after which a window of the windowed head closes; "
                    "0 means chosen from d"),
             number("samples", &O::samples, 1, largest_count, "negative samples of the sampled head"),
             text("rows-file", &O::rows_file, "keep V of the windowed head in this file instead of in memory"),
             word("rows", &O::rows, names_of(row_place_names()),
                  "on a GPU, V of the windowed head in its memory or, pinned, in the host's; auto: where it has room"),
         });
  append(
      table, "Training", Kind::model,
      {
          number("epochs", &O::epochs, 1, largest_count, "passes over the data"),
          number("batch", &O::batch, 1, 65536, "examples m in a minibatch"),
          word("optimizer", &O::optimizer, {"adam", "sgd"}, "of the layers below the head, on the mean loss"),
          number("lr", &O::lr, 0, infinity, "learning rate of the layers below the head"),
          number("lambda", &O::lambda, 0, 2, "learning rate of the head as λ₁ = 2ηa‖H‖₂², followed as H changes"),
          number("head-lr", &O::head_lr, 0, infinity,
                 "learning rate η of the head, for the loss summed over the minibatch; 0 means by --lambda"),
          word("schedule", &O::schedule, {"linear", "cosine", "step", "constant"}, "how all rates fall over the run"),
          number("warm-up", &O::warm_up, 0, 1, "share of the run during which rates rise"),
          number("clip", &O::clip, 0, infinity, "largest gradient norm below the head; 0 for no limit"),
          word("dtype", &O::dtype, {"f32", "f64"}, "precision"),
          number("threads", &O::threads, 0, 1024, "threads; 0 means one per core"),
          text("device", &O::device, "where the network lives and computes; N is the number of a GPU"),
          flag("tf32", &O::tf32,
               "products of float32 matrices on a GPU by TF32 tensor cores: faster, 10 bits of mantissa"),
          number("seed", &O::seed, 0, 9e15, "seed of everything random"),
      });
  append(table, "Run", Kind::run,
         {
             required(text("out", &O::out, "folder of the model")),
             flag("resume", &O::resume, "go on where the run in this folder stopped; start it if there is none"),
             flag("overwrite", &O::overwrite, "replace the model in this folder"),
             number("save-every", &O::save_every, 0, infinity, "minutes between checkpoints; 0 for the end only"),
             number("log-every", &O::log_every, 0.1, infinity,
                    "seconds between lines of progress where there is no terminal"),
         });
  return table;
}

[[noreturn]] void refuse(const OptionSpec& spec, const std::string& value, const std::string& expected) {
  throw std::invalid_argument(fmt::format("--{} {}: expected {}", spec.name, value, expected));
}

/// Whether NaN stands for the default of the loss.
bool may_be_unset(const OptionSpec& spec) {
  static const O defaults = default_options(Job::lm);
  const auto* field = std::get_if<double O::*>(&spec.field);
  return field != nullptr && std::isnan(defaults.**field);
}

void check_number(const OptionSpec& spec, double value) {
  if (std::isnan(value) && may_be_unset(spec)) return;
  if (std::isfinite(value) && value >= spec.least && value <= spec.most) return;
  refuse(
      spec, fmt::format("{}", value),
      spec.most < infinity ? fmt::format("{} … {}", spec.least, spec.most) : fmt::format("a number ≥ {}", spec.least));
}

void check_value(const OptionSpec& spec, const O& options) {
  std::visit(
      [&](auto field) {
        const auto& value = options.*field;
        using Value = std::remove_cvref_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>) {
          if (!spec.choices.empty() && std::ranges::find(spec.choices, value) == spec.choices.end()) {
            refuse(spec, value, fmt::format("{}", fmt::join(spec.choices, " | ")));
          }
          if (spec.required && value.empty()) throw std::invalid_argument(fmt::format("--{} is required", spec.name));
        } else if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
          if (spec.required && value.empty()) throw std::invalid_argument(fmt::format("--{} is required", spec.name));
        } else if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) {
          for (const auto element : value) check_number(spec, static_cast<double>(element));
        } else if constexpr (!std::is_same_v<Value, bool>) {
          check_number(spec, static_cast<double>(value));
        }
      },
      spec.field);
}

}  // namespace

std::string_view name_of(Job job) {
  static constexpr std::array<std::string_view, 3> names = {"lm", "labels", "items"};
  return names[static_cast<std::size_t>(job)];
}

Job job_named(std::string_view name) {
  for (const Job job : every_job()) {
    if (name_of(job) == name) return job;
  }
  throw std::invalid_argument(fmt::format("job '{}' is unknown; there are: lm, labels, items", name));
}

TrainOptions default_options(Job job) {
  TrainOptions o;
  o.tokens = "words";
  o.min_count = 5;
  o.context = 4;
  o.layout = "auto";
  o.input_norm = job == Job::items ? "l2" : "none";
  o.combine = "concat";
  o.embedding = job == Job::lm ? 100 : 0;
  o.dim = 300;
  o.activation = "relu";
  o.input_scale = 0.1;
  o.head = "windowed";
  o.loss = "squared";
  o.epsilon = o.scale = o.shift = o.unobserved = o.observed = unset;
  o.target_scale = "none";
  o.init = "zero";
  o.samples = 1024;
  o.epochs = 1;
  o.batch = 128;
  o.optimizer = "adam";
  o.lr = 1e-3;
  o.lambda = 0.1;
  o.schedule = "linear";
  o.dtype = "f32";
  o.save_every = 10;
  o.log_every = 5;
  if (job == Job::lm) {
    o.hidden = {300};
    o.hold_out = 0.002;
    o.lr = 2e-3;
    o.valid_examples = 10000;
  }
  if (job != Job::lm) o.valid_every = 5;
  if (job == Job::labels) {
    o.epochs = 20;
    o.activation = "tanh";
    o.dropout = 0.5;
    o.lr = 3e-3;
    o.lambda = 0.2;
  }
  if (job == Job::items) {
    o.hold_out = 0.1;
    o.activation = "tanh";
    o.dim = 256;
    o.dropout = 0.7;
    o.loss = "weighted";
    o.unobserved = 0.05;
    o.lambda = 0.2;
    o.batch = 512;
    o.epochs = 100;
  }
  return o;
}

bool OptionSpec::is_for(Job job) const { return std::ranges::find(jobs, job) != jobs.end(); }

std::span<const OptionSpec> option_table() {
  static const std::vector<OptionSpec> table = make_table();
  return table;
}

void check(Job job, const TrainOptions& options) {
  for (const auto& spec : option_table()) {
    if (spec.is_for(job)) check_value(spec, options);
  }
  if (options.resume && options.overwrite) throw std::invalid_argument("--resume and --overwrite exclude each other");
  if (options.train.size() > 1 && job != Job::lm) {
    throw std::invalid_argument(fmt::format("--train: {} files, but {} takes one", options.train.size(), name_of(job)));
  }
  const bool uses_lambda = options.head_lr == 0;
  if (uses_lambda && options.lambda == 0) {
    throw std::invalid_argument("--lambda 0: expected a number > 0, or --head-lr");
  }
  if (!options.rows_file.empty() && options.head != "windowed") {
    throw std::invalid_argument(fmt::format("--rows-file: only the windowed head has one, not {}", options.head));
  }
  if (!options.rows_file.empty() && options.device != "cpu") {
    throw std::invalid_argument(fmt::format(
        "--rows-file: with --device {} V is not in a file; --rows host keeps it in the host's memory", options.device));
  }
  if (options.rows != "auto" && options.head != "windowed") {
    throw std::invalid_argument(
        fmt::format("--rows {}: only the windowed head has a choice, not {}", options.rows, options.head));
  }
  if (options.rows != "auto" && options.device == "cpu") {
    throw std::invalid_argument(fmt::format("--rows {}: --device is cpu, whose memory is the host's", options.rows));
  }
  if (options.tf32 && options.device == "cpu") {
    throw std::invalid_argument("--tf32: --device is cpu, and only GPUs have TF32");
  }
  if (options.tf32 && options.dtype != "f32") {
    throw std::invalid_argument(
        fmt::format("--tf32: it is for products of float32 matrices, but --dtype is {}", options.dtype));
  }
}

std::vector<std::string> differences(Job job, const TrainOptions& a, const TrainOptions& b) {
  std::vector<std::string> names;
  for (const auto& spec : option_table()) {
    if (!spec.is_for(job) || spec.kind == Kind::run) continue;
    const bool same = std::visit(
        [&](auto field) {
          if constexpr (std::is_same_v<decltype(field), double O::*>) {
            return a.*field == b.*field || (std::isnan(a.*field) && std::isnan(b.*field));
          } else {
            return a.*field == b.*field;
          }
        },
        spec.field);
    if (!same) names.push_back(spec.name);
  }
  return names;
}

}  // namespace widehead
