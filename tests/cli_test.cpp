/// The `widehead` program from outside: what it prints, and what it exits with.

#include "program.h"

namespace widehead::test {
namespace {

const std::string tiny = " --outputs 50 --dim 6 --batch 4 --threads 1";

TEST(Cli, VerifyPrintsItsFindingsAsJson) {
  const auto outcome = run("verify --head factored --dtype f64 --steps 30 --lambda 0.05 --json" + tiny);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto object = Json::parse(outcome.out);
  expect_keys(object, {"head", "outputs", "dim", "batch", "nonzeros", "dtype", "lambda", "steps", "rel_W", "rel_Q",
                       "rel_grad", "rel_loss", "inverse", "stabilizer", "diagnostics"});
  EXPECT_EQ(object["head"], "factored");
  EXPECT_EQ(object["steps"], 30);
  EXPECT_EQ(object["outputs"], 50);
  EXPECT_EQ(object["dtype"], "f64");
  for (const char* key : {"rel_W", "rel_Q", "rel_grad", "rel_loss"}) {
    EXPECT_GT(object[key].get<double>(), 0) << key;  // exactly equal would mean that nothing was compared
    EXPECT_LT(object[key].get<double>(), 1e-12) << key;
  }
}

TEST(Cli, VerifyTakesEveryOption) {
  for (const std::string options :
       {"--head dense --dtype f32", "--head reference --dtype f64", "--head factored --inverse solve",
        "--head factored --inverse refresh --refresh-every 2",
        "--head factored --stabilizer svd --sigma-low 0.5 --sigma-high 2 --n-check 3",
        "--head factored --stabilizer power --iterations 50", "--head factored --stabilizer pristine",
        "--head factored --stabilizer none", "--init normal --init-scale 0.1 --seed 7", "--weight-decay 0.1",
        "--activation tanh --targets uniform --nonzeros 0", "--activation sigmoid --nonzeros 5",
        "--head windowed --window 3 --absorb-limit 10 --deflate-below 0.5 --probes 2 --panel-rank 2 --radix 2"}) {
    SCOPED_TRACE(options);
    const auto outcome = run("verify --steps 8 --lambda 0.05 --tolerance 1e-4 --json " + options + tiny);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(Json::parse(outcome.out)["steps"], 8);
  }
}

TEST(Cli, VerifySaysTheSameInWords) {
  const auto outcome = run("verify --head factored --steps 5" + tiny);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* word : {"factored (f32)", "D = 50", "d = 6", "m = 4", "5 steps", "relative difference", "loss"}) {
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << " is not in\n" << outcome.out;
  }
}

TEST(Cli, VerifyExitsWithOneWhenTheToleranceIsExceeded) {
  const auto outcome = run("verify --steps 20 --tolerance 1e-30" + tiny);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("1e-30"), std::string::npos) << outcome.err;
  EXPECT_EQ(run("verify --steps 20 --tolerance 0.1" + tiny).code, 0);
}

TEST(Cli, VerifyTakesAToleranceOfZeroAtItsWord) { EXPECT_EQ(run("verify --steps 20 --tolerance 0" + tiny).code, 1); }

TEST(Cli, VerifyExitsWithOneWhenTheHeadStops) {
  const auto outcome = run(
      "verify --head factored --outputs 50 --dim 6 --batch 1 --lambda 1 --dtype f64 --stabilizer none --threads 1 --json");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(Json::parse(outcome.out)["error"].get<std::string>().find("singular"), std::string::npos) << outcome.out;
}

TEST(Cli, BenchStepPrintsOneLineOfJsonForEachHeadAndShape) {
  const auto outcome =
      run("bench step --heads dense,factored --outputs 60,80 --dim 6 --batch 4 --rounds 1 --threads 1 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::vector<Json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(Json::parse(line));
  ASSERT_EQ(objects.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    expect_keys(objects[i], {"head", "outputs", "dim", "batch", "nonzeros", "dtype", "threads", "device", "ms",
                             "gflops", "speedup_vs_dense", "gemm_gflops"});
    EXPECT_EQ(objects[i]["head"], i % 2 == 0 ? "dense" : "factored");
    EXPECT_EQ(objects[i]["outputs"], i < 2 ? 60 : 80);
    EXPECT_EQ(objects[i]["dim"], 6);
    EXPECT_EQ(objects[i]["batch"], 4);
    EXPECT_EQ(objects[i]["nonzeros"], 1);
    EXPECT_EQ(objects[i]["dtype"], "f32");
    EXPECT_EQ(objects[i]["threads"], 1);
    EXPECT_EQ(objects[i]["device"], "cpu");
    for (const char* key : {"ms", "gflops", "speedup_vs_dense", "gemm_gflops"})
      EXPECT_GT(objects[i][key].get<double>(), 0) << key;
  }
  EXPECT_EQ(objects[0]["speedup_vs_dense"], 1.0);
}

TEST(Cli, BenchStepTimesTheSoftmaxHeadsBesideTheOthers) {
  const auto outcome = run(
      "bench step --heads dense,softmax,hierarchical,sampled --loss taylor,squared --outputs 60 --dim 6 --batch 4 --rounds 1 "
      "--threads 1 --json --logits-mib 0 --classes 5 --samples 9 --warm-up 0.01 --turn 0.01");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) {
    const auto object = Json::parse(line);
    found.push_back(object["head"].get<std::string>() + " " + object["loss"].get<std::string>());
    EXPECT_EQ(object.contains("rel_W"), object["head"] == "dense") << "what is not verified claims nothing";
    EXPECT_GT(object["speedup_vs_dense"].get<double>(), 0);
  }
  EXPECT_EQ(found, (std::vector<std::string>{"dense taylor", "softmax cross-entropy", "hierarchical cross-entropy",
                                             "sampled cross-entropy", "dense squared"}));
}

