#pragma once
/// The softmax heads beside their definitions.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "compare.h"
#include "cross_entropy_oracle.h"
#include "heads_under_test.h"
#include "tolerance.h"

namespace widehead::test {

struct SoftmaxCase {
  std::string head;
  Dtype dtype = Dtype::f64;
  int threads = 1;
  std::string device = "cpu";
};
inline void PrintTo(const SoftmaxCase& c, std::ostream* out) {
  *out << c.head << "_" << name_of(c.dtype) << " on " << c.device;
}

inline std::vector<SoftmaxCase> softmax_cases() {
  std::vector<SoftmaxCase> cases;
  for (const auto* head : {"softmax", "hierarchical", "sampled"}) {
    for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
      for (const int threads : {1, 2}) cases.push_back({head, dtype, threads});
    }
  }
  if (cuda_devices() == 0) return cases;
  for (const auto* head : {"softmax", "hierarchical"}) {  // those that exist there
    for (const Dtype dtype : {Dtype::f32, Dtype::f64}) cases.push_back({head, dtype, 1, "cuda"});
  }
  return cases;
}

/// TEST_P(…) { run([&]<class T>() { … }); }
class SoftmaxHeadTest : public testing::TestWithParam<SoftmaxCase> {
 protected:
  template <class Body>
  void run(const Body& body) {
    with_dtype(GetParam().dtype, body);
  }
  bool is(const char* head) const { return GetParam().head == head; }
};
inline std::string softmax_case_name(const testing::TestParamInfo<SoftmaxCase>& info) {
  const auto where = info.param.device == "cpu" ? fmt::format("{}threads", info.param.threads) : "Cuda";
  return fmt::format("{}_{}_{}", info.param.head, name_of(info.param.dtype), where);
}

inline HeadOptions small_options(const std::string& head, LayerOptions layer) {
  auto options = options_of(head);
  options.layer = std::move(layer);
  options.sampled.samples = 6;
  return options;
}

template <class T>
std::unique_ptr<OutputLayer<T>> make_softmax_layer(const SoftmaxCase& c, LayerOptions layer) {
  return make_head<T>(small_options(c.head, std::move(layer)), backend_of<T>(c.device, c.threads));
}

/// E(i) by its definition: the probability that n draws meet output i. What cancels is in long double.
inline std::vector<double> expected_counts(Size D, Size draws) {
  std::vector<double> counts;
  for (Size i = 0; i < D; ++i) {
    const long double p = std::log(static_cast<long double>(i + 2) / static_cast<long double>(i + 1)) /
                          std::log(static_cast<long double>(D + 1));
    counts.push_back(static_cast<double>(1 - std::pow(1 - std::min(p, 1.0L), static_cast<long double>(draws))));
  }
  return counts;
}

/// The definition, with the state of a layer.
template <class T>
CrossEntropyOracle oracle_of(OutputLayer<T>& layer) {
  CrossEntropyOracle oracle(to_double(layer.weights()), layer.options().weight_decay);
  if (auto* hierarchical = dynamic_cast<HierarchicalLayer<T>*>(&layer)) {
    std::vector<Size> starts;
    for (Size c = 0; c <= hierarchical->classes().count(); ++c) starts.push_back(hierarchical->classes().first(c));
    oracle.set_classes(starts, to_double<T>(hierarchical->class_weights()));
  }
  return oracle;
}

/// Where a head samples, gives the oracle the sample of the layer's next step.
template <class T>
void share_sample(OutputLayer<T>& layer, CrossEntropyOracle& oracle) {
  if (const auto* sampled = dynamic_cast<SampledSoftmaxLayer<T>*>(&layer)) {
    std::vector<Index> sample;
    sampled->sampler().draw(layer.steps(), sample);
    oracle.set_sample(sample, expected_counts(layer.outputs(), sampled->sampler().draws()));
  }
}

/// A layer and the oracle, which start from the same weights and take the same steps.
template <class T>
class BesideDefinition {
 public:
  BesideDefinition(const SoftmaxCase& c, const LayerOptions& options)
      : layer(make_softmax_layer<T>(c, options)), oracle(oracle_of<T>(*layer)) {}

  void step(const Minibatch& minibatch, double eta) {
    share_sample<T>(*layer, oracle);
    const TypedMinibatch<T> typed(minibatch);
    Padded<T> grad_H(minibatch.H.rows(), minibatch.H.cols());
    const double loss = layer->step(typed.H, typed.targets(), eta, grad_H);
    largest_W_ = std::max({largest_W_, norm(oracle.W), norm(oracle.A)});
    const auto truth = oracle.step(minibatch, eta);
    // p is as exact as the logits, which are at most ‖W‖‖h‖, and W moves by η Σwy ‖h‖ at most.
    const double logits = 1 + largest_W_ * norm(minibatch.H);
    EXPECT_TRUE(is_near(loss, truth.loss, limit(), truth.mass * logits)) << "loss of step " << layer->steps();
    EXPECT_TRUE(is_near<T>(grad_H, truth.grad_H, limit(), truth.mass * logits * largest_W_)) << "∇H";
    EXPECT_TRUE(grad_H.rim_is_intact());
    largest_move_ = std::max(largest_move_, eta * truth.mass * logits * norm(minibatch.H));
  }
  void compare_state() {
    const double scale = largest_W_ + largest_move_;
    EXPECT_TRUE(is_near<T>(layer->weights(), oracle.W, limit(), scale)) << "W";
    const auto A = oracle_of<T>(*layer).A;
    EXPECT_TRUE(is_near<double>(A, oracle.A, limit(), scale)) << "the weights of the classes";
  }

  std::unique_ptr<OutputLayer<T>> layer;
  CrossEntropyOracle oracle;

 private:
  double limit() const { return tolerance::layer<T>(layer->steps()) + tolerance::product<T>(layer->dim()); }
  double largest_W_ = 0, largest_move_ = 0;
};

}  // namespace widehead::test
