#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>
#include <system_error>

#include "compress.h"
#include "dice.h"
#include "files.h"
#include "widehead/data/labels_file.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

SparseDataset parse(std::string_view text) {
  auto lines = lines_of(text);
  auto data = read_labels(lines);
  data.validate();
  return data;
}

using Offsets = std::vector<std::int64_t>;
using Indices = std::vector<Index>;
using Values = std::vector<float>;

TEST(LabelsFileTest, LinesAreExamples) {
  const auto data = parse("3 10 5\n1,4 0:0.5 9:-2\n0 3:1e-3\n2 7:1 8:2\n");
  EXPECT_EQ(data.examples, 3);
  EXPECT_EQ(data.inputs, 10);
  EXPECT_EQ(data.outputs, 5);
  EXPECT_EQ(data.targets.offsets, (Offsets{0, 2, 3, 4}));
  EXPECT_EQ(data.targets.indices, (Indices{1, 4, 0, 2}));
  EXPECT_EQ(data.targets.values, (Values{1, 1, 1, 1}));
  EXPECT_EQ(data.features.offsets, (Offsets{0, 2, 3, 5}));
  EXPECT_EQ(data.features.indices, (Indices{0, 9, 3, 7, 8}));
  EXPECT_EQ(data.features.values, (Values{0.5F, -2, 1e-3F, 1, 2}));
}

