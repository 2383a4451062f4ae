/// The trainer: the options table as Python sees it, a run, and what a trained model holds.

#include <fmt/format.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cmath>
#include <exception>
#include <stdexcept>
#include <type_traits>

#include "module.h"
#include "widehead/model/word_vectors.h"
#include "widehead/train/model_vectors.h"
#include "widehead/train/run.h"

namespace widehead::python {
namespace {

/// "valid-every" is valid_every in Python, "lambda", a word of the language, lambda_.
std::string python_name(std::string name) {
  if (name == "lambda") return "lambda_";
  for (char& letter : name) letter = letter == '-' ? '_' : letter;
  return name;
}

template <class V>
const char* type_name() {
  if constexpr (std::is_same_v<V, bool>) return "bool";
  if constexpr (std::is_same_v<V, std::int64_t>) return "int";
  if constexpr (std::is_same_v<V, double>) return "float";
  if constexpr (std::is_same_v<V, std::string>) return "str";
  if constexpr (std::is_same_v<V, std::vector<std::int64_t>>) return "ints";
  return "paths";
}

template <class V>
using ValueOf = std::remove_cvref_t<decltype(std::declval<TrainOptions&>().*std::declval<V>())>;

/// The rows of the table that a job has: name, type, default, choices, help, group.
nb::list options_of(const std::string& job_name) {
  const Job job = job_named(job_name);
  const auto defaults = default_options(job);
  nb::list rows;
  for (const auto& spec : option_table()) {
    if (!spec.is_for(job)) continue;
    nb::dict row;
    row["name"] = python_name(spec.name);
    row["help"] = spec.help;
    row["group"] = spec.group;
    row["required"] = spec.required;
    row["choices"] = spec.choices;
    std::visit(
        [&](auto field) {
          const auto& value = defaults.*field;
          using V = ValueOf<decltype(field)>;
          row["type"] = type_name<V>();
          bool is_unset = false;
          if constexpr (std::is_same_v<V, double>) is_unset = std::isnan(value);
          row["default"] = is_unset ? nb::none() : nb::cast(value);
        },
        spec.field);
    rows.append(row);
  }
  return rows;
}

template <class V>
V cast_option(const std::string& name, nb::handle value) {
  try {
    if constexpr (std::is_same_v<V, std::vector<std::int64_t>>) {
      if (nb::isinstance<nb::int_>(value)) return {nb::cast<std::int64_t>(value)};
    } else if constexpr (std::is_same_v<V, std::vector<std::string>>) {
      if (nb::isinstance<nb::str>(value)) return {nb::cast<std::string>(value)};
    }
    return nb::cast<V>(value);
  } catch (const nb::cast_error&) {
    throw std::invalid_argument(fmt::format("{} = {}: expected {}", name, nb::repr(value).c_str(), type_name<V>()));
  }
}

/// @param given  by their names in Python
TrainOptions read_options(Job job, const nb::dict& given, const std::string& config) {
  TrainOptions options = config.empty() ? default_options(job) : read_toml(config, &job).options;
  for (const auto& [key, value] : given) {
    const auto name = nb::cast<std::string>(key);
    bool known = false;
    for (const auto& spec : option_table()) {
      if (!spec.is_for(job) || python_name(spec.name) != name) continue;
      known = true;
      std::visit([&](auto field) { options.*field = cast_option<ValueOf<decltype(field)>>(name, value); }, spec.field);
    }
    if (!known) throw nb::type_error(fmt::format("train {} has no option '{}'", name_of(job), name).c_str());
  }
  return options;
}

nb::dict to_dict(const Figures& figures) {
  nb::dict result;
  for (const auto& [name, value] : figures) result[name.c_str()] = value;
  return result;
}

nb::dict to_dict(const Progress& p) {
  nb::dict result;
  result["share"] = p.share;
  result["epoch"] = p.epoch;
  result["epochs"] = p.epochs;
  result["steps"] = p.steps;
  result["examples"] = p.examples;
  result["loss"] = p.loss;
  result["lr"] = p.lr;
  result["eta"] = p.eta;
  result["seconds"] = p.seconds;
  result["examples_per_second"] = p.examples_per_second;
  result["seconds_left"] = p.seconds_left;
  result["waiting_share"] = p.waiting_share;
  result["head_share"] = p.head_share;
  return result;
}

/// Calls watch(event, payload) in Python, ten times a second at most where it is about progress. What Python raises,
/// Ctrl-C included, ends the run as a stop does: it is saved first, and raised again afterwards.
class Watcher final : public RunObserver {
 public:
  explicit Watcher(nb::object watch) : watch_(std::move(watch)) {}

