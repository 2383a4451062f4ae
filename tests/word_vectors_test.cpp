#include "widehead/model/word_vectors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>

#include "compare.h"
#include "dice.h"
#include "errors.h"
#include "python.h"
#include "scratch_folder.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

using Words = std::vector<std::string>;
constexpr auto text = WordVectorFormat::text;
constexpr auto binary = WordVectorFormat::binary;

/// The floats 1, −2, 0.1 and 2⁻¹⁴⁹, as the formats know them.
Matrix<float> four_values() {
  Matrix<float> vectors(2, 2);
  vectors(0, 0) = 1, vectors(1, 0) = -2, vectors(0, 1) = 0.1F, vectors(1, 1) = std::numeric_limits<float>::denorm_min();
  return vectors;
}
const std::string one_and_minus_two("\0\0\x80\x3f\0\0\0\xc0", 8), tenth_and_least("\xcd\xcc\xcc\x3d\x01\0\0\0", 8);

std::string write(const ScratchFolder& folder, WordVectorFormat format, const Words& words, ConstView<float> vectors) {
  WordVectorWriter writer(folder.path("vectors"), format, vectors.cols, vectors.rows);
  writer.write(words, vectors);
  writer.finish();
  return folder.path("vectors");
}

TEST(WordVectors, AreWrittenByteForByte) {
  const ScratchFolder folder;
  const Words words{"the", "new york\tcity"};
  Padded<float> vectors{four_values()};
  write(folder, text, words, vectors);
  EXPECT_EQ(folder.content("vectors"), "2 2\nthe 1 -2\nnew_york_city 0.1 1e-45\n");
  write(folder, binary, words, vectors);
  EXPECT_EQ(folder.content("vectors"), "2 2\nthe " + one_and_minus_two + "\nnew_york_city " + tenth_and_least + "\n");
}

TEST(WordVectors, ReplaceAllWhiteSpace) { EXPECT_EQ(written_word(" a\tb\nc\rd\ve\ff "), "_a_b_c_d_e_f_"); }

TEST(WordVectors, ReadBackBitByBitInBlocksOfAnySize) {
  for (const auto format : {text, binary}) {
    const ScratchFolder folder;
    Dice dice(1);
    auto vectors = dice.matrix<float>(7, 53);
    for (Size i = 0; i < vectors.size(); ++i) {
      vectors.data()[i] = std::ldexp(vectors.data()[i], static_cast<int>(dice.between(-140, 120)));
    }
    Words words;
    for (int i = 0; i < 53; ++i) words.push_back("word" + std::to_string(i * i) + (i % 3 == 0 ? "é" : ""));
    const auto path = folder.path("vectors");
    {
      WordVectorWriter writer(path, format, 53, 7);
      writer.write(std::span(words).subspan(0, 20), vectors.view().columns(0, 20));
      writer.write({}, vectors.view().columns(0, 0));
      writer.write(std::span(words).subspan(20), vectors.view().columns(20, 33));
      writer.finish();
    }
    for (const Size block : {1, 10, 53, 100}) {
      WordVectorReader reader(path, format);
      EXPECT_EQ(reader.words(), 53);
      EXPECT_EQ(reader.dim(), 7);
      Words read;
      Padded<float> out(7, block);
      for (Size first = 0; first < 53;) {
        const Size count = reader.read(read, out.view());
        ASSERT_EQ(count, std::min(block, 53 - first));
        EXPECT_TRUE(is_identical<float>(out.view().columns(0, count), vectors.view().columns(first, count)));
        first += count;
      }
      EXPECT_EQ(reader.read(read, out.view()), 0);
      EXPECT_EQ(read, words);
      EXPECT_TRUE(out.rim_is_intact());
    }
    const auto some = read_word_vectors(path, format, 5);
    EXPECT_EQ(some.words, Words(words.begin(), words.begin() + 5));
    EXPECT_TRUE(is_identical<float>(some.vectors, vectors.view().columns(0, 5)));
    EXPECT_EQ(read_word_vectors(path, format).words, words);
    expect_throw<std::invalid_argument>([&] { read_word_vectors(path, format, -1); }, {"limit = -1"});
    expect_throw<std::invalid_argument>([&] { WordVectorReader(path, format).read(words, Matrix<float>(6, 1)); },
                                        {"vectors with d = 6, but " + path + " has 7"});
  }
}

