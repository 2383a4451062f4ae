#pragma once
/// The heads that the head-generic tests run on. A new head joins all of them by one line here.

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "widehead/device.h"
#include "widehead/heads.h"

namespace widehead::test {

enum class Dtype { f32, f64 };

/// Calls body.operator()<float>() or <double>().
template <class Body>
void with_dtype(Dtype dtype, const Body& body) {
  if (dtype == Dtype::f32) {
    body.template operator()<float>();
  } else {
    body.template operator()<double>();
  }
}
inline std::string name_of(Dtype dtype) { return dtype == Dtype::f32 ? "f32" : "f64"; }

struct HeadCase {
  std::string label;
  HeadOptions options;     ///< D and d are the test's to fill in
  bool inverts_U = false;  ///< there are steps without an inverse, which it must refuse
  bool allows_weight_decay = true;
  bool exists_in_float = true;
  bool keeps_Q_symmetric = true;  ///< to the last bit; the paper's text as it stands does not
  Dtype dtype = Dtype::f64;
  std::string device = "cpu";
};
inline void PrintTo(const HeadCase& head, std::ostream* out) { *out << head.label << "_" << name_of(head.dtype); }

/// A factored head whose stabiliser has work to do within a few steps.
inline HeadOptions factored_options(Inverse inverse, Stabilize kind) {
  HeadOptions options;
  options.head = "factored";
  options.factored.inverse = inverse;
  options.factored.refresh_every = 3;
  options.factored.stabilizer = {.kind = kind, .sigma_low = 0.6, .sigma_high = 1.6, .n_check = 5};
  return options;
}

inline HeadOptions options_of(const std::string& head) {
  HeadOptions options;
  options.head = head;
  return options;
}

/// Each head once, the factored one with each Inverse.
inline std::vector<HeadCase> plain_heads() {
  std::vector<HeadCase> heads;
  heads.push_back({.label = "dense", .options = options_of("dense")});
  for (const auto& [name, inverse] : inverse_names()) {
    heads.push_back({.label = "factored_" + std::string(name),
                     .options = factored_options(inverse, Stabilize::power),
                     .inverts_U = true});
  }
  heads.push_back({.label = "windowed", .options = options_of("windowed")});
  auto reference = factored_options(Inverse::woodbury, Stabilize::svd);
  reference.head = "reference";
  heads.push_back({.label = "reference",
                   .options = reference,
                   .inverts_U = true,
                   .allows_weight_decay = false,
                   .exists_in_float = false,
                   .keeps_Q_symmetric = false});
  return heads;
}

/// The plain heads but for the reference, which is slow and allocates as it likes.
inline std::vector<HeadCase> fast_heads() {
  auto heads = plain_heads();
  std::erase_if(heads, [](const HeadCase& head) { return head.label == "reference"; });
  return heads;
}

/// A windowed head that closes a window at almost every step, and so gets to the bottom of its timeline.
inline HeadOptions windowed_options(double absorb_limit, double deflate_below, int radix) {
  auto options = options_of("windowed");
  options.windowed.window = 3;
  options.windowed.absorb_limit = absorb_limit;
  options.windowed.deflation.below = deflate_below;
  options.windowed.deflation.probes = 2;
  options.windowed.timeline = {.panel_rank = 2, .radix = radix};
  return options;
}

/// The plain heads, the factored one with every pair of Inverse and Stabilize, and the windowed one by
/// each way of closing, and of keeping its timeline.
inline std::vector<HeadCase> all_heads() {
  auto heads = plain_heads();
  heads.push_back({.label = "windowed_absorb", .options = windowed_options(1e6, 0, 4)});
  heads.push_back({.label = "windowed_deflate", .options = windowed_options(1e6, 0.9, 3)});
  heads.push_back({.label = "windowed_flip", .options = windowed_options(1, 0.2, 2)});
  heads.push_back({.label = "windowed_mixed", .options = windowed_options(1.3, 0.9, 2)});
  heads.push_back({.label = "windowed_products", .options = windowed_options(1, 0.2, 2)});  // as on a GPU
  heads.back().options.windowed.timeline.keeps_products = true;
  for (const auto& [inverse_name, inverse] : inverse_names()) {
    for (const auto& [kind_name, kind] : stabilize_names()) {
      if (kind == Stabilize::power) continue;  // among the plain ones
      heads.push_back({.label = "factored_" + std::string(inverse_name) + "_" + std::string(kind_name),
                       .options = factored_options(inverse, kind),
                       .inverts_U = true});
    }
  }
  return heads;
}

/// What a GPU keeps in other places than the host does, for tests of many small steps, which take long there: the plain
/// heads, and the windowed one in a hurry.
inline std::vector<HeadCase> heads_on_gpu() {
  auto heads = fast_heads();
  heads.push_back({.label = "windowed_flip", .options = windowed_options(1, 0.2, 2)});
  return heads;
}

/// The given heads in the precisions they exist in, and on the first GPU where there is one: there the same or others.
inline std::vector<HeadCase> in_each_dtype(const std::vector<HeadCase>& heads, const std::vector<HeadCase>& on_gpu) {
  std::vector<HeadCase> cases;
  for (const std::string device : {"cpu", "cuda"}) {
    if (device == "cuda" && cuda_devices() == 0) continue;
    for (auto head : device == "cpu" ? heads : on_gpu) {
      if (device == "cuda" && head.options.head == "reference") continue;
      for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
        if (dtype == Dtype::f32 && !head.exists_in_float) continue;
        head.dtype = dtype;
        head.device = device;
        cases.push_back(head);
      }
    }
  }
  return cases;
}
inline std::vector<HeadCase> in_each_dtype(const std::vector<HeadCase>& heads) { return in_each_dtype(heads, heads); }

/// For INSTANTIATE_TEST_SUITE_P.
inline std::string case_name(const testing::TestParamInfo<HeadCase>& info) {
  return info.param.label + "_" + name_of(info.param.dtype) + (info.param.device == "cpu" ? "" : "_Cuda");
}

/// TEST_P(…) { run([&]<class T>() { … }); }
class HeadTest : public testing::TestWithParam<HeadCase> {
 protected:
  template <class Body>
  void run(const Body& body) {
    with_dtype(GetParam().dtype, body);
  }
  /// Weight decays that the head takes.
  std::vector<double> weight_decays() const {
    return GetParam().allows_weight_decay ? std::vector<double>{0, 0.1} : std::vector<double>{0};
  }
};

/// A device's backend is made once: that takes longer than most tests.
template <class T>
std::shared_ptr<Backend<T>> backend_of(const std::string& device, int threads) {
  if (device == "cpu") return make_cpu_backend<T>(threads);
  static const auto backend = make_backend<T>(device);
  return backend;
}

template <class T>
std::unique_ptr<OutputLayer<T>> make_layer(const HeadCase& head, LayerOptions layer, int threads = 1) {
  auto options = head.options;
  options.layer = std::move(layer);
  return make_head<T>(options, backend_of<T>(head.device, threads));
}

}  // namespace widehead::test
