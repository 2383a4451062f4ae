#include "help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace widehead::cli {
namespace {

constexpr std::size_t help_width = 100;
constexpr std::size_t help_column = 28;      // where the help of an option begins
constexpr std::size_t longest_choices = 34;  // as a metavar; more are listed in the help

/// Characters of UTF-8.
std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const auto end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// The parser's types are "TYPE:{a,b}" with a list of words to choose from, and "TYPE:TYPE in [0 - 9]" with a range; we
/// also write "a|b".
std::vector<std::string> choices_of(const std::string& type) {
  const auto base = type.substr(0, type.find(':'));
  if (base.find('|') != std::string::npos) return split(base, '|');
  const auto open = type.find(":{");
  if (open == std::string::npos) return {};
  const auto close = type.find('}', open);
  return split(std::string_view(type).substr(open + 2, close - open - 2), ',');
}

std::string metavar_of(const std::string& type) {
  auto base = type.substr(0, type.find(':'));
  if (base == "INT" || base == "UINT") return "N";
  if (base == "FLOAT") return "X";
  return base;
}

/// Lists come as "[a,b]".
std::string default_of(const CLI::Option& option) {
  auto text = option.get_default_str();
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  return text == "\"\"" ? "" : text;
}

std::string option_line(const OptionText& option) {
  auto text = "  " + option.usage();
  const auto length = characters(text);
  text += length + 2 <= help_column ? std::string(help_column - length, ' ') : "\n" + std::string(help_column, ' ');
  auto help = option.help;
  if (!option.default_value.empty()) help += fmt::format(" [{}]", option.default_value);
  if (option.is_required && !option.is_positional) help += " (required)";
  return text + wrapped(help, help_column, help_column, help_width) + "\n";
}

}  // namespace

OptionText describe(const CLI::Option& option) {
  OptionText text;
  text.is_positional = option.get_positional();
  text.name = option.get_name(text.is_positional, !text.is_positional);
  text.help = option.get_description();
  text.is_required = option.get_required();
  if (option.get_expected_max() == 0) return text;

  const auto type = option.get_type_name();
  const bool is_device = type == device_type;
  text.choices = is_device ? std::vector<std::string>{"cpu", "cuda"} : choices_of(type);
  text.metavar = is_device              ? device_type
                 : text.choices.empty() ? metavar_of(type)
                                        : fmt::format("{}", fmt::join(text.choices, "|"));
  text.is_file = text.metavar == file_type;
  text.is_folder = text.metavar == folder_type;
  if (characters(text.metavar) > longest_choices) {
    text.metavar = "NAME";
    text.help += fmt::format(": {}", fmt::join(text.choices, ", "));
  }
  if (option.get_expected_max() > 1) text.metavar += option.get_delimiter() == '\0' ? "…" : ",…";
  if (text.is_positional && option.get_expected_max() > 1) text.name += "…";
  text.default_value = default_of(option);
  return text;
}

std::vector<OptionGroup> option_groups(const CLI::App& command) {
  std::vector<OptionGroup> groups;
  const auto add = [&](const std::string& group, const CLI::Option* option) {
    auto found = std::ranges::find(groups, group, &OptionGroup::name);
    if (found == groups.end()) found = groups.insert(groups.end(), {group, {}});
    found->options.push_back(describe(*option));
  };
  const auto options = command.get_options([&](const CLI::Option* option) { return option != command.get_help_ptr(); });
  for (const auto* option : options) {
    if (option->get_positional()) add("Arguments", option);
  }
  for (const auto* option : options) {
    if (!option->get_positional() && !option->get_group().empty()) add(option->get_group(), option);
  }
  return groups;
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); });
}

std::string full_name(const CLI::App& command) {
  return command.get_parent() == nullptr ? "widehead" : full_name(*command.get_parent()) + " " + command.get_name();
}

std::string usage_of(const CLI::App& command) {
  auto usage = full_name(command);
  const auto groups = option_groups(command);
  if (!subcommands_of(command).empty()) return usage + " SUBCOMMAND";
  if (!groups.empty() && (groups.size() > 1 || groups.front().name != "Arguments")) usage += " [OPTIONS]";
  for (const auto& group : groups) {
    for (const auto& option : group.options) {
      if (option.is_positional) usage += option.is_required ? " " + option.name : fmt::format(" [{}]", option.name);
    }
  }
  return usage;
}

std::string wrapped(std::string_view text, std::size_t first_column, std::size_t indent, std::size_t width) {
  std::string result;
  std::size_t column = first_column;
  bool starts_line = true;
  for (const auto& word : split(text, ' ')) {
    const auto length = characters(word);
    if (!starts_line && column + 1 + length > width) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
      starts_line = true;
    }
    if (!starts_line) result += ' ';
    column += length + (starts_line ? 0 : 1);
    result += word;
    starts_line = false;
  }
  return result;
}

std::string HelpFormatter::make_help(const CLI::App* command, std::string /*name*/, CLI::AppFormatMode /*mode*/) const {
  auto text =
      fmt::format("{}\n\nUsage: {}\n", wrapped(command->get_description(), 0, 0, help_width), usage_of(*command));
  if (const auto commands = subcommands_of(*command); !commands.empty()) {
    text += "\nSubcommands:\n";
    for (const auto* each : commands) {
      constexpr std::size_t column = 14;
      text += fmt::format("  {:<{}}{}\n", each->get_name(), column - 2,
                          wrapped(each->get_description(), column, column, help_width));
    }
  }
  for (const auto& [name, options] : option_groups(*command)) {
    text += fmt::format("\n{}:\n", name);
    for (const auto& option : options) text += option_line(option);
  }
  text += "\n" + option_line({"-h,--help", "", "print this and exit", "", {}});
  if (const auto footer = command->get_footer(); !footer.empty()) text += "\n" + footer + "\n";
  return text;
}

}  // namespace widehead::cli
