/// The table of options, its checks, and config files.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <system_error>

#include "errors.h"
#include "scratch_folder.h"
#include "widehead/errors.h"
#include "widehead/train/options.h"

namespace widehead::test {
namespace {

constexpr std::array<Job, 3> jobs = {Job::lm, Job::labels, Job::items};
using O = TrainOptions;

/// The defaults with what has none.
O complete(Job job) {
  auto options = default_options(job);
  options.train = {"data.txt"};
  options.out = "model";
  return options;
}

/// Another valid value of an option.
void change(const OptionSpec& spec, O& options) {
  std::visit(
      [&](auto field) {
        auto& value = options.*field;
        using Value = std::remove_cvref_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, bool>) {
          value = !value;
        } else if constexpr (std::is_same_v<Value, std::string>) {
          value = spec.choices.empty()           ? "a \"quoted\" \\ name with 'ä' and a\ttab"
                  : value == spec.choices.back() ? spec.choices.front()
                                                 : spec.choices.back();
        } else if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
          value = {"first file", "sécond.gz"};
        } else if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) {
          value = {7, 65536, 1};
        } else if constexpr (std::is_same_v<Value, std::int64_t>) {
          value = value == static_cast<std::int64_t>(spec.most) ? static_cast<std::int64_t>(spec.least)
                                                                : static_cast<std::int64_t>(spec.most);
        } else {
          value = std::max(spec.least, 0.0) + 1.0 / 3 * std::min(1.0, spec.most) + 1e-17;
        }
      },
      spec.field);
}

TEST(Options, AreListedConsistently) {
  for (const Job job : jobs) {
    std::set<std::string> names;
    for (const auto& spec : option_table()) {
      EXPECT_FALSE(spec.help.empty()) << spec.name;
      EXPECT_FALSE(spec.group.empty()) << spec.name;
      EXPECT_LE(spec.least, spec.most) << spec.name;
      if (spec.is_for(job)) {
        EXPECT_TRUE(names.insert(spec.name).second) << spec.name << " is listed twice";
      }
      const auto* field = std::get_if<std::string O::*>(&spec.field);
      if (field == nullptr || spec.choices.empty() || !spec.is_for(job)) continue;
      const auto defaults = default_options(job);
      EXPECT_NE(std::ranges::find(spec.choices, defaults.**field), spec.choices.end()) << spec.name;
    }
    EXPECT_EQ(job_named(name_of(job)), job);
  }
  expect_throw<std::invalid_argument>([] { job_named("poems"); }, {"job 'poems'", "lm, labels, items"});
}

TEST(Options, HaveDefaultsThatPass) {
  for (const Job job : jobs) EXPECT_NO_THROW(check(job, complete(job))) << name_of(job);
}

/// Each option, alone, at its limits and beyond.
TEST(Options, AreCheckedAgainstTheirLimits) {
  for (const Job job : jobs) {
    for (const auto& spec : option_table()) {
      if (!spec.is_for(job)) continue;
      const auto refused = [&](const auto& spoil, const std::string& value) {
        auto options = complete(job);
        spoil(options);
        expect_throw<std::invalid_argument>([&] { check(job, options); },
                                            {fmt::format("--{} {}: expected ", spec.name, value)});
      };
      const auto accepted = [&](const auto& set) {
        auto options = complete(job);
        options.head_lr = 0.1;  // lambda may be 0 then
        set(options);
        EXPECT_NO_THROW(check(job, options)) << spec.name;
      };
      std::visit(
          [&](auto field) {
            using Value = std::remove_cvref_t<decltype(std::declval<O&>().*field)>;
            if constexpr (std::is_same_v<Value, std::string>) {
              if (!spec.choices.empty()) refused([&](O& o) { o.*field = "nonsense"; }, "nonsense");
            } else if constexpr (std::is_same_v<Value, std::int64_t>) {
              refused([&](O& o) { o.*field = static_cast<std::int64_t>(spec.least) - 1; },
                      fmt::format("{}", spec.least - 1));
              accepted([&](O& o) { o.*field = static_cast<std::int64_t>(spec.least); });
              accepted([&](O& o) { o.*field = static_cast<std::int64_t>(spec.most); });
              const auto most = static_cast<std::int64_t>(spec.most) + 1;
              refused([&](O& o) { o.*field = most; }, fmt::format("{}", static_cast<double>(most)));
            } else if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) {
              refused([&](O& o) { o.*field = {8, 0}; }, "0");
              accepted([&](O& o) { o.*field = {}; });
            } else if constexpr (std::is_same_v<Value, double>) {
              constexpr double infinity = std::numeric_limits<double>::infinity();
              refused([&](O& o) { o.*field = infinity; }, "inf");
              refused([&](O& o) { o.*field = -infinity; }, "-inf");
              if (spec.least > -infinity) {
                accepted([&](O& o) { o.*field = spec.least; });
                refused([&](O& o) { o.*field = spec.least - 0.5; }, fmt::format("{}", spec.least - 0.5));
              }
              if (spec.most < infinity) {
                accepted([&](O& o) { o.*field = spec.most; });
                refused([&](O& o) { o.*field = spec.most + 0.5; }, fmt::format("{}", spec.most + 0.5));
              }
              if (std::isnan(default_options(Job::lm).*field)) {
                accepted([&](O& o) { o.*field = std::nan(""); });  // the default of the loss
              } else {
                refused([&](O& o) { o.*field = std::nan(""); }, "nan");
              }
            }
          },
          spec.field);
    }
  }
}

