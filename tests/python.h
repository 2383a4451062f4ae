#pragma once
/// Python as a second opinion on our files, where it is installed: $WIDEHEAD_TEST_PYTHON, else python3.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace widehead::test {

inline std::string python_program() {
  const char* wish = std::getenv("WIDEHEAD_TEST_PYTHON");
  return wish != nullptr ? wish : "python3";
}

inline bool python_has(const std::string& module) {
  return std::system((python_program() + " -c 'import " + module + "' >/dev/null 2>&1").c_str()) == 0;
}

/// What a script prints. It holds no double quotes.
inline std::string python(const std::string& script) {
  std::string output;
  FILE* pipe = popen((python_program() + " -c \"" + script + "\" 2>&1").c_str(), "r");
  if (pipe == nullptr) return "cannot be run";
  for (int letter = fgetc(pipe); letter != EOF; letter = fgetc(pipe)) output += static_cast<char>(letter);
  pclose(pipe);
  return output;
}

}  // namespace widehead::test
