#include "layer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "state_dict.h"
#include "widehead/device.h"
#include "widehead/errors.h"

namespace widehead::python {
namespace {

/// {"name": "z", "scale": 0.05, …}; what is not given has its default.
Loss loss_of(const nb::dict& given) {
  const auto name = nb::cast<std::string>(given["name"]);
  if (name == "own") {
    CustomLoss own;
    own.name = name;
    own.uses_sum = nb::cast<bool>(given["uses_sum"]);
    if (given.contains("inner")) {  // a loss beside which there may be others: it does not decide about the sum
      own.function = [inner = loss_of(nb::cast<nb::dict>(given["inner"]))](const LossInput& x, std::span<double> g) {
        return std::visit([&](const auto& function) { return function(x, g); }, inner);
      };
    } else {
      own.function = [](const LossInput&, std::span<double>) -> LossValue {
        throw std::invalid_argument("loss own: computed outside the layer; use statistics and update");
      };
    }
    return own;
  }
  Loss loss = make_loss(name);
  const auto take = [&](const char* key, double& value) {
    if (given.contains(key)) value = nb::cast<double>(given[key]);
  };
  if (auto* weighted = std::get_if<WeightedSquaredError>(&loss)) {
    take("unobserved", weighted->unobserved);
    take("observed", weighted->observed);
  } else if (auto* spherical = std::get_if<SphericalSoftmax>(&loss)) {
    take("epsilon", spherical->epsilon);
  } else if (auto* outside = std::get_if<SphericalSoftmaxOutside>(&loss)) {
    take("epsilon", outside->epsilon);
  } else if (auto* z = std::get_if<ZLoss>(&loss)) {
    take("scale", z->scale);
    take("shift", z->shift);
    take("sigma_min", z->sigma_min);
  }
  return loss;
}

HeadOptions head_options(const nb::dict& given) {
  HeadOptions options;
  const auto take = [&]<class V>(const char* key, V& value) { value = nb::cast<V>(given[key]); };
  take("head", options.head);
  take("outputs", options.layer.outputs);
  take("dim", options.layer.dim);
  options.layer.loss = loss_of(nb::cast<nb::dict>(given["loss"]));
  take("weight_decay", options.layer.weight_decay);
  take("init_scale", options.layer.initial_scale);
  take("seed", options.layer.seed);
  take("window", options.windowed.window);
  take("rows_file", options.windowed.rows_file);
  take("samples", options.sampled.samples);
  take("classes", options.hierarchical.classes);
  if (!options.windowed.rows_file.empty() && options.head != "windowed") {
    throw std::invalid_argument(fmt::format("rows_file: only the windowed head has one, not {}", options.head));
  }
  const auto init = nb::cast<std::string>(given["init"]);
  if (init == "given") {
    options.layer.initial = Initial::given;
    return options;
  }
  std::vector<std::string_view> names;
  for (const auto& [name, value] : initial_names()) {
    if (init == name) options.layer.initial = value;
    names.push_back(name);
  }
  if (std::ranges::find(names, init) == names.end()) {
    throw std::invalid_argument(
        fmt::format("init '{}' is unknown; there are: {}, or an array", init, fmt::join(names, ", ")));
  }
  return options;
}

/// A device that is not there is the caller's mistake, in whatever way it is missing.
template <class T>
std::shared_ptr<Backend<T>> backend_on(const std::string& device, int threads) {
  try {
    return make_backend<T>(device, threads);
  } catch (const BackendError& error) {
    throw std::invalid_argument(fmt::format("device '{}': {}", device, error.what()));
  }
}

nb::dict to_dict(const Diagnostics& figures) {
  nb::dict result;
  for (const auto& [name, value] : figures) result[name.c_str()] = value;
  return result;
}

}  // namespace

template <class T>
Layer<T>::Layer(const nb::dict& options, const std::optional<Table<const T>>& W0, int threads,
                const std::string& device)
    : options_(head_options(options)) {
  auto made = options_;
  if (W0) {
    const auto W = python::view_of(*W0);
    if (W.cols != made.layer.outputs || W.rows != made.layer.dim) {
      throw std::invalid_argument(fmt::format("init: W0 has shape ({}, {}), but D = {} and d = {}", W.cols, W.rows,
                                              made.layer.outputs, made.layer.dim));
    }
    made.layer.initial_weights = [W](Size output, std::span<double> row) {
      std::copy_n(W.column(output), W.rows, row.begin());
    };
  }
  const nb::gil_scoped_release release;
  backend_ = backend_on<T>(device, threads);
  layer_ = make_head<T>(made, backend_);
}

template <class T>
template <class V>
MatrixView<V> Layer<T>::view_of(const AnyTable<V>& table) const {
  const auto view = table.view();
  if (!table.is_host() && (backend_->memory().is_host() || !backend_->can_reach(view.data))) {
    throw std::invalid_argument(
        fmt::format("array: it is on another device, but the layer is on {}", backend_->device()));
  }
  return view;
}

template <class T>
double Layer<T>::step(const Hidden& h, const Targets<T>& targets, double lr,
                      const std::optional<List<const T>>& weights, const std::optional<Out>& grad_h) {
  return run([&] { return layer_->step(view_of(h), targets.batch(span_of(weights)), lr, view_of(grad_h)); });
}

template <class T>
double Layer<T>::evaluate(const Hidden& h, const Targets<T>& targets, const std::optional<List<const T>>& weights,
                          const std::optional<Out>& grad_h) {
  return run([&] { return layer_->evaluate(view_of(h), targets.batch(span_of(weights)), view_of(grad_h)); });
}

template <class T>
double Layer<T>::time_steps(const nb::list& batches, double lr, std::int64_t steps) {
  std::vector<Hidden> arrays;
  std::vector<SparseBatch<T>> targets;
  for (const nb::handle each : batches) {
    const auto pair = nb::cast<nb::tuple>(each);
    arrays.push_back(nb::cast<Hidden>(pair[0], false));
    targets.push_back(nb::cast<const Targets<T>&>(pair[1]).batch());
  }
  if (arrays.empty()) throw std::invalid_argument("time_steps: no minibatches");
  return run([&] {
    Matrix<T> grad_H(backend_->memory());
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t step = 0; step < steps; ++step) {
      const auto k = static_cast<std::size_t>(step) % arrays.size();
      const auto H = view_of(arrays[k]);
      layer_->step(H, targets[k], lr, grad_H.scratch(H.rows, H.cols));
    }
    backend_->wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
}

// ── a step in parts ─────────────────────────────────────────────────────────────────────────────

template <class T>
SphericalLayer<T>& Layer<T>::spherical() {
  auto* layer = dynamic_cast<SphericalLayer<T>*>(layer_.get());
  if (layer == nullptr) {
    throw std::invalid_argument(
        fmt::format("head '{}' takes no loss of the spherical family: no statistics", layer_->head()));
  }
  return *layer;
}

template <class T>
void Layer<T>::check_parts(const Targets<T>& targets, std::size_t q, std::size_t s, std::size_t o,
                           const char* what) const {
  const auto m = static_cast<std::size_t>(targets.examples()), n = static_cast<std::size_t>(targets.nonzeros());
  if (q != m || s != m || o != n) {
    throw std::invalid_argument(
        fmt::format("{}: arrays of {}, {} and {} for {} examples with {} targets", what, q, s, o, m, n));
  }
}

template <class T>
typename Layer<T>::Ticket Layer<T>::observe(const Hidden& h, const Targets<T>& targets, const DoublesOut& q,
                                            const std::optional<DoublesOut>& s, const DoublesOut& o) {
  check_parts(targets, q.size(), s ? s->size() : q.size(), o.size(), "statistics");
  return run([&] {
    spherical().observe_batch(view_of(h), targets.batch(), statistics_);
    std::ranges::copy(statistics_.q, q.data());
    if (s) std::ranges::copy(statistics_.s, s->data());
    std::ranges::copy(statistics_.o, o.data());
    known_ = Known::statistics;
    return ++ticket_;
  });
}

template <class T>
typename Layer<T>::Ticket Layer<T>::backpropagate(const Hidden& h, const Targets<T>& targets, const Doubles& a,
                                                  const std::optional<Doubles>& b, const Doubles& g, const Out& grad_h,
                                                  Ticket ticket) {
  return alone([&](Known known) {
    const GivenDerivatives given{span_of(a), span_of(b), span_of(g)};
    spherical().backpropagate_batch(view_of(h), targets.batch(), given, view_of(grad_h),
                                    known_by(ticket, known) == Known::nothing ? Known::nothing : Known::statistics);
    known_ = Known::gradient;
    return ++ticket_;
  });
}

template <class T>
void Layer<T>::update(const Hidden& h, const Targets<T>& targets, const Doubles& a, const std::optional<Doubles>& b,
                      const Doubles& g, double lr, const std::optional<Out>& grad_h, Ticket ticket) {
  alone([&](Known known) {
    const GivenDerivatives given{span_of(a), span_of(b), span_of(g)};
    spherical().update_batch(view_of(h), targets.batch(), given, lr, view_of(grad_h), known_by(ticket, known));
  });
}

template <class T>
std::tuple<double, typename Layer<T>::Ticket, std::uint64_t> Layer<T>::judge(const Hidden& h, const Targets<T>& targets,
                                                                             const Out& grad_h) {
  return run([&] {
    const double L = spherical().evaluate(view_of(h), targets.batch(), view_of(grad_h));
    known_ = Known::gradient;
    return std::tuple(L, ++ticket_, stamp());
  });
}

template <class T>
void Layer<T>::finish(const Hidden& h, const Targets<T>& targets, double lr, Ticket ticket) {
  const auto H = view_of(h);
  alone([&](Known known) {
    if (known_by(ticket, known) == Known::gradient) {
      spherical().update_batch(H, targets.batch(), {}, lr, {}, Known::gradient);
    } else {
      layer_->step(H, targets.batch(), lr);
    }
  });
}

// ── questions ───────────────────────────────────────────────────────────────────────────────────

template <class T>
double Layer<T>::rate_for(const Hidden& h, const Targets<T>& targets, double lambda,
                          const std::optional<List<const T>>& weights) {
  return run([&] { return layer_->eta_for(view_of(h), targets.batch(span_of(weights)), lambda); });
}

template <class T>
void Layer<T>::log_prob(const Hidden& h, const Targets<T>& targets, const DoublesOut& out) {
  run([&] { layer_->log_prob(view_of(h), targets.batch(), span_of(out)); });
}

template <class T>
void Layer<T>::scores(const Hidden& h, const List<const Index>& rows, const Out& out) {
  run([&] { layer_->scores(view_of(h), span_of(rows), view_of(out)); });
}

template <class T>
void Layer<T>::top_k(const Hidden& h, const Table<Index>& outputs, const Table<T>& scores) {
  const auto outputs_view = python::view_of(outputs);
  const auto scores_view = python::view_of(scores);
  const Size m = view_of(h).cols;
  if (outputs_view.cols != m || scores_view.cols != m || scores_view.rows != outputs_view.rows) {
    throw std::invalid_argument("top_k: results of another shape");
  }
  run([&] {
    const auto best = layer_->top_k(view_of(h), outputs_view.rows);
    for (Size j = 0; j < m; ++j) {
      std::copy_n(best.outputs.view().column(j), outputs_view.rows, outputs_view.column(j));
      std::copy_n(best.scores.view().column(j), outputs_view.rows, scores_view.column(j));
    }
  });
}

template <class T>
void Layer<T>::weights(Size first, const Out& out) {
  run([&] { layer_->weights(first, view_of(out)); });
}

template <class T>
void Layer<T>::gram(const Out& out) {
  const auto G = view_of(out);
  if (G.rows != layer_->dim() || G.cols != G.rows) throw std::invalid_argument("gram: out must be (d, d)");
  run([&] { backend_->template transfer<T>(layer_->gram().view(), G); });
}

template <class T>
void Layer<T>::sum_of_rows(const Out& out) {
  const auto w_bar = view_of(out);
  if (w_bar.rows != layer_->dim() || w_bar.cols != 1) throw std::invalid_argument("sum_of_rows: out must be (1, d)");
  run([&] { backend_->template transfer<T>(layer_->sum_of_rows().view(), w_bar); });
}

template <class T>
nb::dict Layer<T>::diagnostics() {
  return to_dict(run([&] { return layer_->diagnostics(); }));
}

template <class T>
nb::dict Layer<T>::counters() {
  return to_dict(run([&] { return layer_->counters(); }));
}

// ── state ───────────────────────────────────────────────────────────────────────────────────────

template <class T>
nb::dict Layer<T>::state() {
  return run([&] { return save_to_dict([&](StateVisitor& visitor) { layer_->visit_state(visitor); }); });
}

/// A load that fails leaves a layer half loaded: so it is another one that is loaded, and takes the place of this.
template <class T>
void Layer<T>::load_state(const nb::dict& state) {
  if (!options_.windowed.rows_file.empty()) {
    throw std::invalid_argument("load_state: a layer with a rows_file is loaded by OutputLayer.load, into a new file");
  }
  run([&] {
    auto fresh = options_;
    if (fresh.layer.initial != Initial::zero) fresh.layer.initial = Initial::given;  // of which nothing is given
    auto layer = make_head<T>(fresh, backend_);
    load_from_dict(state, [&](StateVisitor& visitor) { layer->visit_state(visitor); });
    layer_ = std::move(layer);
    ++loads_;
  });
}

template class Layer<float>;
template class Layer<double>;

// ── the classes ─────────────────────────────────────────────────────────────────────────────────

namespace {

template <class T>
void add_layer(nb::module_& m, const char* name, const char* order_name) {
  using Class = Layer<T>;
  const auto array = [](const char* argument) { return nb::arg(argument).noconvert(); };
  const auto maybe = [](const char* argument) { return nb::arg(argument).none().noconvert(); };
  nb::class_<Order<T>>(m, order_name)
      .def("__enter__", &Order<T>::enter)
      .def("__exit__", [](Order<T>& self, const nb::args&) { self.exit(); });
  nb::class_<Class>(m, name)
      .def(nb::init<const nb::dict&, const std::optional<Table<const T>>&, int, const std::string&>(),
           nb::arg("options"), maybe("W0"), nb::arg("threads"), nb::arg("device"))
      .def(
          "order",
          [](Class& self, std::uintptr_t stream) {
            return std::make_unique<Order<T>>(self.backend(), self.mutex(), stream);
          },
          nb::arg("stream"), nb::keep_alive<0, 1>())  // who destroys a layer is alone with its device
      .def("step", &Class::step, array("h"), nb::arg("targets"), nb::arg("lr"), maybe("weights"), maybe("grad_h"))
      .def("evaluate", &Class::evaluate, array("h"), nb::arg("targets"), maybe("weights"), maybe("grad_h"))
      .def("time_steps", &Class::time_steps, nb::arg("batches"), nb::arg("lr"), nb::arg("steps"))
      .def("observe", &Class::observe, array("h"), nb::arg("targets"), array("q"), maybe("s"), array("o"))
      .def("backpropagate", &Class::backpropagate, array("h"), nb::arg("targets"), array("a"), maybe("b"), array("g"),
           array("grad_h"), nb::arg("ticket"))
      .def("update", &Class::update, array("h"), nb::arg("targets"), array("a"), maybe("b"), array("g"), nb::arg("lr"),
           maybe("grad_h"), nb::arg("ticket"))
      .def("judge", &Class::judge, array("h"), nb::arg("targets"), array("grad_h"))
      .def("finish", &Class::finish, array("h"), nb::arg("targets"), nb::arg("lr"), nb::arg("ticket"))
      .def("rate_for", &Class::rate_for, array("h"), nb::arg("targets"), nb::arg("lambda_"), maybe("weights"))
      .def("log_prob", &Class::log_prob, array("h"), nb::arg("targets"), array("out"))
      .def("scores", &Class::scores, array("h"), array("rows"), array("out"))
      .def("top_k", &Class::top_k, array("h"), array("outputs"), array("scores"))
      .def("weights", &Class::weights, nb::arg("first"), array("out"))
      .def("gram", &Class::gram, array("out"))
      .def("sum_of_rows", &Class::sum_of_rows, array("out"))
      .def("diagnostics", &Class::diagnostics)
      .def("counters", &Class::counters)
      .def("save", &Class::save, nb::arg("path"), nb::arg("metadata"))
      .def("load", &Class::load, nb::arg("path"))
      .def("state", &Class::state)
      .def("load_state", &Class::load_state, nb::arg("state"))
      .def_prop_ro("steps", [](Class& self) { return self.layer().steps(); })
      .def_prop_ro("stamp", &Class::stamp)
      .def_prop_ro("loss_name", [](Class& self) { return self.layer().loss_name(); })
      .def_prop_ro("has_probabilities", [](Class& self) { return self.layer().has_probabilities(); })
      .def_prop_ro("has_statistics", &Class::has_statistics)
      .def_prop_ro("uses_sum", &Class::uses_sum)
      .def_prop_ro("device", [](Class& self) { return self.backend()->device(); })
      .def_prop_ro("threads", [](Class& self) { return self.layer().backend().threads(); });
}

nb::dict default_parameters(const std::string& name) {
  nb::dict result;
  const auto loss = make_loss(name);
  if (const auto* weighted = std::get_if<WeightedSquaredError>(&loss)) {
    result["unobserved"] = weighted->unobserved;
    result["observed"] = weighted->observed;
  } else if (const auto* spherical = std::get_if<SphericalSoftmax>(&loss)) {
    result["epsilon"] = spherical->epsilon;
  } else if (const auto* outside = std::get_if<SphericalSoftmaxOutside>(&loss)) {
    result["epsilon"] = outside->epsilon;
  } else if (const auto* z = std::get_if<ZLoss>(&loss)) {
    result["scale"] = z->scale;
    result["shift"] = z->shift;
    result["sigma_min"] = z->sigma_min;
  }
  return result;
}

nb::tuple to_tuple(std::span<const std::string_view> names) {
  nb::list list;
  for (const auto name : names) list.append(nb::str(name.data(), name.size()));
  return nb::tuple(list);
}

}  // namespace

void add_layers(nb::module_& m) {
  add_layer<float>(m, "Layer32", "Order32");
  add_layer<double>(m, "Layer64", "Order64");
  m.def("default_parameters", &default_parameters, nb::arg("loss"));
  m.attr("HEADS") = to_tuple(head_names());
  m.attr("SPHERICAL_HEADS") = to_tuple(spherical_head_names());
  m.attr("LOSSES") = to_tuple(loss_names());
}

}  // namespace widehead::python
