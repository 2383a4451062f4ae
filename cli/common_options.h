#pragma once
/// Options that several subcommands share, written once.

#include <CLI/CLI.hpp>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "widehead/heads.h"
#include "widehead/synthetic.h"

namespace widehead::cli {

/// --NAME WORD, where WORD is one of the names; the help lists them.
template <class Enum>
CLI::Option* add_choice(CLI::App& command, const std::string& flag, Enum& value,
                        std::span<const std::pair<std::string_view, Enum>> names, const std::string& help) {
  std::map<std::string, Enum> choices;
  std::string list, now;
  for (const auto& [name, choice] : names) {
    choices.emplace(name, choice);
    list += (list.empty() ? "" : "|") + std::string(name);
    if (choice == value) now = name;
  }
  return command
      .add_option_function<std::string>(
          flag, [&value, choices](const std::string& word) { value = choices.at(word); }, help)
      ->check(CLI::IsMember(choices))
      ->type_name(list)
      ->default_str(now);
}

enum class Precision { f32, f64 };
std::string_view name_of(Precision precision);

/// The name of an option's value.
template <class Enum>
std::string name_of(Enum value, std::span<const std::pair<std::string_view, Enum>> names) {
  for (const auto& [name, choice] : names) {
    if (choice == value) return std::string(name);
  }
  return "?";
}

void add_precision(CLI::App& command, Precision& precision);
void add_threads(CLI::App& command, int& threads);
/// --weight-decay --init --init-scale --seed
void add_layer_options(CLI::App& command, LayerOptions& options);
/// --window --absorb-limit --deflate-below --probes --panel-rank --radix --rows-file
void add_windowed_options(CLI::App& command, WindowedOptions& options);
/// --inverse --refresh-every --stabilizer --sigma-low --sigma-high --n-check --iterations
void add_factored_options(CLI::App& command, FactoredOptions& options);
/// --activation --targets
void add_data_options(CLI::App& command, SyntheticOptions& options);

}  // namespace widehead::cli
