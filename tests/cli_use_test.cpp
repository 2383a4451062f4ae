/// The `widehead` program on trained models: how good they are, what is near, what comes next.

#include <fmt/ranges.h>

#include <algorithm>

#include "trained_models.h"

namespace widehead::test {
namespace {

const Models& made_at_start = models();

// ── eval ─────────────────────────────────────────────────────────────────────────────────────────

TEST(EvalCommand, FindsTheSimilaritiesThatTheLanguageHas) {
  const auto result = json_of("eval " + in("lm64") + " --similarity " + in("pairs"));
  EXPECT_EQ(result["job"], "lm");
  ASSERT_EQ(result["similarity"].size(), 1U);
  const auto& set = result["similarity"][0];
  EXPECT_EQ(set["file"], in("pairs"));
  for (const char* kind : {"input", "output"}) {
    SCOPED_TRACE(kind);
    EXPECT_EQ(set[kind]["found"].get<int>() + set[kind]["missing"].get<int>(), 3000);
    EXPECT_GT(set[kind]["found"].get<int>(), 2500);
    EXPECT_GT(set[kind]["spearman"].get<double>(), std::string(kind) == "input" ? 0.2 : 0.5);
  }
}

TEST(EvalCommand, EvaluatesSeveralSetsWithTheVectorsAskedFor) {
  const auto few = models().write("few", "BIRDa1 birda2 5\nbirda1 metala1 1\nbirda1 nosuchword 1\nbirdb1 metala1 0\n");
  const auto result = json_of(fmt::format("eval {} --vectors input --similarity {} {}", in("lm"), few, in("pairs")));
  ASSERT_EQ(result["similarity"].size(), 2U);
  EXPECT_FALSE(result["similarity"][0].contains("output"));
  EXPECT_EQ(result["similarity"][0]["input"]["found"], 3) << "letters of either case are one for this model";
  EXPECT_EQ(result["similarity"][0]["input"]["missing"], 1);
  const auto kept = json_of(fmt::format("eval {} --vectors input --similarity {}", in("lm64"), few));
  EXPECT_EQ(kept["similarity"][0]["input"]["found"], 2) << "and two where it keeps the case";
}

TEST(EvalCommand, MeasuresAsTrainingDid) {
  const auto trained = json_of("info " + in("lm"))["held_out"];
  const auto text = lines_of_text(read_bytes(in("text")));
  std::string end;  // at least what was held out: the last 0.2%
  for (std::size_t i = text.size() - text.size() / 50; i < text.size(); ++i) end += text[i] + "\n";
  const auto held_out = json_of("eval " + in("lm") + " --corpus " + models().write("end", end))["held_out"];
  expect_keys(held_out, {"examples", "loss", "perplexity", "top1", "top10", "mrr"});
  EXPECT_GT(held_out["examples"].get<int>(), 500);
  EXPECT_NEAR(held_out["loss"].get<double>(), trained["loss"].get<double>(), 1);
  EXPECT_LT(held_out["perplexity"].get<double>(), 400) << "of some 780 words";
  EXPECT_GT(held_out["top10"].get<double>(), held_out["top1"].get<double>());
  const auto fewer = json_of("eval " + in("lm") + " --examples 100 --corpus " + in("end"))["held_out"];
  EXPECT_EQ(fewer["examples"], 100);
}

TEST(EvalCommand, AnswersAnalogiesBySection) {
  const auto questions = models().write(
      "questions",
      ": one\nbirda1 birdb1 metala1 metalb1\nthe of nosuchword in\n: two\nthe of and in\n<unk> of and in\n");
  const auto result = json_of("eval " + in("lm") + " --most-frequent 900 --analogy " + questions)["analogy"];
  for (const char* kind : {"input", "output"}) {
    const auto& rows = result[kind];
    ASSERT_EQ(rows.size(), 3U);
    EXPECT_EQ(rows[0]["section"], "one");
    EXPECT_EQ(rows[0]["found"], 1);
    EXPECT_EQ(rows[0]["missing"], 1);
    EXPECT_EQ(rows[1]["section"], "two");
    EXPECT_EQ(rows[2]["section"], "total");
    EXPECT_EQ(rows[1]["missing"], 1) << "the unknown word is no word";
    EXPECT_EQ(rows[2]["found"], 2);
  }
  const auto rarer =
      json_of("eval " + in("lm") + " --most-frequent 5 --vectors output --analogy " + questions)["analogy"];
  EXPECT_EQ(rarer["output"][0]["found"], 0);
  EXPECT_TRUE(rarer["output"][0]["accuracy"].is_null());
}

TEST(EvalCommand, MeasuresLabels) {
  const auto held_out = json_of("eval " + in("labels") + " --test " + in("labels.txt"))["held_out"];
  expect_keys(held_out, {"examples", "loss", "P@1", "P@3", "P@5", "nDCG@3", "PSP@1", "PSP@5"});
  EXPECT_EQ(held_out["examples"], 140);
  EXPECT_GT(held_out["P@1"].get<double>(), 0.95);
  EXPECT_GT(held_out["PSP@1"].get<double>(), 0.9);
}

TEST(EvalCommand, RecommendsNoItemOfTheTrainingFileOrExcluded) {
  const auto files = fmt::format(" --train {} --test {}", in("train.txt"), in("test.txt"));
  const auto held_out = json_of("eval " + in("items") + files)["held_out"];
  expect_keys(held_out, {"users", "Recall@10", "Recall@20", "Recall@50", "nDCG@10"});
  EXPECT_EQ(held_out["users"], 40);
  EXPECT_EQ(held_out["Recall@20"].get<double>(), 1) << "14 items are left: everything is found";
  const auto excluding = json_of("eval " + in("items") + files + " --exclude " + in("exclude.txt"))["held_out"];
  EXPECT_EQ(excluding["nDCG@10"].get<double>(), 1) << "the only item of its shelf that is left comes first";
  EXPECT_LT(held_out["nDCG@10"].get<double>(), 1);
  auto users = lines_of_text(read_bytes(in("train.txt")));
  std::ranges::reverse(users);  // items appear in another order, and are the model's all the same
  const auto reversed = models().write("reversed.txt", fmt::format("{}\n", fmt::join(users, "\n")));
  EXPECT_EQ(json_of(fmt::format("eval {} --train {} --test {}", in("items"), reversed, in("test.txt")))["held_out"],
            held_out);
}

TEST(EvalCommand, SaysTheSameInWords) {
  const auto words = text_of(fmt::format("eval {} --similarity {} --corpus {}", in("lm"), in("pairs"), in("text")));
  for (const char* word : {"Spearman", "input", "output", "found", "missing", "perplexity", "mrr"}) {
    EXPECT_NE(words.find(word), std::string::npos) << word << " is not in\n" << words;
  }
  EXPECT_NE(text_of("eval " + in("labels") + " --test " + in("labels.txt")).find("PSP@1"), std::string::npos);
}

TEST(EvalCommand, RefusesFlagsOfAnotherJobAndFilesThatAreNot) {
  expect_refused("eval " + in("labels") + " --corpus " + in("text"), 2, "--corpus is for models of the job lm");
  expect_refused("eval " + in("lm") + " --train x --test y", 2, "--train is for models of the job items");
  expect_refused("eval " + in("lm") + " --test y", 2, "--corpus");
  expect_refused("eval " + in("lm"), 2, "needs --corpus");
  expect_refused("eval " + in("labels"), 2, "needs --test");
  expect_refused("eval " + in("items") + " --test x", 2, "needs --train and --test");
  expect_refused("eval " + in("labels") + " --exclude x --test y", 2, "--exclude");
  expect_refused("eval " + in("nowhere") + " --test x", 1, in("nowhere"));
  expect_refused("eval " + in("text") + " --test x", 1, "there is no model");
  expect_refused("eval " + in("lm") + " --corpus " + in("nowhere"), 1, in("nowhere"));
  expect_refused("eval " + in("lm") + " --corpus " + models().write("foreign", "123 456\n"), 1, "foreign");
  expect_refused("eval " + in("lm") + " --similarity " + in("labels.txt"), 1, "labels.txt:2");
  expect_refused("eval " + in("labels") + " --test " + models().write("other.txt", "1 3 7\n1 0:1\n"), 1, "other.txt:1");
  expect_refused("eval " + in("items") + " --train " + in("train.txt") + " --test " + in("text"), 1, "no pair");
  expect_refused("eval " + in("lm") + " --vectors all --corpus x", 2, "all");
  expect_refused("eval", 2, "MODEL");
}

// ── neighbours ───────────────────────────────────────────────────────────────────────────────────

TEST(NeighboursCommand, FindsWordsOfTheSameTheme) {
  const auto result = json_of("neighbours " + in("lm") + " birda1 --top-k 5 --vectors input");
  EXPECT_EQ(result["query"], "birda1");
  ASSERT_EQ(result["neighbours"].size(), 5U);
  int of_theme = 0;
  double before = 1;
  for (const auto& neighbour : result["neighbours"]) {
    of_theme += neighbour["word"].get<std::string>().starts_with("bird") ? 1 : 0;
    EXPECT_NE(neighbour["word"], "birda1");
    EXPECT_LE(neighbour["cosine"].get<double>(), before + 1e-6);
    before = neighbour["cosine"].get<double>();
  }
  EXPECT_GE(of_theme, 3);
}

TEST(NeighboursCommand, TakesSeveralWordsAndCombinations) {
  const auto text = text_of("neighbours " + in("lm") + " birda1 'birda1 - birdb1 + metalb1' --top-k 3");
  const auto lines = lines_of_text(text);
  ASSERT_EQ(lines.size(), 9U) << text;
  EXPECT_EQ(lines[0], "birda1");
  EXPECT_EQ(lines_of_text(text_of("neighbours " + in("lm") + " BirdA1 --top-k 3")).at(1), lines[1]) << "in any case";
  EXPECT_EQ(lines[5], "birda1 - birdb1 + metalb1");
}

TEST(NeighboursCommand, KnowsItemsByNameAndLabelsByNumber) {
  const auto items = json_of("neighbours " + in("items") + " a3 --top-k 3");
  for (const auto& each : items["neighbours"]) EXPECT_EQ(each["item"].get<std::string>()[0], 'a') << items.dump();
  EXPECT_EQ(json_of("neighbours " + in("labels") + " 6 --top-k 2")["neighbours"].size(), 2U);
  EXPECT_EQ(json_of("neighbours " + in("labels") + " 6")["neighbours"].size(), 6U) << "there are no ten";
}

TEST(NeighboursCommand, RefusesWhatItDoesNotKnow) {
  expect_refused("neighbours " + in("lm") + " birda1 nosuchword", 2, "nosuchword");
  expect_refused("neighbours " + in("labels") + " 7", 2, "\"7\"");
  expect_refused("neighbours " + in("lm") + " 'birda1 birda2'", 2, "expected");
  expect_refused("neighbours " + in("lm") + " birda1 --top-k 0", 2, "--top-k 0");
  expect_refused("neighbours " + in("labels") + " 1 --top-k 8", 2, "1 … 7");
  expect_refused("neighbours " + in("labels") + " 1 --vectors input", 2, "input vectors");
  expect_refused("neighbours " + in("nowhere") + " x", 1, in("nowhere"));
  expect_refused("neighbours " + in("lm"), 2, "WORD");
}

// ── predict ──────────────────────────────────────────────────────────────────────────────────────

TEST(PredictCommand, GivesTheNextWordsOfEachLineWithProbabilities) {
  const auto outcome = run_command("printf 'the birda1 of birdb1\\n\\nmetala1\\n' | " WIDEHEAD_PROGRAM " predict " +
                                   in("lm") + " --top-k 4 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto lines = lines_of_text(outcome.out);
  ASSERT_EQ(lines.size(), 3U) << outcome.out;
  for (const auto& line : lines) {
    const auto words = Json::parse(line)["words"];
    ASSERT_EQ(words.size(), 4U);
    double sum = 0;
    for (const auto& word : words) {
      EXPECT_GT(word["p"].get<double>(), 0);
      sum += word["p"].get<double>();
    }
    EXPECT_LE(sum, 1);
  }
  EXPECT_NE(lines[0], lines[1]);
}

TEST(PredictCommand, UsesTheLastWordsOfALineOnly) {
  const auto outcome = run_command(
      "printf 'bread bread bread the of birda1 birdb2\\nthe of birda1 BIRDB2\\n' | " WIDEHEAD_PROGRAM " predict " +
      in("lm"));
  const auto lines = lines_of_text(outcome.out);
  ASSERT_EQ(lines.size(), 2U) << outcome.err;
  EXPECT_EQ(lines[0], lines[1]);
}

TEST(PredictCommand, GivesScoresWhereThereAreNoProbabilities) {
  const auto outcome = run_command("echo 'the birda1' | " WIDEHEAD_PROGRAM " predict " + in("lm64") + " --json");
  const auto words = Json::parse(outcome.out)["words"];
  ASSERT_EQ(words.size(), 5U);
  EXPECT_TRUE(words[0].contains("score"));
  EXPECT_GE(words[0]["score"].get<double>(), words[4]["score"].get<double>());
}

TEST(PredictCommand, GivesTheLabelsOfFeatures) {
  const auto path = models().write("features.txt", "8:1\n3,5 3:1 12:1\n");
  const auto lines = lines_of_text(text_of(fmt::format("predict {} {} --top-k 2", in("labels"), path)));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].substr(0, 2), "1:");
  EXPECT_TRUE(lines[1].starts_with("3:") || lines[1].starts_with("5:")) << lines[1];
  EXPECT_EQ(lines_of_text(text_of("predict " + in("labels") + " " + in("labels.txt"))).size(), 140U) << "with a header";
}

TEST(PredictCommand, RecommendsItemsThatTheUserDoesNotHave) {
  const auto path = models().write("users.txt", "x a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 nosuch\n\ny\tb0\tb1\tb2\n");
  const auto outcome = run(fmt::format("predict {} {} --top-k 2 --json", in("items"), path));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "widehead: 1 of the items given are not known to the model and were left out\n");
  const auto lines = lines_of_text(outcome.out);
  ASSERT_EQ(lines.size(), 2U);
  const auto x = Json::parse(lines[0]);
  EXPECT_EQ(x["user"], "x");
  std::vector<std::string> names;
  for (const auto& each : x["items"]) names.push_back(each["item"]);
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"a10", "a11"}));
  for (const auto& each : Json::parse(lines[1])["items"]) EXPECT_EQ(each["item"].get<std::string>()[0], 'b');
}

