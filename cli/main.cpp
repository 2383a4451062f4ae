/// The `widehead` program. Exit codes: 0 done, 1 failed, 2 wrong usage.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>

#include "command.h"
#include "help.h"
#include "widehead/version.h"

namespace {

/// Threads that wait must not spin for long: where other programs want the cores too, spinning makes steps ten
/// times slower and more. OpenMP reads its variables when it is loaded, before main, so the program
/// sets them and starts itself once more. Who has set one of them is left alone.
void let_waiting_threads_sleep(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "3000", 1);  // some 10 µs, enough between the products of a step
  execv("/proc/self/exe", argv);        // comes back only where it cannot; then things are as they were
}

/// An unknown subcommand is named in the error; the parser alone would say that one is missing.
void require_known_subcommands(CLI::App& app, int argc, char** argv) {
  CLI::App* command = &app;
  for (int i = 1; i < argc && argv[i][0] != '-' && !command->get_subcommands({}).empty(); ++i) {
    const auto named = command->get_subcommands([&](const CLI::App* each) { return each->check_name(argv[i]); });
    if (named.empty()) throw std::invalid_argument(fmt::format("'{}' is not a subcommand; try --help", argv[i]));
    command = named.front();
  }
}

}  // namespace

int main(int argc, char** argv) {
  let_waiting_threads_sleep(argv);
  CLI::App app{"widehead: exact training of very wide output layers in time independent of their width"};
  app.formatter(std::make_shared<widehead::cli::HelpFormatter>());
  app.set_version_flag("--version", WIDEHEAD_VERSION, "print the version and exit");
  app.require_subcommand(1);
  widehead::cli::Action action;
  try {
    widehead::cli::add_train(app, action);
    widehead::cli::add_eval(app, action);
    widehead::cli::add_predict(app, action);
    widehead::cli::add_neighbours(app, action);
    widehead::cli::add_export(app, action);
    widehead::cli::add_generate(app, action);
    widehead::cli::add_info(app, action);
    widehead::cli::add_verify(app, action);
    widehead::cli::add_bench(app, action);
    widehead::cli::add_completion(app, action);
    widehead::cli::add_manual(app, action);
    require_known_subcommands(app, argc, argv);
    app.parse(argc, argv);
    const int code = action();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw std::runtime_error("cannot write to standard output");
    }
    return code;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fmt::print(stderr, "widehead: {}\n", error.what());
    return 2;
  } catch (const std::invalid_argument& error) {
    fmt::print(stderr, "widehead: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "widehead: {}\n", error.what());
    return 1;
  }
}
