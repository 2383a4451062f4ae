#pragma once
/// Small networks, minibatches for them, and their parameters by name.

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "dice.h"
#include "state_in_memory.h"
#include "widehead/train/batch.h"
#include "widehead/train/network.h"

namespace widehead::test {

/// F = 7, d = 3, D = 11.
struct NetworkShape {
  bool concat = true;  ///< of three embeddings; else a sum of any number
  std::vector<Size> hidden = {};
  Activation activation = Activation::tanh;
  std::string head = "dense";
  std::string loss = "squared";

  std::string name() const {
    std::string text = concat ? "concat" : "sum";
    for (const Size width : hidden) text += fmt::format("-{}", width);
    for (const auto& [word, value] : activation_names()) {
      if (value == activation) text += fmt::format(", {}", word);
    }
    return fmt::format("{}, {} head, {} loss", text, head, loss);
  }
};

constexpr Size test_features = 7, test_outputs = 11, test_dim = 3, test_slots = 3;

inline NetworkOptions options_of(const NetworkShape& shape) {
  NetworkOptions options;
  options.features = test_features;
  options.slots = shape.concat ? test_slots : 1;
  options.embedding = shape.concat ? 4 : test_dim;
  options.hidden = shape.hidden;
  if (shape.concat || !shape.hidden.empty()) options.hidden.push_back(test_dim);
  options.activation = shape.activation;
  options.input_scale = 0.5;
  options.optimizer = Optimizer::sgd;
  options.head_rate.eta = 0.01;
  options.head.head = shape.head;
  options.head.layer = {.outputs = test_outputs,
                        .dim = test_dim,
                        .loss = make_loss(shape.loss),
                        .initial = Initial::normal,
                        .initial_scale = 0.5,
                        .seed = 3};
  options.head.windowed.window = 20;  // closes now and then
  options.seed = 7;
  return options;
}

/// Inputs and targets; a sum's inputs repeat a feature, and one example has none.
template <class T>
Batch<T> make_batch(Dice& dice, bool concat, Size m) {
  Batch<T> batch;
  for (Size j = 0; j < m; ++j) {
    const Size inputs = concat ? test_slots : j == 1 ? 0 : dice.between(1, 4);
    for (Size k = 0; k < inputs; ++k) {
      const bool repeat = k > 0 && dice.between(0, 3) == 0;
      // One after the other: of two arguments either may be drawn first, and compilers differ.
      const T value = concat ? T(1) : static_cast<T>(dice.uniform(0.2, 1));
      batch.inputs.add(repeat ? batch.inputs.indices.back() : static_cast<Index>(dice.between(0, test_features - 1)),
                       value);
    }
    batch.inputs.end_example();
    for (Size k = dice.between(0, 2); k >= 0; --k) {
      const T value = static_cast<T>(dice.uniform(0.5, 2));
      batch.targets.add(static_cast<Index>(dice.between(0, test_outputs - 1)), value);
    }
    batch.targets.end_example();
  }
  return batch;
}

template <class T>
double step(Network<T>& network, const Batch<T>& batch, double lr, double head_factor) {
  return network.step(batch.inputs.view(test_features), batch.targets.view(test_outputs), lr, head_factor);
}
template <class T>
double evaluate(Network<T>& network, const Batch<T>& batch) {
  return network.evaluate(batch.inputs.view(test_features), batch.targets.view(test_outputs));
}

/// Shows the arrays of an object where they lie: visit(name, values), for those of type T.
template <class T>
class ArrayVisitor final : public StateVisitor {
 public:
  using Visit = std::function<void(const std::string&, std::span<T>)>;
  explicit ArrayVisitor(Visit visit) : visit_(std::move(visit)) {}
  bool loading() const override { return false; }

 protected:
  Shape saved_shape(const std::string&, ElementType, const Shape&) override { throw std::logic_error("not loading"); }
  void transfer(const Array& array) override {
    if (array.type != element_type<T>()) return;
    visit_(array.name, {static_cast<T*>(array.data), bytes_of(array.type, array.shape) / sizeof(T)});
  }
  FileError error(const std::string& name, const std::string& why) const override {
    return FileError(name + " " + why);
  }

 private:
  Visit visit_;
};

/// The state, but for what depends on the clock.
template <class T>
SavedState timeless_state(Network<T>& network) {
  auto state = save(network);
  std::erase_if(state, [](const auto& array) { return array.first.ends_with("seconds"); });
  return state;
}
/// The first array that differs, for a message that can be read; empty if none does.
inline std::string difference(const SavedState& a, const SavedState& b) {
  for (const auto& [name, array] : a) {
    if (!b.contains(name) || b.at(name) != array) return name;
  }
  return a.size() == b.size() ? "" : "their number";
}

template <class T>
using Parameters = std::map<std::string, std::vector<T>>;

inline bool is_below_the_head(const std::string& name) {
  return name.rfind("input.", 0) == 0 || name.rfind("hidden", 0) == 0;
}

/// What the layers below the head hold, by name: "input.embeddings.value", "hidden1.bias.adam_mean", ….
template <class T>
Parameters<T> lower_arrays(Network<T>& network, const std::string& suffix = "") {
  Parameters<T> arrays;
  ArrayVisitor<T> visitor([&](const std::string& name, std::span<T> values) {
    if (is_below_the_head(name) && name.ends_with(suffix)) arrays[name] = {values.begin(), values.end()};
  });
  network.visit_state(visitor);
  return arrays;
}
template <class T>
Parameters<T> parameters(Network<T>& network) {
  return lower_arrays(network, ".value");
}

/// Writes parameters back.
template <class T>
void set_parameters(Network<T>& network, const Parameters<T>& values) {
  ArrayVisitor<T> visitor([&](const std::string& name, std::span<T> place) {
    if (const auto found = values.find(name); found != values.end()) {
      std::copy(found->second.begin(), found->second.end(), place.begin());
    }
  });
  network.visit_state(visitor);
}

template <class T>
double norm(const Parameters<T>& a) {
  double sum = 0;
  for (const auto& [name, values] : a) {
    for (const T value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  }
  return std::sqrt(sum);
}
/// α a + β b.
template <class T>
Parameters<T> combination(double alpha, const Parameters<T>& a, double beta, const Parameters<T>& b) {
  auto result = a;
  for (auto& [name, values] : result) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<T>(alpha * static_cast<double>(values[i]) + beta * static_cast<double>(b.at(name)[i]));
    }
  }
  return result;
}

/// The gradient that the network computes, as an SGD step of rate 1 shows it; the network is as before.
template <class T>
Parameters<T> gradient_of(Network<T>& network, const Batch<T>& batch) {
  const auto before = parameters(network);
  step(network, batch, 1, 0);
  const auto after = parameters(network);
  set_parameters(network, before);
  return combination(1, before, -1, after);
}

}  // namespace widehead::test
