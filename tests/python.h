#pragma once
/// Python as a second opinion on our files, where it is installed.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace widehead::test {

inline bool python_has(const std::string& module) {
  return std::system(("python3 -c 'import " + module + "' >/dev/null 2>&1").c_str()) == 0;
}

/// What a script prints. It holds no double quotes.
inline std::string python(const std::string& script) {
  std::string output;
  FILE* pipe = popen(("python3 -c \"" + script + "\" 2>&1").c_str(), "r");
  if (pipe == nullptr) return "cannot be run";
  for (int letter = fgetc(pipe); letter != EOF; letter = fgetc(pipe)) output += static_cast<char>(letter);
  pclose(pipe);
  return output;
}

}  // namespace widehead::test
