#pragma once
/// The `widehead` program from outside: what it prints, and what it exits with.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace widehead::test {

using Json = nlohmann::json;

struct Outcome {
  int code = -1;
  std::string out, err;
};

/// Runs a command of the shell.
inline Outcome run_command(const std::string& command) {
  const auto errors = std::filesystem::temp_directory_path() / fmt::format("widehead_cli_test_{}", getpid());
  Outcome outcome;
  FILE* pipe = popen(fmt::format("{{ {}\n}} 2>{}", command, errors.string()).c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen failed: " + command);
  char buffer[4096];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) outcome.out.append(buffer, count);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::stringstream text;
  text << std::ifstream(errors).rdbuf();
  outcome.err = text.str();
  std::filesystem::remove(errors);
  return outcome;
}

/// Runs the program.
inline Outcome run(const std::string& arguments) { return run_command(WIDEHEAD_PROGRAM " " + arguments); }

inline void expect_keys(const Json& object, const std::vector<std::string>& keys) {
  for (const auto& key : keys) EXPECT_TRUE(object.contains(key)) << key << " is not in " << object.dump();
}

inline std::vector<std::string> lines_of_text(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// One line "widehead: …" with this in it, nothing on stdout, and this code.
inline void expect_refused(const std::string& arguments, int code, const std::string& text) {
  SCOPED_TRACE(arguments);
  const auto outcome = run(arguments);
  EXPECT_EQ(outcome.code, code);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(lines_of_text(outcome.err).size(), 1U) << outcome.err;
  EXPECT_EQ(outcome.err.substr(0, 10), "widehead: ");
  EXPECT_NE(outcome.err.find(text), std::string::npos) << "\"" << text << "\" is not in\n" << outcome.err;
}

}  // namespace widehead::test
