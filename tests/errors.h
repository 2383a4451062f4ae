#pragma once
/// Provoking errors: the type must be exact, and the text must name what is wrong.

#include <gtest/gtest.h>

#include <string>
#include <typeinfo>
#include <vector>

namespace widehead::test {

/// Expects `action` to throw an Error (no other, no derived one) whose text holds all the words.
template <class Error, class Action>
void expect_throw(const Action& action, const std::vector<std::string>& words) {
  try {
    action();
  } catch (const std::exception& error) {
    EXPECT_EQ(typeid(error), typeid(Error)) << error.what();
    for (const auto& word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
          << "the text is \"" << error.what() << "\", without \"" << word << "\"";
    }
    return;
  }
  std::string list;
  for (const auto& word : words) list += " \"" + word + "\"";
  ADD_FAILURE() << "nothing was thrown; expected a text with" << list;
}

}  // namespace widehead::test
