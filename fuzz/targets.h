#pragma once
/// What is done with hostile bytes: each function feeds them to a reader and checks what must hold for any input.
/// libFuzzer calls these (fuzzer.cpp), and so does a test, with every file under corpus/NAME.

#include <array>
#include <span>
#include <string_view>

namespace widehead::fuzz {

using Input = std::span<const std::byte>;

void lines(Input bytes);       ///< as a file in any container
void containers(Input bytes);  ///< as a text that is compressed, cut in two or truncated: 5 bytes say how
void words(Input bytes);       ///< as a line for the tokenizer
void vocabulary(Input bytes);  ///< as vocabulary.txt and as items.txt
void tokens(Input bytes);      ///< as a token file, also with its checksum made right
void labels(Input bytes);
void items(Input bytes);  ///< the first byte chooses the options

struct Target {
  std::string_view name;
  void (*run)(Input);
};

inline constexpr std::array<Target, 7> targets = {{{"lines", lines},
                                                   {"containers", containers},
                                                   {"words", words},
                                                   {"vocabulary", vocabulary},
                                                   {"tokens", tokens},
                                                   {"labels", labels},
                                                   {"items", items}}};

}  // namespace widehead::fuzz