TEST(LabelsFileTest, LabelsOrFeaturesOrBothMayBeAbsent) {
  const auto data = parse("6 10 5\n 0:1\n3:1 4:1\n2\n\n4 \n\t6:1");
  EXPECT_EQ(data.targets.offsets, (Offsets{0, 0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(data.targets.indices, (Indices{2, 4}));
  EXPECT_EQ(data.features.offsets, (Offsets{0, 1, 3, 3, 3, 3, 4}));
  EXPECT_EQ(data.features.indices, (Indices{0, 3, 4, 6}));
}

TEST(LabelsFileTest, LineEndsBlanksAndOrderDoNotMatter) {
  const auto data = parse("2  10\t5 \r\n4,1,2  9:1\t0:2 5:3 \r\n0 1:1\r\n\r\n \r\n");
  EXPECT_EQ(data.targets.indices, (Indices{1, 2, 4, 0}));
  EXPECT_EQ(data.features.indices, (Indices{0, 5, 9, 1}));
  EXPECT_EQ(data.features.values, (Values{2, 3, 1, 1}));
}

TEST(LabelsFileTest, ValuesTooSmallForAFloatAreZero) {
  EXPECT_EQ(parse("1 2 1\n0 1:1e-60\n").features.values, (Values{0}));
}

TEST(LabelsFileTest, AgreesWithRandomDataWrittenOut) {
  for (const auto seed : seeds(5)) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Dice dice(seed);
    const Size N = dice.between(1, 50), F = dice.between(1, 200), L = dice.between(1, 90);
    SparseDataset truth{N, F, L, {}, {}};
    std::string text = fmt::format("{} {} {}\n", N, F, L);
    for (Size i = 0; i < N; ++i) {
      std::set<Index> labels, features;
      for (Size k = dice.between(0, 6); k > 0; --k) labels.insert(static_cast<Index>(dice.between(0, L - 1)));
      for (Size k = dice.between(0, 20); k > 0; --k) features.insert(static_cast<Index>(dice.between(0, F - 1)));
      text += fmt::format("{}", fmt::join(labels, ","));
      for (const auto label : labels) {
        truth.targets.indices.push_back(label);
        truth.targets.values.push_back(1);
      }
      for (const auto feature : features) {
        truth.features.indices.push_back(feature);
        truth.features.values.push_back(static_cast<float>(dice.normal()));
        text += fmt::format(" {}:{}", feature, truth.features.values.back());
      }
      text += "\n";
      truth.targets.end_row();
      truth.features.end_row();
    }
    const auto data = parse(gzip(text));
    EXPECT_EQ(data.targets.offsets, truth.targets.offsets);
    EXPECT_EQ(data.targets.indices, truth.targets.indices);
    EXPECT_EQ(data.targets.values, truth.targets.values);
    EXPECT_EQ(data.features.offsets, truth.features.offsets);
    EXPECT_EQ(data.features.indices, truth.features.indices);
    EXPECT_EQ(data.features.values, truth.features.values);
  }
}

void expect_refused(std::string_view text, const std::string& message) {
  expect_error<FileError>([&] { parse(text); }, message);
}

TEST(LabelsFileTest, RefusesBadHeaders) {
  expect_refused("", "f: the file is empty, expected a header: examples features labels");
  const auto number = [](const char* header, const char* name, const char* found) {
    expect_refused(header,
                   fmt::format("f:1: the header's number of {} is \"{}\", expected 1 … 2147483647", name, found));
  };
  number("\n", "examples", "");
  number("x 2 3\n", "examples", "x");
  number("0 2 3\n", "examples", "0");
  number("1 -2 3\n", "features", "-2");
  number("1 2147483648 3\n", "features", "2147483648");
  number("1 2 99999999999999999999\n", "labels", "99999999999999999999");
  number("1 2\n", "labels", "");
  number("1,4 0:0.5\n", "examples", "1,4");
  expect_refused("1 2 3 4\n", "f:1: \"4\" in the header, expected no more than: examples features labels");
}

TEST(LabelsFileTest, AHeaderThatPromisesMuchCostsNothing) {
  expect_refused("2147483647 2147483647 2147483647\n0 1:1\n",
                 "f:2: the file ends after 1 examples, but the header tells of 2147483647");
}

TEST(LabelsFileTest, RefusesMoreOrFewerLinesThanTheHeaderTellsOf) {
  expect_refused("2 2 2\n0 1:1\n", "f:2: the file ends after 1 examples, but the header tells of 2");
  expect_refused("1 2 2\n", "f:1: the file ends after 0 examples, but the header tells of 1");
  expect_refused("1 2 2\n0 1:1\n\n0 1:1\n", "f:4: more examples than the 1 of the header");
}

TEST(LabelsFileTest, RefusesBadLabels) {
  const auto label = [](const char* line, const char* found) {
    expect_refused(fmt::format("1 9 3\n{}\n", line), fmt::format("f:2: the label \"{}\" is not in 0 … 2", found));
  };
  label("3 1:1", "3");
  label("-1 1:1", "-1");
  label("0,x 1:1", "x");
  label("0,,1 1:1", "");
  label("0, 1:1", "");
  label("0.5 1:1", "0.5");
  label("4294967296 1:1", "4294967296");
  expect_refused("1 9 3\n1,0,1 1:1\n", "f:2: the label 1 is there twice");
}

TEST(LabelsFileTest, RefusesBadFeatures) {
  expect_refused("1 9 3\n0 1\n", "f:2: found \"1\", expected feature:value");
  const auto feature = [](const char* line, const char* found) {
    expect_refused(fmt::format("1 9 3\n{}\n", line), fmt::format("f:2: the feature \"{}\" is not in 0 … 8", found));
  };
  feature("0 9:1", "9");
  feature("0 -1:1", "-1");
  feature("0 :1", "");
  feature("x:1", "x");
  feature("0 4294967297:1", "4294967297");
  const auto value = [](const char* field) {
    expect_refused(fmt::format("1 9 3\n0 {}\n", field),
                   fmt::format("f:2: the value of \"{}\" is not a finite number", field));
  };
  for (const auto* field : {"1:", "1:x", "1:nan", "1:inf", "1:-inf", "1:1e39", "1:1e999", "1:1:1", "1:1x", "1:+1"}) {
    value(field);
  }
  expect_refused("1 9 3\n0 5:1 2:1 5:1\n", "f:2: the feature 5 is there twice");
}

class LabelsFileOnDiskTest : public FolderTest {};

TEST_F(LabelsFileOnDiskTest, IsReadByPath) {
  EXPECT_EQ(read_labels(write("a", xz("1 2 3\n0 1:1\n"))).outputs, 3);
  expect_error<std::system_error>([&] { read_labels(path("none")); },
                                  path("none") + ": cannot open the file: No such file or directory");
}

// ── the dataset itself ──────────────────────────────────────────────────────────────────────────

TEST(SparseDatasetTest, RowsShowTheirEntries) {
  const auto data = parse("2 10 5\n1,4 0:0.5 9:2\n3\n");
  EXPECT_EQ(data.features.rows(), 2);
  EXPECT_EQ(data.features.nonzeros(), 2);
  EXPECT_EQ(data.features.row_indices(0)[1], 9);
  EXPECT_EQ(data.features.row_values(0)[1], 2);
  EXPECT_TRUE(data.features.row_indices(1).empty());
  EXPECT_EQ(data.targets.row_indices(1)[0], 3);
}

template <class Spoil>
void expect_invalid(const std::string& message, const Spoil& spoil) {
  auto data = parse("2 10 5\n1,4 0:0.5 9:2\n3\n");
  spoil(data);
  expect_error<std::invalid_argument>([&] { data.validate(); }, "dataset: " + message);
}

TEST(SparseDatasetTest, RefusesWhatDoesNotFit) {
  expect_invalid("examples = 0, but it must be 1 … 9223372036854775807", [](auto& data) { data.examples = 0; });
  expect_invalid("inputs = 0, but it must be 1 … 2147483647", [](auto& data) { data.inputs = 0; });
  expect_invalid("outputs = 2147483648, but it must be 1 … 2147483647",
                 [](auto& data) { data.outputs = Size{1} << 31; });
  expect_invalid("features: 2 rows, but there must be 3", [](auto& data) { data.examples = 3; });
  expect_invalid("features: offsets must begin with 0", [](auto& data) { data.features.offsets.clear(); });
  expect_invalid("targets: offsets must begin with 0", [](auto& data) { data.targets.offsets[0] = 1; });
  expect_invalid("targets: offsets end at 3, but there are 3 indices and 2 values",
                 [](auto& data) { data.targets.values.pop_back(); });
  expect_invalid("targets: offsets end at 4, but there are 3 indices and 3 values",
                 [](auto& data) { data.targets.offsets[2] = 4; });
  expect_invalid("targets: offsets[2] = 3 is less than offsets[1] = 4",
                 [](auto& data) { data.targets.offsets[1] = 4; });
  expect_invalid("features: row 0 has index 10, but it must be 0 … 9",
                 [](auto& data) { data.features.indices[1] = 10; });
  expect_invalid("features: row 0 has index -1, but it must be 0 … 9",
                 [](auto& data) { data.features.indices[0] = -1; });
  expect_invalid("targets: row 0 has index 4 after 4, but they must ascend",
                 [](auto& data) { data.targets.indices[0] = 4; });
  expect_invalid("features: row 0 has value nan at index 9",
                 [](auto& data) { data.features.values[1] = std::numeric_limits<float>::quiet_NaN(); });
  expect_invalid("features: row 0 has value inf at index 0",
                 [](auto& data) { data.features.values[0] = std::numeric_limits<float>::infinity(); });
}

TEST(ExampleReaderTest, GivesTheFeaturesOfExamplesSomeAtATime) {
  auto lines = lines_of("1,4 0:0.5 9:-2\n3:1e-3\n\n 8:2 7:1\n2\n");
  ExampleReader reader(lines, 10, 5);
  const auto first = reader.read(2);
  EXPECT_EQ(first.offsets, (Offsets{0, 2, 3}));
  EXPECT_EQ(first.indices, (Indices{0, 9, 3}));
  EXPECT_EQ(first.values, (Values{0.5F, -2, 1e-3F}));
  const auto second = reader.read(10);
  EXPECT_EQ(second.offsets, (Offsets{0, 0, 2, 2}));
  EXPECT_EQ(second.indices, (Indices{7, 8}));
  EXPECT_EQ(reader.read(10).rows(), 0);
}

TEST(ExampleReaderTest, TakesAHeaderThatFitsAndDoesNotCountExamples) {
  auto lines = lines_of("7 10 5\n1 0:1\n");
  EXPECT_EQ(ExampleReader(lines, 10, 5).read(10).indices, (Indices{0}));
  auto other = lines_of("7 10 6\n1 0:1\n");
  expect_error<FileError>([&] { ExampleReader(other, 10, 5).read(10); },
                          "f:1: 10 features and 6 labels, expected 10 and 5");
  auto late = lines_of("0:1\n7 10 5\n");
  expect_error<FileError>([&] { ExampleReader(late, 10, 5).read(10); }, "f:2: the label \"7\" is not in 0 … 4");
}

TEST(ExampleReaderTest, RefusesWhatTheModelDoesNotHave) {
  auto feature = lines_of("0:1\n10:1\n");
  expect_error<FileError>([&] { ExampleReader(feature, 10, 5).read(10); }, "f:2: the feature \"10\" is not in 0 … 9");
  auto label = lines_of("5 0:1\n");
  expect_error<FileError>([&] { ExampleReader(label, 10, 5).read(10); }, "f:1: the label \"5\" is not in 0 … 4");
}

}  // namespace
}  // namespace widehead::test
