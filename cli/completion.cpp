/// widehead completion bash | zsh | fish: completions for a shell, from what the parser knows.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "help.h"

namespace widehead::cli {
namespace {

/// Every command with its path: "", "train", "train lm", …
struct Command {
  std::string path;
  const CLI::App* app;
};

/// The words that lead to a subcommand.
std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : fmt::format("{} {}", path, name);
}

void collect(const CLI::App& app, const std::string& path, std::vector<Command>& commands) {
  commands.push_back({path, &app});
  for (const auto* each : subcommands_of(app)) {
    collect(*each, joined(path, each->get_name()), commands);
  }
}

std::vector<Command> commands_of(const CLI::App& app) {
  std::vector<Command> commands;
  collect(app, "", commands);
  return commands;
}

std::vector<std::string> names_of_subcommands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* each : subcommands_of(app)) names.push_back(each->get_name());
  return names;
}

template <class Visit>
void for_each_option(const CLI::App& app, const Visit& visit) {
  for (const auto& group : option_groups(app)) {
    for (const auto& option : group.options) visit(option);
  }
}

/// In single quotes for a shell.
std::string in_quotes(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// ── bash ─────────────────────────────────────────────────────────────────────────────────────────

std::string bash_values(const OptionText& option) {
  if (!option.choices.empty()) return fmt::format("_widehead_words '{}'", fmt::join(option.choices, " "));
  if (option.is_file) return "_widehead_files";
  if (option.is_folder) return "_widehead_folders";
  return ":";  // a number or a text: nothing to offer
}

std::string bash(const CLI::App& app) {
  std::string walk, values, rest;
  for (const auto& [path, command] : commands_of(app)) {
    std::string options = "--help", arguments = ":";
    if (const auto names = names_of_subcommands(*command); !names.empty()) {
      arguments = fmt::format("_widehead_words '{}'", fmt::join(names, " "));
    }
    for_each_option(*command, [&, &path = path](const OptionText& option) {
      if (option.is_positional) {
        arguments = option.is_folder ? "_widehead_files" : bash_values(option);  // a file may follow the folder
        return;
      }
      options += " " + option.name;
      if (!option.is_flag()) {
        values += fmt::format("    '{} {}') {}; return ;;\n", path, option.name, bash_values(option));
      }
    });
    rest += fmt::format("    '{}') if [[ $word == -* ]]; then _widehead_words '{}'; else {}; fi ;;\n", path, options,
                        arguments);
    for (const auto& name : names_of_subcommands(*command)) {
      walk += fmt::format("      '{0} {1}') path='{2}' ;;\n", path, name, joined(path, name));
    }
  }
  return fmt::format(R"(# bash completion of widehead; for all shells to come:
#   widehead completion bash > ~/.local/share/bash-completion/completions/widehead
_widehead_words() {{ COMPREPLY=($(compgen -W "$1" -- "$word")); }}
_widehead_files() {{ compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); }}
_widehead_folders() {{ compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$word"); }}
_widehead() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} path= i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$path ${{COMP_WORDS[i]}}" in
{}    esac
  done
  case "$path ${{COMP_WORDS[COMP_CWORD - 1]}}" in
{}  esac
  case "$path" in
{}  esac
}}
complete -F _widehead widehead
)",
                     walk, values, rest);
}

// ── zsh ──────────────────────────────────────────────────────────────────────────────────────────

/// Within '[…]' and ':…:' of an _arguments specification.
std::string zsh_escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

std::string zsh_values(const OptionText& option) {
  if (!option.choices.empty()) return fmt::format("({})", fmt::join(option.choices, " "));
  if (option.is_file) return "_files";
  if (option.is_folder) return "_files -/";
  return "";
}

std::string zsh_function(const std::string& path) {
  std::string name = "_widehead";
  if (!path.empty()) name += "_" + path;
  for (auto& c : name) c = c == ' ' ? '_' : c;
  return name;
}

