/// widehead info: a model, or what the program runs on and how fast its matrix products are here.

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "common_options.h"
#include "help.h"
#include "model_info.h"
#include "widehead/system_info.h"

namespace widehead::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Rate {
  std::string dtype;
  int threads;
  double gflops;
};

template <class T>
Rate measure(const char* dtype, int threads) {
  const GemmShape shape{Op::none, Op::none, 900, 128, 300};  // the stacked product of a step, d = 300, m = 128
  const auto backend = make_cpu_backend<T>(threads);
  return {dtype, backend->threads(), shape.flops() / time_gemm(*backend, shape, 0.2) * 1e-9};
}

int run(int threads, bool json) {
  const auto info = system_info();
  std::vector<Rate> rates = {measure<float>("f32", 1), measure<double>("f64", 1)};
  if (const int many = threads == 0 ? info.cores : threads; many > 1) {
    rates.push_back(measure<float>("f32", many));
    rates.push_back(measure<double>("f64", many));
  }
  if (json) {
    Json object = {{"version", info.version},     {"device", "cpu"},           {"cores", info.cores},
                   {"sgemm", info.sgemm_library}, {"blas", info.blas_library}, {"kernels", info.kernels},
                   {"warning", info.warning}};
    for (const auto& rate : rates) {
      object["gemm"].push_back({{"dtype", rate.dtype}, {"threads", rate.threads}, {"gflops", rate.gflops}});
    }
    fmt::print("{}\n", object.dump());
    return 0;
  }
  fmt::print("widehead {}\n", info.version);
  fmt::print("  cores            {}\n", info.cores);
  fmt::print("  float products   {}\n", info.sgemm_library);
  fmt::print("  double, LAPACK   {}\n", info.blas_library);
  fmt::print("  BLAS kernels     {}\n", info.kernels.empty() ? "(the library does not tell)" : info.kernels);
  fmt::print("  threads          OpenMP's, one vendor call each\n");
  for (const auto& rate : rates) {
    fmt::print("  GEMM {} on {}    {:.0f} GFLOP/s (900 x 128 x 300)\n", rate.dtype, rate.threads, rate.gflops);
  }
  if (!info.warning.empty()) fmt::print(stderr, "widehead: warning: {}\n", info.warning);
  return 0;
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  auto* command =
      app.add_subcommand("info", "a model; without one, libraries, kernels and the measured rate of matrix products");
  auto threads = std::make_shared<int>(0);
  auto json = std::make_shared<bool>(false);
  auto model = std::make_shared<std::string>();
  command->add_option("MODEL", *model, "folder of a trained model")->type_name(folder_type);
  command->add_option("--threads", *threads, "also measure with N threads; 0 means one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--json", *json, "print one JSON object");
  command->footer("Examples:\n  widehead info\n  widehead info model --json");
  command->callback([=, &action] {
    action = [=] { return model->empty() ? run(*threads, *json) : print_model_info(*model, *json); };
  });
}

}  // namespace widehead::cli