TEST(Cli, VerifyRemovesTheRowsFileItMadeAndLeavesOneThatExistsAlone) {
  const auto path = (std::filesystem::temp_directory_path() / fmt::format("widehead_rows_{}", getpid())).string();
  std::filesystem::remove(path);
  const auto arguments = "verify --head windowed --steps 5 --tolerance 1e-4 --rows-file " + path + tiny;
  EXPECT_EQ(run(arguments).code, 0);
  EXPECT_FALSE(std::filesystem::exists(path));
  std::ofstream(path) << "precious";
  const auto refused = run(arguments);
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.err.find(path), std::string::npos) << refused.err;
  EXPECT_EQ(std::filesystem::file_size(path), 8U);
  std::filesystem::remove(path);
}

TEST(Cli, BenchStepTimesTheUpkeepToo) {
  const auto outcome = run(
      "bench step --heads factored --outputs 60 --dim 6 --batch 4 --rounds 1 --threads 1 --json --upkeep-lambdas 0.2 --upkeep-steps 40 "
      "--stabilizer svd --sigma-low 0.5 --sigma-high 2 --n-check 5");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::string first, second;
  std::getline(lines, first);
  std::getline(lines, second);
  EXPECT_TRUE(Json::parse(first)["speedup_vs_dense"].is_null()) << "dense was not asked for";
  const auto upkeep = Json::parse(second);
  expect_keys(upkeep, {"stabilizer", "lambda", "steps", "fixes_per_step", "upkeep_share", "ms"});
  EXPECT_EQ(upkeep["stabilizer"], "svd");
  EXPECT_GT(upkeep["fixes_per_step"].get<double>(), 0);
}

TEST(Cli, InfoPrintsWhatItRunsOn) {
  const auto outcome = run("info --threads 1 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto object = Json::parse(outcome.out);
  expect_keys(object, {"version", "device", "cores", "sgemm", "blas", "kernels", "warning", "gemm"});
  EXPECT_EQ(object["version"], WIDEHEAD_EXPECTED_VERSION);
  EXPECT_GE(object["cores"].get<int>(), 1);
  ASSERT_EQ(object["gemm"].size(), 2U);
  for (const auto& rate : object["gemm"]) EXPECT_GT(rate["gflops"].get<double>(), 0);
  EXPECT_NE(run("info --threads 1").out.find("GEMM f32"), std::string::npos);
}

TEST(Cli, HelpAndVersionAreNotErrors) {
  EXPECT_EQ(run("--help").code, 0);
  EXPECT_EQ(run("verify --help").code, 0);
  const auto version = run("--version");
  EXPECT_EQ(version.code, 0);
  EXPECT_NE(version.out.find(WIDEHEAD_EXPECTED_VERSION), std::string::npos);
}

TEST(Cli, WrongUsageExitsWithTwoAndNamesTheValue) {
  struct Case {
    std::string arguments, text;
  };
  for (const auto& [arguments, text] :
       std::vector<Case>{{"", "subcommand"},
                         {"frobnicate", "frobnicate"},
                         {"verify --frobnicate 3", "--frobnicate"},
                         {"verify --head densest", "densest"},
                         {"verify --head softmax", "softmax"},
                         {"bench step --heads sampled --samples 0", "0"},
                         {"bench step --heads hierarchical --weight-decay 0.1", "weight_decay"},
                         {"verify --outputs 0", "0"},
                         {"verify --outputs many", "many"},
                         {"verify --dim 70000", "70000"},
                         {"verify --batch -1", "-1"},
                         {"verify --steps 0", "0"},
                         {"verify --lambda -0.5", "-0.5"},
                         {"verify --dtype f16", "f16"},
                         {"verify --inverse newton", "newton"},
                         {"verify --stabilizer magic", "magic"},
                         {"verify --threads -1", "-1"},
                         {"verify --window -5", "-5"},
                         {"verify --radix 1", "1"},
                         {"verify --head factored --sigma-low 3 --steps 1", "[3, 100]"},
                         {"verify --head reference --dtype f32 --steps 1", "reference"},
                         {"verify --head reference --dtype f64 --weight-decay 0.1 --steps 1", "0.1"},
                         {"bench", "subcommand"},
                         {"bench step --heads densest", "densest"},
                         {"bench step --rounds 0", "0"},
                         {"info --threads x", "x"}}) {
    SCOPED_TRACE(arguments);
    const auto outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find(text), std::string::npos) << "\"" << text << "\" is not in\n" << outcome.err;
  }
}

}  // namespace
}  // namespace widehead::test
