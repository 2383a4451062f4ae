#pragma once
/// What the parser knows about an option, in the form that the help, the manual and completions want it; and the help.

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace widehead::cli {

/// Names of types that are files and folders: the help shows them, completions act on them.
inline constexpr const char* file_type = "FILE";
inline constexpr const char* folder_type = "DIR";
inline constexpr const char* device_type = "cpu|cuda[:N]";  ///< the only one with a colon in its name

struct OptionText {
  std::string name;                  ///< "--dim", "-h,--help", or "MODEL" of a positional
  std::string metavar;               ///< "N", "FILE…", "relu|tanh"; empty for a flag
  std::string help;                  ///< with the choices where these are too many for the metavar
  std::string default_value;         ///< empty where there is none
  std::vector<std::string> choices;  ///< of words
  bool is_positional = false, is_required = false;
  bool is_file = false, is_folder = false;

  bool is_flag() const { return metavar.empty() && !is_positional; }
  std::string usage() const { return metavar.empty() || is_positional ? name : name + " " + metavar; }
};

OptionText describe(const CLI::Option& option);

/// The options of a command by group, positionals first under the name "Arguments"; --help apart.
struct OptionGroup {
  std::string name;
  std::vector<OptionText> options;
};
std::vector<OptionGroup> option_groups(const CLI::App& command);

/// Subcommands that are shown.
std::vector<const CLI::App*> subcommands_of(const CLI::App& command);

/// "widehead train lm".
std::string full_name(const CLI::App& command);

/// "widehead predict [OPTIONS] MODEL [FILE]".
std::string usage_of(const CLI::App& command);

/// Text in lines of at most `width` characters, those after the first indented.
std::string wrapped(std::string_view text, std::size_t first_column, std::size_t indent, std::size_t width);

/// --help.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* command, std::string name, CLI::AppFormatMode mode) const override;
};

}  // namespace widehead::cli
