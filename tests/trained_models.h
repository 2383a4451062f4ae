#pragma once
/// A trained model of each job, for the tests of what uses one; trained once, when the test program starts.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "program.h"
#include "temporary_folder.h"

namespace widehead::test {

/// Text, labels and items with a structure that a small model finds out, and the models.
class Models : public testing::Environment {
 public:
  void SetUp() override {
    folder.emplace();
    make_text();
    make_labels();
    make_items();
  }
  void TearDown() override { folder.reset(); }

  std::string path(const std::string& name) const { return (*folder / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    write_bytes(path(name), text);
    return path(name);
  }

 private:
  void train(const std::string& arguments) const {
    const auto outcome = run("train " + arguments + " --threads 1");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }

  void make_text() {
    const auto outcome = run(fmt::format("generate text --out {} --pairs {} --words 1000 --tokens 60000 --seed 3",
                                         path("text"), path("pairs")));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    ASSERT_EQ(outcome.out + outcome.err, "");
    train(
        fmt::format("lm --corpus {} --out {} --embedding 24 --hidden 32 --dim 24 --epochs 4 --min-count 2 "
                    "--loss spherical --lr 0.003 --dtype f32",
                    path("text"), path("lm")));
    train(fmt::format(
        "lm --corpus {} --out {} --embedding 24 --hidden 32 --dim 24 --combine mean --activation tanh --epochs 12 "
        "--min-count 2 --lr 0.003 --keep-case --hold-out 0 --dtype f64",
        path("text"), path("lm64")));
  }

  /// Feature f has label f mod 7, and each example two features.
  void make_labels() {
    std::string text = "140 14 7\n";
    for (int i = 0; i < 140; ++i) {
      const int f = i % 14, g = (i * 5 + 3) % 14;
      if (f == g || f % 7 == g % 7) {
        text += fmt::format("{} {}:1\n", f % 7, f);
      } else {
        text += fmt::format("{},{} {}:1 {}:1\n", f % 7, g % 7, f, g);
      }
    }
    write("labels.txt", text);
    train(fmt::format("labels --train {} --out {} --dim 16 --epochs 60 --batch 16 --lr 0.01", path("labels.txt"),
                      path("labels")));
  }

  /// Users like the items of one of two shelves; each has all but two of its shelf, one held out and one excluded.
  void make_items() {
    std::string train_text, test_text, exclude_text;
    for (int user = 0; user < 40; ++user) {
      const char shelf = user % 2 == 0 ? 'a' : 'b';
      train_text += fmt::format("u{}", user);
      for (int item = 0; item < 12; ++item) {
        const bool is_test = item == user % 12, is_excluded = item == (user + 5) % 12;
        auto& to = is_test ? test_text : is_excluded ? exclude_text : train_text;
        to += is_test || is_excluded ? fmt::format("u{} {}{}\n", user, shelf, item) : fmt::format(" {}{}", shelf, item);
      }
      train_text += '\n';
    }
    write("train.txt", train_text);
    write("test.txt", test_text);
    write("exclude.txt", exclude_text);
    train(fmt::format("items --train {} --hold-out 0 --out {} --dim 8 --epochs 60 --batch 16", path("train.txt"),
                      path("items")));
  }

  std::optional<TemporaryFolder> folder;
};

inline const Models& models() {
  static auto* const made = static_cast<Models*>(testing::AddGlobalTestEnvironment(new Models));
  return *made;
}
inline std::string in(const std::string& name) { return models().path(name); }

/// The program's stdout as JSON, one object; nothing on stderr.
inline Json json_of(const std::string& arguments) {
  const auto outcome = run(arguments + " --json --threads 1");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const auto lines = lines_of_text(outcome.out);
  EXPECT_EQ(lines.size(), 1U) << outcome.out;
  return Json::parse(outcome.out);
}

inline std::string text_of(const std::string& arguments) {
  const auto outcome = run(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return outcome.out;
}

}  // namespace widehead::test
