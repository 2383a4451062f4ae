/// The `widehead` program on trained models: what it writes for others, and what it tells of them.

#include <cmath>
#include <cstring>

#include "python.h"
#include "trained_models.h"
#include "widehead/model/safetensors.h"
#include "widehead/model/word_vectors.h"

namespace widehead::test {
namespace {

/// Exports and returns the path.
std::string exported(const std::string& model, const std::string& format, const std::string& vectors) {
  const auto path = in(fmt::format("{}.{}.{}", model, format, vectors));
  const auto out =
      text_of(fmt::format("export {} --format {} --vectors {} --out {}", in(model), format, vectors, path));
  EXPECT_EQ(out, "");
  return path;
}

TEST(ExportCommand, WritesTheSameVectorsInEveryFormat) {
  for (const std::string model : {"lm", "lm64", "labels", "items"}) {
    for (const std::string vectors : {"input", "output"}) {
      if (model == "labels" && vectors == "input") continue;
      SCOPED_TRACE(model + " " + vectors);
      const auto text = read_word_vectors(exported(model, "word2vec", vectors), WordVectorFormat::text);
      const auto binary = read_word_vectors(exported(model, "word2vec-binary", vectors), WordVectorFormat::binary);
      const auto info = json_of("info " + in(model));
      ASSERT_EQ(text.vectors.cols(), info["outputs"].get<Size>());
      EXPECT_EQ(text.words, binary.words);
      const auto bytes = static_cast<std::size_t>(text.vectors.cols() * text.vectors.rows()) * sizeof(float);
      EXPECT_EQ(std::memcmp(text.vectors.data(), binary.vectors.data(), bytes), 0);
      const auto npy = read_bytes(exported(model, "npy", vectors));
      ASSERT_EQ(npy.size(), 128 + bytes);
      EXPECT_EQ(std::memcmp(text.vectors.data(), npy.data() + 128, bytes), 0);
      Matrix<float> loaded;
      const auto metadata = load_state(exported(model, "safetensors", vectors),
                                       [&](StateVisitor& visitor) { visitor.matrix("vectors", loaded); });
      ASSERT_EQ(loaded.cols(), text.vectors.cols());
      EXPECT_EQ(std::memcmp(text.vectors.data(), loaded.data(), bytes), 0);
      EXPECT_EQ(metadata.at("vectors"), vectors);
    }
  }
}

TEST(ExportCommand, VectorsAreThoseThatNeighboursAreFoundBy) {
  const auto vectors = read_word_vectors(exported("items", "word2vec", "output"), WordVectorFormat::text);
  const auto found = std::ranges::find(vectors.words, "a3") - vectors.words.begin();
  const auto cosine = [&](Size i, Size j) {
    double dot = 0, a = 0, b = 0;
    for (Size k = 0; k < vectors.vectors.rows(); ++k) {
      const double x = vectors.vectors(k, i), y = vectors.vectors(k, j);
      dot += x * y;
      a += x * x;
      b += y * y;
    }
    return dot / std::sqrt(a * b);
  };
  const auto nearest = json_of("neighbours " + in("items") + " a3 --top-k 1")["neighbours"][0];
  const auto other = std::ranges::find(vectors.words, nearest["item"].get<std::string>()) - vectors.words.begin();
  EXPECT_NEAR(nearest["cosine"].get<double>(), cosine(found, other), 1e-5);
  for (Size j = 0; j < vectors.vectors.cols(); ++j) {
    if (j == found) continue;
    EXPECT_LE(cosine(found, j), nearest["cosine"].get<double>() + 1e-5);
  }
}

TEST(ExportCommand, NumPyReadsIt) {
  if (!python_has("numpy")) GTEST_SKIP() << "NumPy is not installed";
  EXPECT_EQ(
      python("import numpy; a = numpy.load('" + exported("labels", "npy", "output") + "'); print(a.shape, a.dtype)"),
      "(7, 16) float32\n");
}

TEST(ExportCommand, SafetensorsReadsIt) {
  if (!python_has("safetensors.numpy")) GTEST_SKIP() << "safetensors is not installed";
  EXPECT_EQ(python("from safetensors.numpy import load_file; a = load_file('" +
                   exported("labels", "safetensors", "output") + "'); print(sorted(a), a['vectors'].shape)"),
            "['vectors'] (7, 16)\n");
}

TEST(ExportCommand, GensimReadsIt) {
  if (!python_has("gensim")) GTEST_SKIP() << "gensim is not installed";
  for (const std::string format : {"word2vec", "word2vec-binary"}) {
    EXPECT_EQ(python("from gensim.models import KeyedVectors; v = KeyedVectors.load_word2vec_format('" +
                     exported("items", format, "output") + "', binary=" + (format == "word2vec" ? "False" : "True") +
                     "); print(len(v), v.most_similar('a3')[0][0][0])"),
              "24 a\n");
  }
}

TEST(ExportCommand, RefusesWhatItCannotWrite) {
  expect_refused("export " + in("labels") + " --vectors input --out " + in("x"), 2, "input vectors");
  expect_refused("export " + in("labels") + " --out " + in("no/such/folder"), 1, "no/such/folder");
  expect_refused("export " + in("labels") + " --format hdf5 --out x", 2, "hdf5");
  expect_refused("export " + in("labels"), 2, "--out");
  expect_refused("export " + in("text") + " --out x", 1, "there is no model");
  EXPECT_FALSE(std::filesystem::exists(in("x")));
}

TEST(ModelInfo, TellsWhatTheModelIs) {
  const auto info = json_of("info " + in("lm"));
  EXPECT_EQ(info["job"], "lm");
  EXPECT_EQ(info["dim"], 24);
  EXPECT_EQ(info["head"], "windowed");
  EXPECT_EQ(info["loss"], "spherical");
  EXPECT_EQ(info["complete"], true);
  EXPECT_EQ(info["share"], 1.0);
  EXPECT_EQ(info["features"].get<int>(), info["outputs"].get<int>() + 1);
  EXPECT_GT(info["steps"].get<int>(), 1000);
  EXPECT_EQ(info["options"]["min-count"], 2);
  EXPECT_EQ(info["options"]["hidden"], Json::array({32}));
  EXPECT_FALSE(info["options"].contains("head")) << "it has its default";
  expect_keys(info["held_out"], {"loss", "perplexity", "top1"});
  bool has_vocabulary = false;
  for (const auto& file : info["files"]) has_vocabulary |= file["name"] == "vocabulary.txt" && file["bytes"] > 0;
  EXPECT_TRUE(has_vocabulary);
}

TEST(ModelInfo, SaysTheSameInWords) {
  const auto text = text_of("info " + in("items"));
  for (const char* words : {"items", "24 items", "windowed", "weighted", "100.0%", "--dim", "items.txt"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << " is not in\n" << text;
  }
  EXPECT_EQ(text.find("held out"), std::string::npos) << "nothing was";
}

TEST(ModelInfo, RefusesWhatIsNoModel) {
  expect_refused("info " + in("nowhere"), 1, in("nowhere"));
  expect_refused("info " + in("text"), 1, "there is no model");
}

TEST(TrainCommand, PrintsResultsToStdoutAndProgressToStderr) {
  const auto outcome =
      run(fmt::format("train labels --train {} --out {} --dim 4 --epochs 2", in("labels.txt"), in("again")));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(lines_of_text(outcome.out).size(), 2U) << outcome.out;
  EXPECT_NE(outcome.out.find("the model is in"), std::string::npos);
  EXPECT_NE(outcome.err.find("140 examples"), std::string::npos);
}

}  // namespace
}  // namespace widehead::test
