#include <fmt/format.h>
#include <gtest/gtest.h>
#include <locale.h>
#include <wctype.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "dice.h"
#include "files.h"
#include "widehead/data/tokenizer.h"

namespace widehead::test {
namespace {

using Words = std::vector<std::string>;

Words split(std::string_view line, Tokenization tokenization = Tokenization::words, bool lowercase = true) {
  Tokenizer tokenizer(tokenization, lowercase);
  Words words;
  tokenizer.split(line, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

std::string utf8(unsigned c) {
  const auto tail = [&](unsigned shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
}

TEST(TokenizerTest, WordsAreRunsOfLettersAndDigits) {
  EXPECT_EQ(split("The cat, the 2nd one (of 3): don't re-use it!"),
            (Words{"the", "cat", "the", "2nd", "one", "of", "3", "don", "t", "re", "use", "it"}));
  EXPECT_EQ(split(""), Words{});
  EXPECT_EQ(split(" ... "), Words{});
  EXPECT_EQ(split("a"), Words{"a"});
}

TEST(TokenizerTest, WhitespaceKeepsTokensAsTheyAre) {
  EXPECT_EQ(split("The cat\t, <unk> don't\v\f\r“x”", Tokenization::whitespace, false),
            (Words{"The", "cat", ",", "<unk>", "don't", "“x”"}));
  EXPECT_EQ(split("The CAT", Tokenization::whitespace, true), (Words{"the", "cat"}));
}

TEST(TokenizerTest, CaseIsKeptWhenSoWanted) {
  EXPECT_EQ(split("The ÄRGER, the Cat and DOG", Tokenization::words, false),
            (Words{"The", "ÄRGER", "the", "Cat", "and", "DOG"}));
}

TEST(TokenizerTest, EveryAsciiByteSeparatesOrNotWhereverItStands) {
  for (int c = 1; c < 128; ++c) {
    const bool part = std::isalnum(c) != 0;
    const auto lower = static_cast<char>(std::tolower(c));
    for (std::size_t before = 0; before < 10; ++before) {  // in eights of bytes and in the rest after them
      const std::string left(before, 'x'), right(9 - before, 'y');
      const auto line = left + static_cast<char>(c) + right;
      Words expected;
      if (part) {
        expected = {left + lower + right};
      } else {
        if (!left.empty()) expected.push_back(left);
        if (!right.empty()) expected.push_back(right);
      }
      EXPECT_EQ(split(line), expected) << c;
    }
  }
}

TEST(TokenizerTest, LowerCaseAgreesWithTheSystemInTheBlocksThatAreKnown) {
  locale_t utf8_locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (utf8_locale == nullptr) GTEST_SKIP() << "no locale C.UTF-8";
  int changed = 0;
  for (unsigned c = 0x80; c < 0x800; ++c) {
    const bool known =
        (c >= 0xC0 && c <= 0x17F && c != 0x130) || (c >= 0x386 && c <= 0x3AB) || (c >= 0x400 && c <= 0x42F);
    const auto expected = known ? static_cast<unsigned>(towlower_l(c, utf8_locale)) : c;
    EXPECT_EQ(split(utf8(c), Tokenization::whitespace), Words{utf8(expected)}) << fmt::format("U+{:04X}", c);
    EXPECT_EQ(split(utf8(c), Tokenization::whitespace, false), Words{utf8(c)}) << fmt::format("U+{:04X}", c);
    changed += expected != c ? 1 : 0;
  }
  freelocale(utf8_locale);
  EXPECT_GT(changed, 150);
}

TEST(TokenizerTest, PunctuationBeyondAsciiSeparatesWords) {
  EXPECT_EQ(split("“Paris”–Roma…d’or «été» 3×4 №5 日本語"),
            (Words{"paris", "roma", "d", "or", "été", "3", "4", "№5", "日本語"}));
  for (unsigned c = 0x80; c < 0x3000; ++c) {
    const bool symbol = (c < 0xC0 && c != 0xAA && c != 0xB5 && c != 0xBA) || c == 0xD7 || c == 0xF7;
    const bool punctuation = c >= 0x2000 && c <= 0x206F && c != 0x200C && c != 0x200D;
    EXPECT_EQ(split("a" + utf8(c) + "b").size(), symbol || punctuation ? 2U : 1U) << fmt::format("U+{:04X}", c);
  }
}

TEST(TokenizerTest, EveryCharacterIsTakenAsItIsOrLowered) {
  for (unsigned c = 0x800; c <= 0x10FFFF; c += c < 0x11000 ? 1 : 97) {
    if (c >= 0xD800 && c < 0xE000) continue;
    EXPECT_EQ(split(utf8(c), Tokenization::whitespace), Words{utf8(c)}) << fmt::format("U+{:04X}", c);
  }
  EXPECT_EQ(split(utf8(0x10FFFF)), Words{utf8(0x10FFFF)});
}

TEST(TokenizerTest, InvalidUtf8IsNamedByItsFirstByte) {
  const auto refused = [](const std::string& bytes, std::size_t place, const char* byte) {
    for (const auto tokenization : {Tokenization::words, Tokenization::whitespace}) {
      expect_error<std::invalid_argument>([&] { split(bytes, tokenization); },
                                          fmt::format("byte {} of the line ({}) is not valid UTF-8", place, byte));
    }
  };
  refused("ab\x80", 3, "0x80");            // a continuation alone
  refused("\xC3", 1, "0xC3");              // cut off
  refused("abcdefgh\xC3(", 9, "0xC3");     // not continued
  refused("\xC1\xBF", 1, "0xC1");          // overlong
  refused("\xE0\x9F\xBF", 1, "0xE0");      // overlong
  refused("\xF0\x8F\xBF\xBF", 1, "0xF0");  // overlong
  refused("a\xED\xA0\x80", 2, "0xED");     // a surrogate
  refused("\xE2\x82", 1, "0xE2");          // cut off
  refused("\xE2\x82(", 1, "0xE2");         // not continued
  refused("\xF4\x90\x80\x80", 1, "0xF4");  // beyond U+10FFFF
  refused("\xF5\x80\x80\x80", 1, "0xF5");  // beyond U+10FFFF
  refused("\xF0\x9F\x98", 1, "0xF0");      // cut off
  refused("\xF0\x9F(\x80", 1, "0xF0");     // not continued
  refused("\xF0\x9F\x98(", 1, "0xF0");     // not continued
}

TEST(TokenizerTest, ALineShorterThanTheOneBeforeLeavesNothingBehind) {
  Tokenizer tokenizer;
  Words words;
  for (const auto* line : {"a much longer line", "b", ""}) {
    tokenizer.split(line, [&](std::string_view word) { words.emplace_back(word); });
  }
  EXPECT_EQ(words, (Words{"a", "much", "longer", "line", "b"}));
}

TEST(TokenizerTest, TokenizationsHaveNames) {
  for (const auto tokenization : {Tokenization::words, Tokenization::whitespace}) {
    EXPECT_EQ(tokenization_from_name(name_of(tokenization)), tokenization);
  }
  EXPECT_EQ(name_of(Tokenization::words), "words");
  expect_error<std::invalid_argument>([] { tokenization_from_name("Words"); },
                                      "tokenization: \"Words\", but there are \"whitespace\" and \"words\"");
}

}  // namespace
}  // namespace widehead::test
