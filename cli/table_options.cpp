#include "table_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <type_traits>

#include "help.h"

namespace widehead::cli {
namespace {

/// A default as the help shows it; nothing for what is not set.
template <class Value>
std::string shown(const Value& value) {
  if constexpr (std::is_same_v<Value, std::vector<std::string>> || std::is_same_v<Value, std::vector<std::int64_t>>) {
    return fmt::format("{}", fmt::join(value, ","));
  } else if constexpr (std::is_same_v<Value, double>) {
    return std::isnan(value) ? "" : fmt::format("{}", value);
  } else {
    return fmt::format("{}", value);
  }
}

template <class Value>
const char* type_of() {
  if constexpr (std::is_same_v<Value, std::int64_t>) return "INT";
  if constexpr (std::is_same_v<Value, double>) return "FLOAT";
  if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) return "INT";
  return file_type;  // words without choices are paths
}

CLI::Option* add_option(CLI::App& command, const OptionSpec& spec, TrainOptions& given) {
  return std::visit(
      [&](auto field) -> CLI::Option* {
        auto& value = given.*field;
        using Value = std::remove_cvref_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, bool>) {
          return command.add_flag("--" + spec.name, value, spec.help);
        } else {
          auto* option = command.add_option("--" + spec.name, value, spec.help + (spec.required ? " (required)" : ""));
          if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) option->delimiter(',');
          option->type_name(spec.name == "out"      ? folder_type
                            : spec.name == "device" ? device_type
                            : spec.choices.empty()  ? type_of<Value>()
                                                    : fmt::format("{}", fmt::join(spec.choices, "|")));
          if (const auto text = shown(value); !text.empty()) option->default_str(text);
          return option;
        }
      },
      spec.field);
}

}  // namespace

TableOptions::TableOptions(CLI::App& command, Job job) : job_(job), given_(default_options(job)) {
  for (const auto& spec : option_table()) {
    if (!spec.is_for(job)) continue;
    options_.emplace_back(&spec, add_option(command, spec, given_)->group(spec.group));
  }
  command.add_option("--config", config_, "TOML file with any of these options, named as here; flags go before it")
      ->type_name("FILE")
      ->group("Run");
}

TrainOptions TableOptions::read() const {
  TrainOptions options = config_.empty() ? default_options(job_) : read_toml(config_, &job_).options;
  for (const auto& [spec, option] : options_) {
    if (option->count() > 0) std::visit([&](auto field) { options.*field = given_.*field; }, spec->field);
  }
  check(job_, options);
  return options;
}

}  // namespace widehead::cli