TEST(PredictCommand, KeepsEveryLineBeyondAMinibatch) {
  std::string text;
  for (int i = 0; i < 600; ++i) text += fmt::format("{}:1\n", i % 14);
  const auto lines = lines_of_text(text_of("predict " + in("labels") + " --top-k 1 " + models().write("many", text)));
  ASSERT_EQ(lines.size(), 600U);
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i], lines[i % 14]);
}

TEST(PredictCommand, FailsWhereItsOutputCannotBeWritten) {
  for (const char* top_k : {"1", "7"}) {  // within a buffer, and beyond
    const auto outcome = run("predict " + in("labels") + " " + in("labels.txt") + " > /dev/full --top-k " + top_k);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_EQ(outcome.err.substr(0, 10), "widehead: ") << outcome.err;
  }
}

TEST(PredictCommand, RefusesBadLinesAndCounts) {
  expect_refused("predict " + in("labels") + " " + models().write("bad", "99:1\n"), 1, "bad:1");
  expect_refused("predict " + in("labels") + " " + models().write("header", "2 3 7\n1:1\n"), 1, "header:1");
  expect_refused("predict " + in("lm") + " " + models().write("latin", "caf\xe9\n"), 1, "latin:1");
  expect_refused("predict " + in("labels") + " " + in("nowhere"), 1, in("nowhere"));
  expect_refused("predict " + in("labels") + " --top-k 8 " + in("labels.txt"), 2, "--top-k 8");
  expect_refused("predict " + in("labels") + " --top-k -1 " + in("labels.txt"), 2, "--top-k -1");
}

}  // namespace
}  // namespace widehead::test
