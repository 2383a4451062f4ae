/// Every file that the fuzzers start from or once stumbled over goes through the same functions here, so that all
/// compilers and presets see it.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "../fuzz/targets.h"

namespace widehead::test {
namespace {

class ReplayTest : public testing::TestWithParam<fuzz::Target> {};

TEST_P(ReplayTest, NoFileOfTheCorpusBreaksAReader) {
  const auto folder = std::filesystem::path(WIDEHEAD_FUZZ_DIR) / "corpus" / GetParam().name;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
    EXPECT_NO_THROW(GetParam().run(std::as_bytes(std::span(bytes)))) << entry.path();
    ++count;
  }
  EXPECT_GT(count, 0);
}

INSTANTIATE_TEST_SUITE_P(Readers, ReplayTest, testing::ValuesIn(fuzz::targets),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace widehead::test
