#include <fmt/format.h>

#include <system_error>
#include <vector>

#include "compress.h"
#include "dice.h"
#include "files.h"
#include "widehead/data/line_reader.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

using namespace std::string_literals;

std::vector<std::string> read_all(LineReader reader) {
  std::vector<std::string> lines;
  while (const auto line = reader.next()) {
    lines.emplace_back(*line);
    EXPECT_EQ(reader.line(), static_cast<Size>(lines.size()));
  }
  EXPECT_EQ(reader.next(), std::nullopt) << "the end stays the end";
  EXPECT_EQ(reader.line(), static_cast<Size>(lines.size()));
  EXPECT_EQ(reader.bytes_read(), reader.bytes_total());
  return lines;
}

std::vector<std::string> read_all(std::string_view text) { return read_all(lines_of(text)); }

using Lines = std::vector<std::string>;

TEST(LineReaderTest, SplitsAtLineEndsOfBothKinds) {
  EXPECT_EQ(read_all("a\nbc\n"), (Lines{"a", "bc"}));
  EXPECT_EQ(read_all("a\r\nbc\r\n"), (Lines{"a", "bc"}));
  EXPECT_EQ(read_all("a\rb\r\r\n"), (Lines{"a\rb\r"})) << "only the one before the line end belongs to it";
  EXPECT_EQ(read_all("\n\n \n"), (Lines{"", "", " "}));
}

TEST(LineReaderTest, LastLineMayLackItsEnd) {
  EXPECT_EQ(read_all("a\nbc"), (Lines{"a", "bc"}));
  EXPECT_EQ(read_all("a\nbc\r"), (Lines{"a", "bc"}));
  EXPECT_EQ(read_all("a"), (Lines{"a"}));
}

TEST(LineReaderTest, EmptyFileHasNoLinesInAnyContainer) {
  EXPECT_EQ(read_all(""), Lines{});
  EXPECT_EQ(read_all(gzip("")), Lines{});
  EXPECT_EQ(read_all(xz("")), Lines{});
  EXPECT_EQ(read_all(zstd("")), Lines{});
}

TEST(LineReaderTest, ByteOrderMarkIsSkippedAtTheBeginningOnly) {
  EXPECT_EQ(read_all("\xEF\xBB\xBF"
                     "a\n\xEF\xBB\xBF\n"),
            (Lines{"a", "\xEF\xBB\xBF"}));
}

/// Lines of many lengths, some longer than the first buffer, and what they are.
std::string long_text(std::uint64_t seed, Lines& lines) {
  Dice dice(seed);
  std::string text;
  for (int i = 0; i < 60; ++i) {
    std::string line(static_cast<std::size_t>(dice.between(0, i % 20 == 19 ? 700'000 : 9'000)), 'x');
    auto state = static_cast<std::uint64_t>(dice.between(0, 1 << 30));
    for (auto& c : line) {
      state = 6364136223846793005U * state + 1442695040888963407U;
      c = static_cast<char>(' ' + (state >> 33) % 95);
    }
    text += line + (i % 2 == 0 ? "\n" : "\r\n");
    lines.push_back(std::move(line));
  }
  return text;
}

TEST(LineReaderTest, LongTextsComeOutTheSameFromEveryContainer) {
  for (const auto seed : seeds(1)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Lines lines;
    const auto text = long_text(seed, lines);
    EXPECT_EQ(read_all(text), lines);
    EXPECT_EQ(read_all(gzip(text)), lines);
    EXPECT_EQ(read_all(xz(text)), lines);
    EXPECT_EQ(read_all(zstd(text)), lines);
  }
}

TEST(LineReaderTest, MembersAndFramesOneAfterTheOtherAreOneText) {
  const Lines lines{"one", "two", "three"};
  EXPECT_EQ(read_all(gzip("one\ntw") + gzip("") + gzip("o\nthree")), lines);
  EXPECT_EQ(read_all(xz("one\ntw") + xz("") + xz("o\nthree") + "\0\0\0\0"s), lines) << "xz pads with zeros";
  EXPECT_EQ(read_all(zstd("one\ntw") + zstd("") + zstd("o\nthree")), lines);
  const auto skippable = "\x5A\x2A\x4D\x18\x03\0\0\0abc"s;
  EXPECT_EQ(read_all(skippable + zstd("one\ntwo\n") + skippable + zstd("three\n")), lines);
}

TEST(LineReaderTest, MagicBytesCutShortAreText) {
  EXPECT_EQ(read_all("\x1F"), (Lines{"\x1F"}));
  EXPECT_EQ(read_all("\xFD"
                     "7zXY\n"),
            (Lines{"\xFD"
                   "7zXY"}));
  EXPECT_EQ(read_all("\x28\xB5\x2F\n"), (Lines{"\x28\xB5\x2F"}));
  EXPECT_EQ(read_all("\x4F\x2A\x4D\x18"), (Lines{"\x4F\x2A\x4D\x18"})) << "not one of the skippable frames";
}

