#pragma once
/// Files for tests of readers: a folder that goes with the test, and errors by their whole text.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <typeinfo>

#include "widehead/data/line_reader.h"

namespace widehead::test {

/// Expects `action` to throw an Error (no other, no derived one) with exactly this text.
template <class Error, class Action>
void expect_error(const Action& action, const std::string& text) {
  try {
    action();
  } catch (const std::exception& error) {
    EXPECT_EQ(typeid(error), typeid(Error));
    EXPECT_EQ(error.what(), text);
    return;
  }
  ADD_FAILURE() << "nothing was thrown; expected: " << text;
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline LineReader lines_of(std::string_view text, const std::string& name = "f") { return {name, as_bytes(text)}; }

class FolderTest : public testing::Test {
 protected:
  FolderTest() {
    std::string name = testing::TempDir() + "widehead-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder for the test");
    folder_ = name;
  }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  std::string write(const std::string& name, std::string_view text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  static std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  /// Files in the folder: a temporary that was left behind would be one.
  std::size_t file_count() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace widehead::test
