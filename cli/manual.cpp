/// widehead manual: this program's manual as Markdown, which is docs/cli.md.

#include <fmt/format.h>

#include <memory>
#include <string>

#include "command.h"
#include "help.h"
#include "manual_notes.h"

namespace widehead::cli {
namespace {

/// In a cell of a table.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '|' ? std::string("\\|") : std::string(1, c);
  return result;
}

std::string table(const OptionGroup& group) {
  std::string text = fmt::format("| {} | default | |\n|---|---|---|\n", group.name);
  for (const auto& option : group.options) {
    const bool is_required = option.is_required;
    text += fmt::format("| `{}` | {} | {}{} |\n", cell(option.usage()), cell(option.default_value), cell(option.help),
                        is_required ? " (required)" : "");
  }
  return text;
}

/// What a command does, its options, its examples, and what there is to know about it.
std::string section(const CLI::App& command) {
  const auto name = full_name(command);
  auto text = fmt::format("\n## {}\n\n```\n{}\n```\n\n{}.\n", name, usage_of(command), command.get_description());
  for (const auto& group : option_groups(command)) text += "\n" + table(group);
  if (const auto footer = command.get_footer(); !footer.empty()) text += fmt::format("\n```\n{}\n```\n", footer);
  if (const auto notes = manual_notes(name); !notes.empty()) text += fmt::format("\n{}\n", notes);
  return text;
}

/// The commands that do something, which are those without subcommands.
void for_each_command(const CLI::App& app, const std::function<void(const CLI::App&)>& visit) {
  const auto commands = subcommands_of(app);
  if (commands.empty()) visit(app);
  for (const auto* each : commands) for_each_command(*each, visit);
}

std::string manual(const CLI::App& app) {
  std::string text = "# The program\n\n<!-- Printed by the program itself: widehead manual > docs/cli.md -->\n\n```\n";
  for_each_command(app, [&](const CLI::App& command) {
    text += fmt::format("{:<24} {}\n", full_name(command), command.get_description());
  });
  text += fmt::format("{:<24} {}\n```\n\n{}\n", "widehead … --help", "the options, with their defaults",
                      manual_notes(full_name(app)));
  for_each_command(app, [&](const CLI::App& command) { text += section(command); });
  return text;
}

}  // namespace

void add_manual(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("manual", "print the manual as Markdown");
  command->group("");  // not listed
  command->callback([&app, &action] {
    action = [&app] {
      fmt::print("{}", manual(app));
      return 0;
    };
  });
}

}  // namespace widehead::cli
