#include <xxhash.h>

#include <cstring>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "files.h"
#include "widehead/data/token_file.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

/// A token file byte by byte, good until a test spoils it.
struct Parts {
  std::string magic = "WHTOKENS";
  std::uint32_t version = 1, vocabulary = 4;
  std::uint64_t ids = 5, words = 3;
  std::vector<Index> body = {3, 0, -1, 2, -1};

  std::string bytes() const {
    std::string result = magic;
    const auto put = [&](const auto& value) { result.append(reinterpret_cast<const char*>(&value), sizeof value); };
    put(version);
    put(vocabulary);
    put(ids);
    put(words);
    put(std::uint64_t{XXH3_64bits(result.data(), result.size())});
    for (const auto id : body) put(id);
    return result;
  }
};

class TokenFileTest : public FolderTest {
 protected:
  /// From the disk and from memory alike.
  void expect_refused(const std::string& bytes, const std::string& what) {
    const auto file = write("tokens", bytes);
    expect_error<FileError>([&] { TokenFile tokens(file); }, file + ": " + what);
    std::vector<Index> aligned(bytes.size() / sizeof(Index) + 1);
    std::memcpy(aligned.data(), bytes.data(), bytes.size());
    expect_error<FileError>([&] { TokenFile tokens("m", std::as_bytes(std::span(aligned)).first(bytes.size())); },
                            "m: " + what);
  }
};

TEST_F(TokenFileTest, ShowsWhatIsInTheFile) {
  const Parts parts;
  const TokenFile file(write("tokens", parts.bytes()));
  const auto copy = file;
  EXPECT_EQ(std::vector(copy.tokens().begin(), copy.tokens().end()), parts.body);
  EXPECT_EQ(file.words(), 3);
  EXPECT_EQ(file.vocabulary_size(), 4);
  EXPECT_NO_THROW(file.verify());
}

TEST_F(TokenFileTest, CopiesOutliveTheFirst) {
  auto first = std::make_unique<TokenFile>(write("tokens", Parts().bytes()));
  const TokenFile copy = *first;
  first.reset();
  EXPECT_EQ(copy.tokens()[3], 2);
}

TEST_F(TokenFileTest, RefusesOtherFiles) {
  expect_refused("", "not a token file: it does not begin with WHTOKENS");
  expect_refused("WHTOKEN", "not a token file: it does not begin with WHTOKENS");
  expect_refused("some text that is long enough to be a header, but is none",
                 "not a token file: it does not begin with WHTOKENS");
  Parts newer;
  newer.version = 2;
  expect_refused(newer.bytes(), "token file of version 2, but this program knows version 1");
}

TEST_F(TokenFileTest, RefusesTruncatedAndDamagedFiles) {
  const auto good = Parts().bytes();
  expect_refused(good.substr(0, 39), "39 bytes, but the header of a token file has 40: truncated");
  expect_refused(good.substr(0, 40), "0 bytes of ids, but the header tells of 5 ids of 4 bytes: truncated");
  expect_refused(good.substr(0, 59), "19 bytes of ids, but the header tells of 5 ids of 4 bytes: truncated");
  expect_refused(good + "1234", "24 bytes of ids, but the header tells of 5 ids of 4 bytes: something follows them");
  expect_refused(good + "1", "21 bytes of ids, but the header tells of 5 ids of 4 bytes: something follows them");
  for (std::size_t i = 12; i < 40; ++i) {
    auto damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    expect_refused(damaged, "the header's checksum is wrong: damaged");
  }
}

TEST_F(TokenFileTest, RefusesHeadersThatMakeNoSense) {
  Parts huge;
  huge.ids = (std::uint64_t{1} << 62) + 5;  // 4 ids wrap around to 5
  expect_refused(huge.bytes(),
                 "20 bytes of ids, but the header tells of 4611686018427387909 ids of 4 bytes: truncated");
  Parts words;
  words.words = 6;
  expect_refused(words.bytes(), "the header makes no sense: 6 words among 5 ids, 4 words in the vocabulary");
  for (const std::uint32_t vocabulary : {0U, 1U << 31}) {
    Parts parts;
    parts.vocabulary = vocabulary;
    expect_refused(parts.bytes(), "the header makes no sense: 3 words among 5 ids, " + std::to_string(vocabulary) +
                                      " words in the vocabulary");
  }
}

TEST_F(TokenFileTest, VerifyFindsIdsOutOfRange) {
  const auto refused = [&](const Parts& parts, const std::string& what) {
    const auto file = write("tokens", parts.bytes());
    expect_error<FileError>([&] { TokenFile(file).verify(); }, file + ": " + what);
  };
  Parts parts;
  parts.body[1] = 4;
  refused(parts, "id 1 is 4, but the vocabulary has 4 words");
  parts.body[1] = -2;
  refused(parts, "id 1 is -2, but the vocabulary has 4 words");
  parts.body[1] = -1;
  refused(parts, "2 words, but the header tells of 3");
}

TEST_F(TokenFileTest, SystemErrorsNameThePath) {
  expect_error<std::system_error>([&] { TokenFile file(path("none")); },
                                  path("none") + ": cannot open the token file: No such file or directory");
  expect_error<std::system_error>([&] { TokenFile file(path("")); },
                                  path("") + ": cannot map the token file: No such device");
}

TEST_F(TokenFileTest, MemoryMustBeAligned) {
  alignas(4) const char bytes[8] = {};
  expect_error<std::invalid_argument>([&] { TokenFile file("m", std::as_bytes(std::span(bytes)).subspan(1)); },
                                      "token file: bytes in memory must be aligned to 4");
}

}  // namespace
}  // namespace widehead::test
