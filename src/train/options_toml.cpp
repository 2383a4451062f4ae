/// The options table as TOML documents.

#include <fmt/format.h>
#include <toml++/toml.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <sstream>
#include <system_error>
#include <type_traits>

#include "widehead/errors.h"
#include "widehead/train/options.h"

namespace widehead {
namespace {

using O = TrainOptions;

/// Where a node of a document stands.
std::string place(const std::string& path, const toml::node& node) {
  return fmt::format("{}:{}", path, node.source().begin.line);
}

/// An array of strings or integers; a single value counts as an array of one.
template <class V>
std::vector<V> read_list(const toml::node& node, const std::string& where) {
  std::vector<V> values;
  const auto append = [&](const toml::node& element) {
    const auto value = element.value_exact<V>();
    if (!value) {
      throw FileError(
          fmt::format("{}: expected a list of {}", where, std::is_same_v<V, std::string> ? "strings" : "integers"));
    }
    values.push_back(*value);
  };
  if (const auto* array = node.as_array(); array != nullptr) {
    for (const auto& element : *array) append(element);
  } else {
    append(node);
  }
  return values;
}

template <class V>
V read_value(const toml::node& node, const std::string& where) {
  const auto fail = [&](const char* what) { throw FileError(fmt::format("{}: expected {}", where, what)); };
  if constexpr (std::is_same_v<V, bool>) {
    if (!node.is_boolean()) fail("true or false");
    return *node.value<bool>();
  } else if constexpr (std::is_same_v<V, std::int64_t>) {
    if (!node.is_integer()) fail("an integer");
    return *node.value<std::int64_t>();
  } else if constexpr (std::is_same_v<V, double>) {
    if (node.is_integer()) return static_cast<double>(*node.value<std::int64_t>());
    if (!node.is_floating_point()) fail("a number");
    return *node.value<double>();
  } else {
    if (!node.is_string()) fail("a string");
    return *node.value<std::string>();
  }
}

const OptionSpec* find_option(Job job, std::string_view name) {
  for (const auto& spec : option_table()) {
    if (spec.name == name && spec.is_for(job)) return &spec;
  }
  return nullptr;
}

}  // namespace

std::string to_toml(Job job, const TrainOptions& options, bool with_run_options) {
  std::string document = fmt::format("job = \"{}\"\n", name_of(job));
  std::string group;
  for (const auto& spec : option_table()) {
    if (!spec.is_for(job) || (spec.kind == OptionSpec::Kind::run && !with_run_options)) continue;
    toml::table line;  // formats and quotes the value
    std::visit(
        [&](auto field) {
          const auto& value = options.*field;
          using Value = std::remove_cvref_t<decltype(value)>;
          if constexpr (std::is_same_v<Value, double>) {
            if (!std::isnan(value)) line.insert(spec.name, value);
          } else if constexpr (std::is_arithmetic_v<Value> || std::is_same_v<Value, std::string>) {
            line.insert(spec.name, value);
          } else {
            toml::array array;
            for (const auto& element : value) array.push_back(element);
            line.insert(spec.name, array);
          }
        },
        spec.field);
    if (line.empty()) continue;
    if (spec.group != group) {
      document += fmt::format("\n# {}\n", spec.group);
      group = spec.group;
    }
    std::ostringstream text;
    text << toml::toml_formatter(line,
                                 toml::toml_formatter::default_flags & ~toml::format_flags::allow_literal_strings);
    document += text.str() + "\n";
  }
  return document;
}

JobOptions read_toml(const std::string& path, const Job* job) {
  std::ifstream file(path);
  if (!file) throw std::system_error(errno, std::generic_category(), path);
  toml::table document;
  try {
    document = toml::parse(file, path);
  } catch (const toml::parse_error& error) {
    throw FileError(fmt::format("{}:{}: {}", path, error.source().begin.line, error.description()));
  }
  JobOptions result{};
  if (const auto* node = document.get("job"); node != nullptr) {
    const auto name = read_value<std::string>(*node, place(path, *node) + ": job");
    try {
      result.job = job_named(name);
    } catch (const std::invalid_argument& error) {
      throw FileError(fmt::format("{}: {}", place(path, *node), error.what()));
    }
    if (job != nullptr && *job != result.job) {
      throw FileError(fmt::format("{}: options for {}, but the job is {}", place(path, *node), name, name_of(*job)));
    }
  } else if (job != nullptr) {
    result.job = *job;
  } else {
    throw FileError(fmt::format("{}:1: expected the key job", path));
  }
  result.options = default_options(result.job);
  for (const auto& [key, node] : document) {
    if (key == "job") continue;
    const auto* spec = find_option(result.job, key.str());
    if (spec == nullptr) {
      throw FileError(fmt::format("{}: {} has no option '{}'", place(path, node), name_of(result.job), key.str()));
    }
    const auto where = fmt::format("{}: {}", place(path, node), key.str());
    std::visit(
        [&, &node = node](auto field) {  // named: older compilers do not capture a part of a pair
          auto& value = result.options.*field;
          using Value = std::remove_cvref_t<decltype(value)>;
          if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
            value = read_list<std::string>(node, where);
          } else if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) {
            value = read_list<std::int64_t>(node, where);
          } else {
            value = read_value<Value>(node, where);
          }
        },
        spec->field);
  }
  return result;
}

}  // namespace widehead