// ── damage ──────────────────────────────────────────────────────────────────────────────────────

void expect_damage(std::string_view bytes, const std::string& text) {
  expect_error<FileError>([&] { read_all(bytes); }, text);
}

TEST(LineReaderTest, TruncationIsNamedWithTheLineReached) {
  for (const auto& [name, data] : {std::pair{"gzip"s, gzip("one\ntwo\nthree\n")},
                                   {"xz", xz("one\ntwo\nthree\n")},
                                   {"zstd", zstd("one\ntwo\nthree\n")}}) {
    SCOPED_TRACE(name);
    // The last byte belongs to a checksum: the text is all there, and the line after it is what was reached.
    expect_damage(data.substr(0, data.size() - 1),
                  "f:4: the " + name + " data stop before their end: the file is truncated");
    expect_damage(data.substr(0, 8), "f:1: the " + name + " data stop before their end: the file is truncated");
  }
}

TEST(LineReaderTest, EveryTruncationOfEveryContainerIsAnError) {
  for (const auto& data : {gzip("one\ntwo\n"), xz("one\ntwo\n"), zstd("one\ntwo\n")}) {
    for (std::size_t size = 6; size < data.size(); ++size) {
      EXPECT_THROW(read_all(data.substr(0, size)), FileError) << size << " bytes";
    }
  }
}

TEST(LineReaderTest, DamageIsNamedWithTheDecodersReason) {
  const auto flip = [](std::string data, std::size_t from_end) {
    data[data.size() - from_end] = static_cast<char>(data[data.size() - from_end] ^ 1);
    return data;
  };
  expect_damage(flip(gzip("one\ntwo\n"), 8), "f:3: the gzip data are damaged (incorrect data check)");
  expect_damage(flip(xz("one\ntwo\n"), 1), "f:3: the xz data are damaged (checksum or structure)");
  expect_damage(flip(xz("one\ntwo\n"), 12), "f:3: the xz data are damaged (checksum or structure)");
  expect_damage(flip(zstd("one\ntwo\n"), 1), "f:1: the zstd data are damaged (Restored data doesn't match checksum)");
  expect_damage(gzip("one\n") + "more", "f:2: the gzip data are damaged (incorrect header check)");
  expect_damage(xz("one\n") + "more than twelve bytes", "f:2: the xz data are damaged (checksum or structure)");
  expect_damage(zstd("one\n") + "more", "f:2: the zstd data are damaged (Unknown frame descriptor)");
}

/// xz data whose block header `change` has been at, with its checksum right again. It lies behind the 12 bytes of the
/// stream's header: its size in words less one, flags, …, LZMA2's id and size of properties (0x21, 1), the code of the
/// dictionary's size, …, a CRC-32.
template <class Change>
std::string with_other_block_header(const Change& change) {
  std::string data = xz("one\n");
  const std::size_t block = 12, size = 4 * (static_cast<std::size_t>(data[block]) + 1), crc_place = block + size - 4;
  change(data, block);
  const auto crc = lzma_crc32(reinterpret_cast<const std::uint8_t*>(data.data()) + block, size - 4, 0);
  for (std::size_t i = 0; i < 4; ++i) data[crc_place + i] = static_cast<char>(crc >> 8 * i);
  return data;
}

TEST(LineReaderTest, XzDataFromTheFutureAreRefused) {
  const auto data = with_other_block_header([](auto& bytes, std::size_t block) { bytes[block + 1] |= 0x3C; });
  expect_damage(data, "f:1: the xz data are damaged (unsupported options)");
}

TEST(LineReaderTest, FewBytesCannotAskForGigabytes) {
  const auto data = with_other_block_header([](auto& bytes, std::size_t block) {
    bytes[bytes.find("\x21\x01", block) + 2] = 40;  // a dictionary of 4 GiB − 1
  });
  expect_damage(data, "f:1: the xz data are damaged (they ask for more than 256 MiB of memory)");
  // A zstd frame with a window of 2³⁷ bytes.
  expect_damage("\x28\xB5\x2F\xFD\x00\xD8\x01\x00\x00\x00\x00"s,
                "f:1: the zstd data are damaged (Frame requires too much memory for decoding)");
}

TEST(LineReaderTest, NulIsNoText) {
  expect_damage("one\ntw\0o\n"s, "f:2: byte 3 of the line is NUL: this is not text");
  expect_damage(gzip("one\ntw\0o\n"s), "f:2: byte 3 of the line is NUL: this is not text");
}