TEST(Options, AreRefusedInTheWordsOfTheTable) {
  const auto text = [](Job job, const auto& spoil) -> std::string {
    auto options = complete(job);
    spoil(options);
    try {
      check(job, options);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(text(Job::lm, [](O& o) { o.dim = 0; }), "--dim 0: expected 1 … 65536");
  EXPECT_EQ(text(Job::lm, [](O& o) { o.lr = -1; }), "--lr -1: expected a number ≥ 0");
  EXPECT_EQ(text(Job::lm, [](O& o) { o.combine = "sum"; }), "--combine sum: expected concat | mean");
  EXPECT_EQ(text(Job::lm, [](O& o) { o.head = "reference"; }).substr(0, 27), "--head reference: expected ");
  EXPECT_EQ(text(Job::lm, [](O& o) { o.train.clear(); }), "--corpus is required");
  EXPECT_EQ(text(Job::labels, [](O& o) { o.train.clear(); }), "--train is required");
  EXPECT_EQ(text(Job::items, [](O& o) { o.out.clear(); }), "--out is required");
  EXPECT_EQ(text(Job::items, [](O& o) { o.train = {"a", "b"}; }), "--train: 2 files, but items takes one");
  EXPECT_EQ(text(Job::lm, [](O& o) { o.train = {"a", "b"}; }), "");
  EXPECT_EQ(text(Job::lm, [](O& o) { o.resume = o.overwrite = true; }), "--resume and --overwrite exclude each other");
  EXPECT_EQ(text(Job::lm, [](O& o) { o.lambda = 0; }), "--lambda 0: expected a number > 0, or --head-lr");
  EXPECT_EQ(text(Job::lm,
                 [](O& o) {
                   o.rows_file = "rows";
                   o.head = "dense";
                 }),
            "--rows-file: only the windowed head has one, not dense");
  EXPECT_EQ(text(Job::lm,
                 [](O& o) {
                   o.rows_file = "rows";
                   o.device = "cuda";
                 }),
            "--rows-file: with --device cuda V is not in a file; --rows host keeps it in the host's memory");
  for (const std::string place : {"device", "host"}) {
    EXPECT_EQ(text(Job::lm, [&](O& o) { o.rows = place; }),
              "--rows " + place + ": --device is cpu, whose memory is the host's");
    EXPECT_EQ(text(Job::lm,
                   [&](O& o) {
                     o.rows = place;
                     o.device = "cuda";
                     o.head = "dense";
                   }),
              "--rows " + place + ": only the windowed head has a choice, not dense");
    EXPECT_EQ(text(Job::lm,
                   [&](O& o) {
                     o.rows = place;
                     o.device = "cuda";
                   }),
              "");
  }
  EXPECT_EQ(text(Job::lm, [](O& o) { o.tf32 = true; }), "--tf32: --device is cpu, and only GPUs have TF32");
  const auto on_gpu = [&](const std::string& dtype) {
    return text(Job::items, [&](O& o) {
      o.tf32 = true;
      o.device = "cuda:1";
      o.dtype = dtype;
    });
  };
  EXPECT_EQ(on_gpu("f32"), "");
  EXPECT_EQ(on_gpu("f64"), "--tf32: it is for products of float32 matrices, but --dtype is f64");
  EXPECT_EQ(text(Job::labels, [](O& o) { o.combine = "nonsense"; }), "");  // no option of this job
}

TEST(Options, AreTheSameAfterAFile) {
  const ScratchFolder folder;
  for (const Job job : jobs) {
    auto options = complete(job);
    for (const auto& spec : option_table()) {
      if (spec.is_for(job)) change(spec, options);
    }
    for (const auto& spec : option_table()) {  // one by one: a field that is not written would be its default
      if (!spec.is_for(job)) continue;
      auto one = default_options(job);
      change(spec, one);
      if (spec.kind == OptionSpec::Kind::run) {
        EXPECT_TRUE(differences(job, default_options(job), one).empty()) << spec.name;
      } else {
        EXPECT_EQ(differences(job, default_options(job), one), std::vector<std::string>{spec.name});
      }
    }
    const auto path = folder.file("options.toml", to_toml(job, options, true));
    const auto read = read_toml(path, nullptr);
    EXPECT_EQ(read.job, job);
    EXPECT_EQ(differences(job, read.options, options), std::vector<std::string>());
    EXPECT_EQ(to_toml(job, read.options, true), to_toml(job, options, true));
    EXPECT_EQ(read.options.out, options.out);
    EXPECT_EQ(read.options.resume, options.resume);
    EXPECT_EQ(read.options.save_every, options.save_every);

    const auto stored = folder.file("stored.toml", to_toml(job, options, false));
    const auto without = read_toml(stored, &job).options;
    EXPECT_EQ(differences(job, without, options), std::vector<std::string>());
    EXPECT_EQ(without.out, "");  // of one run only
    EXPECT_EQ(without.save_every, default_options(job).save_every);

    const auto defaults = read_toml(folder.file("defaults.toml", to_toml(job, default_options(job), true)), &job);
    EXPECT_EQ(differences(job, defaults.options, default_options(job)), std::vector<std::string>());
    EXPECT_EQ(to_toml(job, default_options(job), true).find("nan"), std::string::npos);
    EXPECT_EQ(std::isnan(defaults.options.epsilon), std::isnan(default_options(job).epsilon));
  }
}

TEST(Options, NotInAFileKeepTheirDefaults) {
  const ScratchFolder folder;
  const Job job = Job::items;
  const auto read = read_toml(folder.file("few.toml", "dim = 12\nlr = 1\nhidden = 3\ntrain = \"one.csv\"\n"), &job);
  EXPECT_EQ(differences(job, read.options, default_options(job)),
            (std::vector<std::string>{"train", "hidden", "dim", "lr"}));
  EXPECT_EQ(read.options.dim, 12);
  EXPECT_EQ(read.options.lr, 1);
  EXPECT_EQ(read.options.hidden, std::vector<std::int64_t>{3});
  EXPECT_EQ(read.options.train, std::vector<std::string>{"one.csv"});
}

TEST(Options, OfAFileAreRefusedWithPathAndLine) {
  const ScratchFolder folder;
  const auto text = [&](const std::string& content, const Job* job) -> std::string {
    const auto path = folder.file("bad.toml", content);
    try {
      read_toml(path, job);
    } catch (const FileError& error) {
      const std::string what = error.what();
      EXPECT_EQ(what.substr(0, path.size() + 1), path + ":") << what;
      return what.substr(path.size() + 1);
    }
    return "nothing was thrown";
  };
  const Job lm = Job::lm;
  EXPECT_EQ(text("\ndimension = 3\n", &lm), "2: lm has no option 'dimension'");
  EXPECT_EQ(text("dropout = 0.5\n", &lm), "1: lm has no option 'dropout'");  // of other jobs
  EXPECT_EQ(text("[network]\ndim = 3\n", &lm), "1: lm has no option 'network'");
  EXPECT_EQ(text("dim = 1.5\n", &lm), "1: dim: expected an integer");
  EXPECT_EQ(text("dim = \"3\"\n", &lm), "1: dim: expected an integer");
  EXPECT_EQ(text("\n\nlr = true\n", &lm), "3: lr: expected a number");
  EXPECT_EQ(text("loss = 3\n", &lm), "1: loss: expected a string");
  EXPECT_EQ(text("keep-case = 1\n", &lm), "1: keep-case: expected true or false");
  EXPECT_EQ(text("hidden = [3, 4.5]\n", &lm), "1: hidden: expected a list of integers");
  EXPECT_EQ(text("corpus = [\"a\", 3]\n", &lm), "1: corpus: expected a list of strings");
  EXPECT_EQ(text("job = \"items\"\n", &lm), "1: options for items, but the job is lm");
  EXPECT_EQ(text("job = \"poems\"\n", &lm), "1: job 'poems' is unknown; there are: lm, labels, items");
  EXPECT_EQ(text("job = 3\n", &lm), "1: job: expected a string");
  EXPECT_EQ(text("dim = 3\n", nullptr), "1: expected the key job");
  EXPECT_EQ(text("dim = 3\nlr == 3\n", &lm).substr(0, 3), "2: ");
  EXPECT_EQ(text("dim = 3\ndim = 4\n", &lm).substr(0, 3), "2: ");
  EXPECT_EQ(text("dim = 99999999999999999999\n", &lm).substr(0, 3), "1: ");
}

TEST(Options, TakeWholeNumbersForNumbersHoweverLarge) {
  const ScratchFolder folder;
  const Job job = Job::lm;
  EXPECT_EQ(read_toml(folder.file("large.toml", "lr = 9007199254740993\n"), &job).options.lr, 9007199254740992.0);
}

TEST(Options, OfAFileThatIsNotThereAreTheSystemsRefusal) {
  const Job job = Job::lm;
  expect_throw<std::system_error>([&] { read_toml("/no/such/file.toml", &job); },
                                  {"/no/such/file.toml", "No such file"});
}

}  // namespace
}  // namespace widehead::test
