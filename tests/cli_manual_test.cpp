/// The papers of the `widehead` program: its help, its manual, and what shells know of it.

#include "program.h"
#include "temporary_folder.h"

namespace widehead::test {
namespace {

std::vector<std::string> commands() {
  return {"",       "train",    "train lm",      "train labels", "train items", "eval",  "predict",    "neighbours",
          "export", "generate", "generate text", "info",         "verify",      "bench", "bench step", "completion"};
}

std::size_t characters(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  return count;
}

TEST(Help, FitsOnAScreenAndEndsWithExamples) {
  for (const auto& command : commands()) {
    SCOPED_TRACE(command);
    const auto outcome = run(command + " --help");
    EXPECT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.err, "");
    EXPECT_NE(outcome.out.find("Usage: widehead"), std::string::npos);
    for (const auto& line : lines_of_text(outcome.out)) EXPECT_LE(characters(line), 100U) << line;
    EXPECT_EQ(outcome.out.find("..."), std::string::npos);
    EXPECT_EQ(outcome.out.find("TEXT"), std::string::npos) << "a type that says nothing\n" << outcome.out;
  }
}

TEST(Help, ShowsTypesDefaultsAndChoices) {
  const auto help = run("train lm --help").out;
  for (const char* text : {"--corpus FILE…", "--out DIR", "--dim N", "[300]", "--activation relu|tanh|sigmoid",
                           "(required)", "Network:"}) {
    EXPECT_NE(help.find(text), std::string::npos) << text << " is not in\n" << help;
  }
}

TEST(Help, NamesDevicesAndSaysWhichIsMeant) {
  for (const std::string command : {"eval", "predict", "neighbours", "export"}) {
    const auto help = run(command + " --help").out;
    EXPECT_NE(help.find("--device cpu|cuda[:N]"), std::string::npos) << help;
    EXPECT_NE(help.find("whichever it was trained on"), std::string::npos) << help;
  }
  for (const std::string command : {"train lm", "train labels", "train items", "verify", "bench step"}) {
    const auto help = run(command + " --help").out;
    EXPECT_NE(help.find("--device cpu|cuda[:N]"), std::string::npos) << help;
    EXPECT_NE(help.find("--tf32"), std::string::npos) << help;
  }
}

TEST(Manual, IsDocsCliMd) {
  const auto printed = run("manual");
  ASSERT_EQ(printed.code, 0) << printed.err;
  EXPECT_TRUE(read_bytes(WIDEHEAD_SOURCE_DIR "/docs/cli.md") == printed.out)
      << "docs/cli.md is not what the program prints; write it anew: build/widehead manual > docs/cli.md";
}

TEST(Manual, HasEveryCommandAndOption) {
  const auto manual = run("manual").out;
  for (const char* text : {"## widehead train lm", "## widehead eval", "## widehead generate text", "`--corpus FILE…`",
                           "`--activation relu\\|tanh\\|sigmoid"}) {
    EXPECT_NE(manual.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(manual.find("## widehead manual"), std::string::npos);
}

/// What bash offers when the last of the words is completed.
std::vector<std::string> completions(const std::string& script, const std::vector<std::string>& words) {
  std::string list;
  for (const auto& word : words) list += " '" + word + "'";
  auto outcome = run_command(fmt::format(
      "bash -c 'source {}; COMP_WORDS=($0 \"$@\"); COMP_CWORD=$(({} - 1)); _widehead; printf \"%s\\n\" \"${{COMPREPLY[@]}}\"'{}",
      script, words.size(), list));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  auto lines = lines_of_text(outcome.out);
  std::erase(lines, "");
  return lines;
}

class Completion : public testing::Test {
 protected:
  void SetUp() override {
    const auto outcome = run("completion bash");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    script_ = (folder_ / "script").string();
    write_bytes(script_, outcome.out);
  }
  using Words = std::vector<std::string>;
  Words complete(const Words& words) const { return completions(script_, words); }

  TemporaryFolder folder_;
  std::string script_;
};

TEST_F(Completion, IsRegisteredWithBash) {
  const auto outcome = run_command("bash -c 'source " + script_ + "; complete -p widehead'");
  EXPECT_EQ(outcome.out, "complete -F _widehead widehead\n") << outcome.err;
}

TEST_F(Completion, OffersSubcommandsAtEveryLevel) {
  EXPECT_EQ(complete({"widehead", "tr"}), (Words{"train"}));
  EXPECT_EQ(complete({"widehead", "train", ""}), (Words{"lm", "labels", "items"}));
  EXPECT_EQ(complete({"widehead", "bench", ""}), (Words{"step"}));
  const auto all = complete({"widehead", ""});
  EXPECT_NE(std::find(all.begin(), all.end(), "neighbours"), all.end());
  EXPECT_EQ(std::find(all.begin(), all.end(), "manual"), all.end()) << "it is hidden";
}

TEST_F(Completion, OffersTheOptionsOfTheCommandAndTheirValues) {
  EXPECT_EQ(complete({"widehead", "train", "lm", "--cor"}), (Words{"--corpus"}));
  EXPECT_EQ(complete({"widehead", "train", "labels", "--cor"}), Words{});
  EXPECT_EQ(complete({"widehead", "train", "lm", "--activation", ""}), (Words{"relu", "tanh", "sigmoid", "identity"}));
  EXPECT_EQ(complete({"widehead", "train", "lm", "--dim", "64", "--activation", "ta"}), (Words{"tanh"}));
  EXPECT_EQ(complete({"widehead", "train", "lm", "--dim", ""}), Words{}) << "a number: nothing to offer";
  EXPECT_EQ(complete({"widehead", "predict", "model", "--device", ""}), (Words{"cpu", "cuda"}));
  EXPECT_EQ(complete({"widehead", "completion", "z"}), (Words{"zsh"}));
}

TEST_F(Completion, OffersFilesWhereFilesAreWanted) {
  std::filesystem::create_directory(folder_ / "model here");
  write_bytes(folder_ / "more text", "");
  const auto start = (folder_ / "mo").string();
  EXPECT_EQ(complete({"widehead", "train", "lm", "--out", start}), (Words{(folder_ / "model here").string()}));
  EXPECT_EQ(complete({"widehead", "eval", "model", "--corpus", start}).size(), 2U);
  EXPECT_EQ(complete({"widehead", "eval", start}).size(), 2U);
}

/// The script holds this, and the shell, if it is there, finds no fault with the script.
void check_script(const TemporaryFolder& folder, const std::string& shell, const std::string& text) {
  const auto outcome = run("completion " + shell);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(text), std::string::npos);
  const auto path = (folder / shell).string();
  write_bytes(path, outcome.out);
  if (run_command("command -v " + shell).code != 0) GTEST_SKIP() << shell << " is not installed: not checked by it";
  EXPECT_EQ(run_command(shell + " -n " + path).err, "");
}

TEST_F(Completion, ZshHasItsOwn) { check_script(folder_, "zsh", "--activation["); }
TEST_F(Completion, FishHasItsOwn) { check_script(folder_, "fish", "-l activation -x -a 'relu tanh sigmoid identity'"); }

TEST_F(Completion, RefusesOtherShells) {
  expect_refused("completion tcsh", 2, "tcsh");
  expect_refused("completion", 2, "SHELL");
}

}  // namespace
}  // namespace widehead::test