  void note(const std::string& text) override {
    call([&] { watch_("note", text); });
  }
  void reading(double share) override {
    if (due()) call([&] { watch_("reading", share); });
  }
  void training(const Progress& progress) override {
    // the end is always told, however short the run
    if (due() || progress.share >= 1) call([&] { watch_("training", to_dict(progress)); });
  }
  void evaluated(const Progress& progress, const Figures& figures) override {
    call([&] {
      auto payload = to_dict(progress);
      payload["figures"] = to_dict(figures);
      watch_("evaluated", payload);
    });
  }
  bool should_stop() override {
    if (error_) return true;
    const auto now = Clock::now();
    if (now - asked_ < interval) return false;
    asked_ = now;
    call([] {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    });
    return error_ != nullptr;
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto interval = std::chrono::milliseconds(100);

  bool due() {
    const auto now = Clock::now();
    if (now - last_ < interval) return false;
    last_ = now;
    return true;
  }
  template <class Call>
  void call(const Call& function) {
    if (error_) return;
    const nb::gil_scoped_acquire gil;
    try {
      function();
    } catch (nb::python_error&) {
      error_ = std::current_exception();
    }
  }

  nb::object watch_;
  Clock::time_point last_{}, asked_{};
  std::exception_ptr error_;
};

nb::dict train(const std::string& job_name, const nb::dict& given, const std::string& config, nb::object watch) {
  const Job job = job_named(job_name);
  const auto options = read_options(job, given, config);
  Watcher watcher(std::move(watch));
  RunResult result;
  {
    const nb::gil_scoped_release release;
    result = run_training(job, options, watcher);
  }
  watcher.rethrow();
  nb::dict summary = to_dict(result.progress);
  summary["complete"] = result.complete;
  summary["model"] = options.out;
  summary["figures"] = to_dict(result.figures);
  return summary;
}

// ── vectors ─────────────────────────────────────────────────────────────────────────────────────

/// A matrix as a NumPy array (columns, rows) that owns it.
nb::object to_numpy(Matrix<float> matrix) {
  auto* const kept = new Matrix<float>(std::move(matrix));
  const nb::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<Matrix<float>*>(pointer); });
  const auto rows = static_cast<std::size_t>(kept->cols()), cols = static_cast<std::size_t>(kept->rows());
  return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<2>>(kept->data(), {rows, cols}, owner));
}

/// (names, vectors) of a model's outputs.
nb::tuple model_vectors(const std::string& path, const std::string& kind_name, int threads) {
  const auto kind =
      kind_name == name_of(VectorKind::input) ? VectorKind::input
      : kind_name == name_of(VectorKind::output)
          ? VectorKind::output
          : throw std::invalid_argument(fmt::format("kind '{}' is unknown; there are: input, output", kind_name));
  std::vector<std::string> names;
  Matrix<float> vectors;
  {
    const nb::gil_scoped_release release;
    const auto opened = open_model(path, threads);
    std::visit(
        [&](const auto& model) {
          vectors = Matrix<float>(vector_dim(model, kind), model.info.outputs);
          for_each_block_of_vectors(model, kind, [&](Size first, ConstView<float> block) {
            for (Size i = 0; i < block.cols; ++i) {
              std::copy_n(block.column(i), block.rows, vectors.view().column(first + i));
              names.push_back(model.name_of(static_cast<Index>(first + i)));
            }
          });
        },
        opened);
  }
  return nb::make_tuple(names, to_numpy(std::move(vectors)));
}

WordVectorFormat format_of(bool binary) { return binary ? WordVectorFormat::binary : WordVectorFormat::text; }

void save_word_vectors(const std::string& path, const std::vector<std::string>& words,
                       const Table<const float>& vectors, bool binary) {
  const auto view = view_of(vectors);
  if (view.cols != static_cast<Size>(words.size())) {
    throw std::invalid_argument(fmt::format("word vectors: {} words, but {} vectors", words.size(), view.cols));
  }
  const nb::gil_scoped_release release;
  WordVectorWriter writer(path, format_of(binary), view.cols, view.rows);
  writer.write(words, view);
  writer.finish();
}

nb::tuple load_word_vectors(const std::string& path, bool binary, std::optional<Size> limit) {
  WordVectors read;
  {
    const nb::gil_scoped_release release;
    read = read_word_vectors(path, format_of(binary), limit.value_or(std::numeric_limits<Size>::max()));
  }
  return nb::make_tuple(read.words, to_numpy(std::move(read.vectors)));
}

}  // namespace

void add_training(nb::module_& m) {
  m.def("train_options", &options_of, nb::arg("job"));
  m.def("train", &train, nb::arg("job"), nb::arg("options"), nb::arg("config"), nb::arg("watch"));
  m.def("model_vectors", &model_vectors, nb::arg("path"), nb::arg("kind"), nb::arg("threads"));
  m.def("save_word_vectors", &save_word_vectors, nb::arg("path"), nb::arg("words"), nb::arg("vectors").noconvert(),
        nb::arg("binary"));
  m.def("load_word_vectors", &load_word_vectors, nb::arg("path"), nb::arg("binary"), nb::arg("limit").none());
}

}  // namespace widehead::python