std::string zsh(const CLI::App& app) {
  std::string text = "#compdef widehead\n# zsh completion of widehead: into a folder of $fpath, as _widehead\n";
  for (const auto& [path, command] : commands_of(app)) {
    std::string specs = " '--help[print help and exit]'";
    for_each_option(*command, [&](const OptionText& option) {
      const auto name = zsh_escaped(option.name);
      if (option.is_positional) {
        specs += " " +
                 in_quotes(fmt::format("{}:{}:{}", option.metavar.ends_with("…") ? "*" : "", name, zsh_values(option)));
      } else if (option.is_flag()) {
        specs += " " + in_quotes(fmt::format("{}[{}]", name, zsh_escaped(option.help)));
      } else {
        specs += " " + in_quotes(fmt::format("{}[{}]:{}:{}", name, zsh_escaped(option.help),
                                             zsh_escaped(option.metavar), zsh_values(option)));
      }
    });
    const auto names = names_of_subcommands(*command);
    text += zsh_function(path) + "() {\n";
    if (names.empty()) {
      text += fmt::format("  _arguments{}\n}}\n", specs);
      continue;
    }
    std::string cases;
    for (const auto& name : names) {
      cases += fmt::format("      {}) {} ;;\n", name, zsh_function(joined(path, name)));
    }
    text += fmt::format(
        "  local state line\n  _arguments -C{} '1:subcommand:({})' '*::argument:->arguments'\n"
        "  [[ $state == arguments ]] && case $line[1] in\n{}  esac\n}}\n",
        specs, fmt::join(names, " "), cases);
  }
  return text + "_widehead \"$@\"\n";
}

// ── fish ─────────────────────────────────────────────────────────────────────────────────────────

std::string fish(const CLI::App& app) {
  std::string text =
      "# fish completion of widehead: into ~/.config/fish/completions/widehead.fish\ncomplete -c widehead -f\n";
  for (const auto& [path, command] : commands_of(app)) {
    std::string seen;  // the subcommands before, and none after
    for (std::size_t begin = 0; begin < path.size();) {
      const auto end = std::min(path.find(' ', begin), path.size());
      seen += fmt::format("{}__fish_seen_subcommand_from {}", seen.empty() ? "" : "; and ",
                          path.substr(begin, end - begin));
      begin = end + 1;
    }
    const auto names = names_of_subcommands(*command);
    if (!names.empty()) {
      seen += fmt::format("{}not __fish_seen_subcommand_from {}", seen.empty() ? "" : "; and ", fmt::join(names, " "));
    }
    const auto line = [&](const std::string& arguments, const std::string& help) {
      text += fmt::format("complete -c widehead -n {} {} -d {}\n", in_quotes(seen), arguments, in_quotes(help));
    };
    for (const auto* each : subcommands_of(*command)) line("-a " + each->get_name(), each->get_description());
    for_each_option(*command, [&](const OptionText& option) {
      if (option.is_positional) {
        if (option.is_file || option.is_folder) line("-F", option.help);
        return;
      }
      auto arguments = "-l " + option.name.substr(2);
      if (!option.choices.empty()) {
        arguments += fmt::format(" -x -a '{}'", fmt::join(option.choices, " "));
      } else if (option.is_file || option.is_folder) {
        arguments += " -r -F";
      } else if (!option.is_flag()) {
        arguments += " -x";
      }
      line(arguments, option.help);
    });
  }
  return text;
}

}  // namespace

void add_completion(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("completion", "print completions for a shell");
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "which one: bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "Examples:\n  source <(widehead completion bash)\n"
      "  widehead completion fish > ~/.config/fish/completions/widehead.fish");
  command->callback([shell, &app, &action] {
    action = [shell, &app] {
      fmt::print("{}", *shell == "bash" ? bash(app) : *shell == "zsh" ? zsh(app) : fish(app));
      return 0;
    };
  });
}

}  // namespace widehead::cli