TEST(WordVectors, AreReadAsOthersWriteThem) {
  const ScratchFolder folder;
  const auto from_text = read_word_vectors(folder.file("t", "2 2\r\nthe 1.000000 -2e0 \r\nof\t0.1  1e-60\r\n\n"), text);
  EXPECT_EQ(from_text.words, (Words{"the", "of"}));
  EXPECT_EQ(from_text.vectors(1, 0), -2);
  EXPECT_EQ(from_text.vectors(0, 1), 0.1F);
  EXPECT_EQ(from_text.vectors(1, 1), 0) << "too small for a float";
  // gensim writes no newline between words, and a vector may begin with the bytes of one
  const auto from_binary = read_word_vectors(
      folder.file("b", "2 2\nthe " + one_and_minus_two + "of \n\n\n\n" + one_and_minus_two.substr(0, 4)), binary);
  EXPECT_EQ(from_binary.words, (Words{"the", "of"}));
  EXPECT_EQ(from_binary.vectors(1, 0), -2);
  EXPECT_EQ(from_binary.vectors(1, 1), 1);
  EXPECT_TRUE(read_word_vectors(folder.file("none", "0 3\n"), text).words.empty());
  EXPECT_TRUE(read_word_vectors(folder.file("none", "0 3\n"), binary).words.empty());
}

TEST(WordVectors, OfTextNameTheLineThatIsWrong) {
  const ScratchFolder folder;
  const auto refuses = [&](const std::string& content, const std::string& message) {
    const auto path = folder.file("vectors", content);
    expect_throw<FileError>([&] { read_word_vectors(path, text); }, {path + message});
  };
  refuses("", ":1: found \"\", expected \"WORDS DIM\"");
  refuses("the 1 2\n", ":1: found \"the 1 2\", expected \"WORDS DIM\"");
  refuses("2 2 2\n", ":1: found \"2 2 2\", expected \"WORDS DIM\"");
  refuses("2 0\n", ":1: found \"2 0\", expected \"WORDS DIM\"");
  refuses("-2 2\n", ":1: found \"-2 2\", expected \"WORDS DIM\"");
  refuses(std::string(200, '7'), ":1: found \"" + std::string(40, '7') + "…\", expected \"WORDS DIM\"");
  refuses("99999999999 2\na 1 2\n",
          ":1: found 99999999999 words of 2 values, for which a file of 20 bytes is too small");
  refuses("2 9999999999999999\n", ":1: found 2 words of 9999999999999999 values, for which");
  refuses("2 2\na 1 2\n", ":2: found the end of the file, expected word 2 of 2");
  refuses("2 2\na 1 2\n \nb 1 2\n", ":3: found an empty line, expected a word and 2 numbers");
  refuses("2 2\na 1 2\nb 1\n", ":3: found 1 numbers, expected 2");
  refuses("2 2\na 1 2\nb 1 2 3\n", ":3: found \"3\" after 2 numbers, expected the end of the line");
  refuses("2 2\na 1 2\nb 1 2,0\n", ":3: found \"2,0\", expected a number");
  refuses("1 2\nb 1 nan\n", ":2: found \"nan\", expected a number");
  refuses("1 2\nb 1 inf\n", ":2: found \"inf\", expected a number");
  refuses("1 2\nb 1 1e39\n", ":2: found \"1e39\", expected a number");
  refuses("1 2\nb 1 1e999\n", ":2: found \"1e999\", expected a number");
  refuses("1 2\na 1 2\n\nb 3 4\n", ":4: found \"b 3 4\", expected the end after 1 words");
  refuses("0 2\na 1 2\n", ":2: found \"a 1 2\", expected the end after 0 words");
  expect_throw<std::system_error>([] { read_word_vectors("/nowhere/v", text); }, {"/nowhere/v: cannot be opened"});
  expect_throw<std::system_error>([] { read_word_vectors("/", text); }, {"/: cannot be read"});
}

TEST(WordVectors, OfBinaryNameTheWordThatIsWrong) {
  const ScratchFolder folder;
  const auto refuses = [&](const std::string& content, const std::string& message) {
    const auto path = folder.file("vectors", content);
    expect_throw<FileError>([&] { read_word_vectors(path, binary); }, {path + message});
  };
  const std::string a = "a " + one_and_minus_two + "\n";
  refuses("x\x01\n", ":1: found \"x?\", expected \"WORDS DIM\"");
  refuses("2 4611686018427387904\n", ":1: found 2 words of 4611686018427387904 values, for which");  // 2⁶² · 4 = 0
  refuses("3 2\n" + a, ":1: found 3 words of 2 values, for which a file of 15 bytes is too small");
  refuses("2 2\n" + a + std::string(9, '\n'), ": word 2: found the end of the file, expected a word");
  refuses("2 2\n" + a + "bcdefghij", ": word 2: found the end of the file, expected a space after a word");
  refuses("2 2\n" + a + "bcd 56789", ": word 2: found 5 bytes of the vector of \"bcd\", expected 8");
  refuses("1 2\n 12345678", ": word 1: found a space, expected a word");
  refuses("1 2\n" + std::string(70000, 'x'), ": word 1: found no space in 65536 bytes, expected a word");
  refuses("1 2\nbb " + std::string("\0\0\0\0\0\0\xc0\x7f", 8),
          ": word 1: found a value that is not finite in the vector of \"bb\"");
  refuses("1 2\n" + a + "\nx", ": word 2: found more data, expected the end after 1 words");
}

