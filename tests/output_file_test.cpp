#include "widehead/data/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <system_error>

#include "errors.h"
#include "scratch_folder.h"

namespace widehead::test {
namespace {

TEST(OutputFile, AppearsWhenItIsCommitted) {
  const ScratchFolder folder;
  folder.file("out", "before");
  {
    OutputFile file(folder.path("out"));
    file.write("af");
    EXPECT_EQ(folder.content("out"), "before");
    EXPECT_EQ(folder.files(), 2);
    file.write("ter");
    file.commit();
    EXPECT_EQ(folder.content("out"), "after");
  }
  EXPECT_EQ(folder.content("out"), "after");
  EXPECT_EQ(folder.files(), 1);
}

TEST(OutputFile, LeavesNothingBehindUnlessCommitted) {
  const ScratchFolder folder;
  folder.file("out", "before");
  {
    OutputFile file(folder.path("out"));
    file.write(std::string(3 << 20, 'x'));
  }
  EXPECT_EQ(folder.content("out"), "before");
  EXPECT_EQ(folder.files(), 1);
}

TEST(OutputFile, TakesPiecesOfAnySize) {
  const ScratchFolder folder;
  std::string expected;
  OutputFile file(folder.path("out"));
  for (const std::size_t size : {std::size_t{0}, std::size_t{5}, (std::size_t{1} << 20) - 5, std::size_t{1},
                                 std::size_t{3} << 20, std::size_t{7}}) {
    const std::string piece(size, static_cast<char>('a' + expected.size() % 26));
    file.write(piece);
    expected += piece;
  }
  const std::array<float, 2> values{1, -2};
  file.write_values(std::span<const float>(values));
  expected += std::string("\0\0\x80\x3f\0\0\0\xc0", 8);
  file.commit();
  EXPECT_TRUE(folder.content("out") == expected);
}

TEST(OutputFile, LetsTwoWritersGoSideBySide) {
  const ScratchFolder folder;
  OutputFile first(folder.path("out")), second(folder.path("out"));
  first.write("first");
  second.write("second");
  second.commit();
  EXPECT_EQ(folder.content("out"), "second");
  first.commit();
  EXPECT_EQ(folder.content("out"), "first");
  EXPECT_EQ(folder.files(), 1);
}

TEST(OutputFile, HasThePermissionsOfAnyNewFile) {
  const ScratchFolder folder;
  OutputFile(folder.path("out")).commit();
  folder.file("plain", "");
  struct stat ours {};
  struct stat plain {};
  ASSERT_EQ(stat(folder.path("out").c_str(), &ours), 0);
  ASSERT_EQ(stat(folder.path("plain").c_str(), &plain), 0);
  EXPECT_EQ(ours.st_mode, plain.st_mode);
}

TEST(OutputFile, NamesThePathThatFails) {
  expect_throw<std::system_error>([] { OutputFile("/nowhere/out"); }, {"/nowhere/out: cannot create the file"});
  const ScratchFolder folder;
  std::filesystem::create_directory(folder.path("taken"));
  OutputFile file(folder.path("taken"));
  expect_throw<std::system_error>([&] { file.commit(); },
                                  {folder.path("taken") + ": cannot rename the file into place"});
}

}  // namespace
}  // namespace widehead::test