TEST(LineReaderTest, LinesUpToTheLimitAreRead) {
  const auto count = [](std::string_view text, std::size_t limit) {
    LineReader reader("f", as_bytes(text), limit);
    Size lines = 0;
    while (reader.next()) ++lines;
    return lines;
  };
  EXPECT_EQ(count("1234\n1234\r\n1234", 4), 3);
  EXPECT_EQ(count("1234\r", 4), 1);
  expect_error<FileError>([&] { count("1234\n12345\n", 4); }, "f:2: the line is longer than 4 bytes");
  expect_error<FileError>([&] { count("1234\n12345", 4); }, "f:2: the line is longer than 4 bytes");
  const std::string endless(3'000'000, 'x');
  expect_error<FileError>([&] { count(gzip("1\n" + endless), 1'000'000); },
                          "f:2: the line is longer than 1000000 bytes");
  EXPECT_EQ(count(endless, 3'000'000), 1);
  EXPECT_EQ(count(endless, SIZE_MAX), 1);
}

// ── files ───────────────────────────────────────────────────────────────────────────────────────

class LineReaderFileTest : public FolderTest {};

TEST_F(LineReaderFileTest, FilesAreRecognisedByTheirBytesAndNotByTheirNames) {
  Lines lines;
  const auto text = long_text(3, lines);
  EXPECT_EQ(read_all(LineReader(write("a.gz", text))), lines);
  EXPECT_EQ(read_all(LineReader(write("b.txt", gzip(text)))), lines);
  EXPECT_EQ(read_all(LineReader(write("c", xz(text)))), lines);
  EXPECT_EQ(read_all(LineReader(write("d.xz", zstd(text)))), lines);
}

TEST_F(LineReaderFileTest, ReadingAheadGivesTheSameLines) {
  Lines lines;
  const auto text = long_text(5, lines);
  for (const auto& data : {text, gzip(text), xz(text), zstd(text), zstd(text) + zstd(""), gzip("")}) {
    const auto file = write("a", data);
    EXPECT_TRUE(read_all(LineReader::ahead(file)) == read_all(LineReader(file)));
  }
}

TEST_F(LineReaderFileTest, ReadingAheadGivesTheSameErrors) {
  Lines lines;
  const auto text = long_text(6, lines);
  const auto data = gzip(text);
  const auto file = write("a", data.substr(0, data.size() - 3));
  expect_error<FileError>([&] { read_all(LineReader::ahead(file)); },
                          file + ":61: the gzip data stop before their end: the file is truncated");
  auto reader = LineReader::ahead(file);
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(reader.next(), lines[i]);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(reader.next(), FileError) << "the end stays the end";
  expect_error<std::system_error>([&] { LineReader::ahead(path("none")); },
                                  path("none") + ": cannot open the file: No such file or directory");
  expect_error<std::system_error>([&] { read_all(LineReader::ahead(path(""))); },
                                  path("") + ": cannot read the file: Is a directory");
}

TEST_F(LineReaderFileTest, ReadingAheadCanBeGivenUpAtAnyLine) {
  Lines lines;
  const auto file = write("a", long_text(7, lines));
  for (const std::size_t taken : {0u, 1u, 30u}) {
    auto reader = LineReader::ahead(file);
    for (std::size_t i = 0; i < taken; ++i) EXPECT_EQ(reader.next(), lines[i]);
  }
}

TEST_F(LineReaderFileTest, ProgressIsThatOfTheCompressedFile) {
  Lines lines;
  const auto data = gzip(long_text(4, lines));
  LineReader reader(write("a", data));
  EXPECT_EQ(reader.bytes_read(), 0);
  EXPECT_EQ(reader.bytes_total(), static_cast<std::int64_t>(data.size()));
  reader.next();
  EXPECT_GT(reader.bytes_read(), 0);
  EXPECT_LT(reader.bytes_read(), reader.bytes_total());
}

TEST_F(LineReaderFileTest, ErrorsNameThePath) {
  const auto damaged = write("a", gzip("one\n").substr(0, 12));
  expect_error<FileError>([&] { read_all(LineReader(damaged)); },
                          damaged + ":1: the gzip data stop before their end: the file is truncated");
  expect_error<std::system_error>([&] { LineReader reader(path("none")); },
                                  path("none") + ": cannot open the file: No such file or directory");
  expect_error<std::system_error>([&] { read_all(LineReader(path(""))); },
                                  path("") + ": cannot read the file: Is a directory");
}

TEST(LineReaderTest, FailNamesTheFileAloneBeforeTheFirstLine) {
  auto reader = lines_of("a");
  expect_error<FileError>([&] { reader.fail("bad"); }, "f: bad");
  reader.next();
  expect_error<FileError>([&] { reader.fail("bad"); }, "f:1: bad");
}

}  // namespace
}  // namespace widehead::test