TEST(WordVectors, RefuseToBeWrittenSoThatTheyCouldNotBeRead) {
  const ScratchFolder folder;
  const auto path = folder.path("vectors");
  const auto refuses = [&](const Words& words, const Matrix<float>& vectors, const std::string& message) {
    WordVectorWriter writer(path, text, 2, 2);
    expect_throw<std::invalid_argument>([&] { writer.write(words, vectors); }, {path + message});
  };
  auto vectors = four_values();
  refuses({"new york", "new_york"}, vectors,
          ": word 1, \"new_york\", is written as \"new_york\", which was there before");
  refuses({"new_york", "new\nyork"}, vectors,
          ": word 1, \"new\nyork\", is written as \"new_york\", which was there before");
  refuses({"a", ""}, vectors, ": word 1 is empty");
  refuses({"a"}, vectors, ": vectors of 2 x 2 for 1 words, but d = 2");
  refuses({"a", "b"}, Matrix<float>(3, 2), ": vectors of 3 x 2 for 2 words, but d = 2");
  refuses({"a", "b", "c"}, Matrix<float>(2, 3), ": 3 words after 0, but the file has 2");
  vectors(1, 1) = -INFINITY;
  refuses({"a", "b"}, vectors, ": the vector of word 1, \"b\", is not finite");
  {
    WordVectorWriter writer(path, binary, 2, 2);
    writer.write(Words{"a"}, Matrix<float>(2, 1));
    expect_throw<std::invalid_argument>([&] { writer.write(Words{"a"}, Matrix<float>(2, 1)); }, {"word 1, \"a\""});
  }
  {
    WordVectorWriter writer(path, binary, 2, 2);
    writer.write(Words{"a"}, Matrix<float>(2, 1));
    expect_throw<std::invalid_argument>([&] { writer.finish(); },
                                        {path + ": 1 words were written, but the file has 2"});
  }
  expect_throw<std::invalid_argument>([&] { WordVectorWriter(path, text, 2, 0); }, {path + ": 2 words of 0 values"});
  expect_throw<std::invalid_argument>([&] { WordVectorWriter(path, text, -1, 2); }, {path + ": -1 words of 2 values"});
  EXPECT_EQ(folder.files(), 0) << "nothing is left of them";
}

TEST(WordVectors, AreReadByGensim) {
  if (!python_has("gensim")) GTEST_SKIP() << "python3 with gensim is not installed";
  for (const auto format : {text, binary}) {
    const ScratchFolder folder;
    const auto path = write(folder, format, {"the", "new york"}, four_values());
    EXPECT_EQ(python("from gensim.models import KeyedVectors as K; k = K.load_word2vec_format('" + path + "', binary=" +
                     (format == binary ? "True" : "False") + "); print(k.index_to_key, k.vectors.tolist())"),
              "['the', 'new_york'] [[1.0, -2.0], [0.10000000149011612, 1.401298464324817e-45]]\n");
  }
}

TEST(WordVectors, AreReadByPlainPython) {
  if (!python_has("numpy")) GTEST_SKIP() << "python3 with numpy is not installed";
  const ScratchFolder folder;
  const Words words{"the", "new york"};
  const std::string expected = "['the', 'new_york'] [[1.0, -2.0], [0.10000000149011612, 1.401298464324817e-45]]\n";
  const auto as_text = write(folder, text, words, four_values());
  EXPECT_EQ(python("import numpy as n; l = [x.split(' ') for x in open('" + as_text +
                   "').read().splitlines()][1:]; "
                   "print([x[0] for x in l], n.array([x[1:] for x in l], dtype=n.float32).tolist())"),
            expected);
  const auto as_binary = write(folder, binary, words, four_values());
  EXPECT_EQ(python("import numpy as n; f = open('" + as_binary +
                   "', 'rb'); c, d = map(int, f.readline().split())\n"
                   "def word(): return b''.join(iter(lambda: f.read(1), b' ')).lstrip().decode()\n"
                   "p = [(word(), n.frombuffer(f.read(4 * d), dtype='<f4').tolist()) for _ in range(c)]\n"
                   "print([x[0] for x in p], [x[1] for x in p])"),
            expected);
}

}  // namespace
}  // namespace widehead::test
