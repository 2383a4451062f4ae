/// Losses that are refused, and their layers as before.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "compare.h"
#include "errors.h"
#include "heads_under_test.h"
#include "loss_oracle.h"
#include "losses_under_test.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

INSTANTIATE_TEST_SUITE_P(All, HeadTest, testing::ValuesIn(heads_with_losses()), case_name);

/// A loss of the user's that can be told to misbehave at the example with the most targets.
struct Unruly {
  std::function<void(LossValue&, std::span<double>)> mischief;
};

/// Twin layers with such a loss: one is provoked, and then both must go on alike.
template <class T>
class Twins {
 public:
  explicit Twins(const HeadCase& head, bool declared = true) {
    for (std::size_t k = 0; k < 2; ++k) {
      const auto honest = own_loss().function;
      const auto function = [honest, declared, unruly = unruly_[k]](LossInput x, std::span<double> g) {
        if (!declared) x.s = 0;
        auto value = honest(x, g);
        if (unruly->mischief && x.o.size() > 1) unruly->mischief(value, g);
        return value;
      };
      LayerOptions options{.outputs = 20, .dim = 4, .initial = Initial::normal};
      options.loss = CustomLoss{.function = function, .uses_sum = declared, .name = "unruly"};
      layers_[k] = make_layer<T>(head, options);
    }
    for (int t = 0; t < 7; ++t) go_on();
  }

  template <class Error>
  void expect_refused(const std::vector<std::string>& words,
                      const std::function<void(LossValue&, std::span<double>)>& mischief) {
    auto minibatch = make_minibatch(dice_, {20, 4, 3, 3});
    minibatch.indices = {1, 1, 1, 4, 7, 9, 2, 2, 2};  // the example in the middle is provoked, the third has one target
    const TypedMinibatch<T> typed(minibatch);
    for (const bool step : {true, false}) {
      unruly_[0]->mischief = mischief;
      const auto provoke = [&] {
        if (step) {
          layers_[0]->step(typed.H, typed.targets(), 0.01);
        } else {
          layers_[0]->evaluate(typed.H, typed.targets());
        }
      };
      expect_throw<Error>(provoke, words);
      unruly_[0]->mischief = nullptr;
      compare();
      go_on();
      compare();
    }
  }

 private:
  void compare() {
    EXPECT_TRUE(is_identical<T>(layers_[0]->weights(), layers_[1]->weights())) << "W";
    EXPECT_TRUE(is_identical<T>(layers_[0]->gram(), layers_[1]->gram())) << "Q";
    EXPECT_TRUE(is_identical<T>(layers_[0]->sum_of_rows(), layers_[1]->sum_of_rows())) << "w̄";
    EXPECT_EQ(layers_[0]->steps(), layers_[1]->steps());
  }
  void go_on() {
    const TypedMinibatch<T> typed(make_minibatch(dice_, {20, 4, dice_.between(1, 5), 3, true}));
    Matrix<T> a(4, typed.H.cols()), b(4, typed.H.cols());
    EXPECT_EQ(layers_[0]->step(typed.H, typed.targets(), 0.02, a), layers_[1]->step(typed.H, typed.targets(), 0.02, b));
    EXPECT_TRUE(is_identical<T>(a, b)) << "∇H";
  }

  Dice dice_{79};
  std::array<std::shared_ptr<Unruly>, 2> unruly_{std::make_shared<Unruly>(), std::make_shared<Unruly>()};
  std::array<std::unique_ptr<OutputLayer<T>>, 2> layers_;
};

TEST_P(HeadTest, RefusesALossThatUsesTheSumAgainstItsDeclaration) {
  run([&]<class T>() {
    Twins<T> twins(GetParam(), false);
    twins.template expect_refused<std::invalid_argument>({"unruly", "∂L/∂s = 0.5", "example 1", "not to use the sum"},
                                                         [](LossValue& value, std::span<double>) { value.b = 0.5; });
  });
}

TEST_P(HeadTest, RefusesALossThatIsNotFinite) {
  run([&]<class T>() {
    Twins<T> twins(GetParam());
    for (const double bad : {double(NAN), double(INFINITY), -double(INFINITY)}) {
      const auto refuse = [&](const std::function<void(LossValue&, std::span<double>)>& mischief) {
        twins.template expect_refused<NumericalError>({"example 1", "not taken"}, mischief);
      };
      refuse([bad](LossValue& value, std::span<double>) { value.L = bad; });
      refuse([bad](LossValue& value, std::span<double>) { value.a = bad; });
      refuse([bad](LossValue& value, std::span<double>) { value.b = bad; });
      for (const std::size_t k : {0U, 2U}) refuse([bad, k](LossValue&, std::span<double> g) { g[k] = bad; });
      refuse([bad](LossValue& value, std::span<double> g) { value.L = bad, value.a = -bad, g[1] = bad; });
    }
    if (sizeof(T) == 4) {  // finite, but not in float
      const auto refuse = [&](const std::function<void(LossValue&, std::span<double>)>& mischief) {
        twins.template expect_refused<NumericalError>({"example 1"}, mischief);
      };
      refuse([](LossValue& value, std::span<double>) { value.a = 1e100; });
      refuse([](LossValue& value, std::span<double>) { value.b = -1e100; });
      refuse([](LossValue&, std::span<double> g) { g[1] = 1e100; });
      refuse([](LossValue&, std::span<double> g) { g[0] = 1e100, g[2] = -1e100; });  // that cancel in Σg
    }
  });
}

TEST_P(HeadTest, IsAsBeforeWhenALossThrows) {
  run([&]<class T>() {
    Twins<T> twins(GetParam());
    twins.template expect_refused<std::domain_error>(
        {"enough"}, [](LossValue&, std::span<double>) { throw std::domain_error("enough"); });
  });
}

TEST_P(HeadTest, RefusesALossWhoseParametersMakeNoSense) {
  run([&]<class T>() {
    const auto refuse = [&](const Loss& loss, const std::string& word) {
      LayerOptions options{.outputs = 20, .dim = 4};
      options.loss = loss;
      expect_throw<std::invalid_argument>([&] { make_layer<T>(GetParam(), options); }, {name_of(loss), word});
    };
    refuse(SphericalSoftmax{0}, "epsilon = 0");
    refuse(WeightedSquaredError{-1, 1}, "unobserved");
    refuse(ZLoss{.scale = NAN}, "scale");
    refuse(CustomLoss{}, "no function");
  });
}

TEST(ReferenceLayerLossTest, KnowsTheSquaredErrorOnly) {
  for (const auto& loss : losses_under_test()) {
    auto options = options_of("reference");
    options.layer.outputs = 20;
    options.layer.dim = 4;
    options.layer.loss = loss.loss;
    const auto make = [&] { make_head<double>(options, make_cpu_backend<double>(1)); };
    if (std::holds_alternative<SquaredError>(loss.loss)) {
      EXPECT_NO_THROW(make());
    } else {
      expect_throw<std::invalid_argument>(make, {"reference", name_of(loss.loss), "squared error"});
    }
  }
}

}  // namespace
}  // namespace widehead::test
