#pragma once
/// A subcommand of the `widehead` program: it adds itself to the parser; `run` is called if chosen.

#include <CLI/CLI.hpp>
#include <functional>

namespace widehead::cli {

/// What the chosen subcommand will do; returns the exit code.
using Action = std::function<int()>;

void add_info(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);
void add_predict(CLI::App& app, Action& action);
void add_neighbours(CLI::App& app, Action& action);
void add_export(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_completion(CLI::App& app, Action& action);
void add_manual(CLI::App& app, Action& action);

}  // namespace widehead::cli
