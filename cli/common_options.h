#pragma once
/// Options that several subcommands share, written once.

#include <CLI/CLI.hpp>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "widehead/heads.h"
#include "widehead/synthetic.h"

namespace widehead::cli {

/// The name of an option's value.
template <class Enum>
std::string name_of(Enum value, std::span<const std::pair<std::string_view, Enum>> names) {
  for (const auto& [name, choice] : names) {
    if (choice == value) return std::string(name);
  }
  return "?";
}

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

/// --NAME WORD,WORD…: the same for a list.
template <class Enum>
CLI::Option* add_choices(CLI::App& command, const std::string& flag, std::vector<Enum>& values,
                         std::span<const std::pair<std::string_view, Enum>> names, const std::string& help) {
  std::map<std::string, Enum> choices;
  std::string list;
  for (const auto& [name, choice] : names) {
    choices.emplace(name, choice);
    list += (list.empty() ? "" : "|") + std::string(name);
  }
  return command
      .add_option_function<std::vector<std::string>>(
          flag,
          [&values, choices](const std::vector<std::string>& words) {
            values.clear();
            for (const auto& word : words) values.push_back(choices.at(word));
          },
          help)
      ->delimiter(',')
      ->check(CLI::IsMember(choices))
      ->type_name(list)
      ->default_str(name_of(values.front(), names));
}

/// --NAME X,X…, each within `range`.
template <class Number, class Range>
CLI::Option* add_list(CLI::App& command, const char* flag, std::vector<Number>& list, const char* help,
                      const Range& range) {
  return command.add_option(flag, list, help)->delimiter(',')->check(range)->capture_default_str();
}

enum class Precision { f32, f64 };
std::string_view name_of(Precision precision);

void add_precision(CLI::App& command, Precision& precision);
void add_threads(CLI::App& command, int& threads);
/// --device: the help says what is where.
void add_device(CLI::App& command, std::string& device, const std::string& help);
/// --device --tf32, of a layer.
void add_layer_device(CLI::App& command, std::string& device, bool& tf32);
/// --loss LIST --epsilon --scale --shift --unobserved --observed
void add_losses(CLI::App& command, std::vector<Loss>& losses);
/// --weight-decay --init-scale --seed
void add_layer_options(CLI::App& command, LayerOptions& options);
/// --window --absorb-limit --deflate-below --probes --panel-rank --radix --rows-file --rows
void add_windowed_options(CLI::App& command, WindowedOptions& options);
/// --inverse --refresh-every --stabilizer --sigma-low --sigma-high --n-check --iterations
void add_factored_options(CLI::App& command, FactoredOptions& options);
/// --logits-mib --classes --samples
void add_cross_entropy_options(CLI::App& command, HeadOptions& options);
void add_target_law(CLI::App& command, TargetLaw& law);

}  // namespace widehead::cli
