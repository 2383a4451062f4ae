/// What a step refuses. Whatever it throws, the layer is as before, to the last bit.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compare.h"
#include "errors.h"
#include "heads_under_test.h"
#include "oracle.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Plain, HeadTest, testing::ValuesIn(in_each_dtype(plain_heads())), case_name);

constexpr Size D = 20, d = 4;

/// Twin layers after the same steps: one is offered what it must refuse, and then both must go on alike.
template <class T>
class Twins {
 public:
  explicit Twins(const HeadCase& head, double weight_decay = 0, int steps = 4)
      : a(make_layer<T>(head, {.outputs = D, .dim = d, .weight_decay = weight_decay, .initial = Initial::normal})),
        b(make_layer<T>(head, {.outputs = D, .dim = d, .weight_decay = weight_decay, .initial = Initial::normal})) {
    for (int t = 0; t < steps; ++t) go_on();
  }

  template <class Error, class Action>
  void expect_refused(const std::vector<std::string>& words, const Action& action) {
    expect_throw<Error>(action, words);
    compare();
    go_on();
    compare();
  }

  std::unique_ptr<OutputLayer<T>> a, b;

 private:
  void compare() {
    EXPECT_TRUE(is_identical<T>(a->weights(), b->weights())) << "W";
    EXPECT_TRUE(is_identical<T>(a->gram(), b->gram())) << "Q";
    EXPECT_EQ(a->steps(), b->steps());
  }
  /// One more step of both, with the same result.
  void go_on() {
    const auto minibatch = make_minibatch(dice_, {D, d, dice_.between(1, 5), 2, true});
    const TypedMinibatch<T> typed(minibatch);
    const double eta = eta_for(minibatch, 0.2);
    Matrix<T> grad_a(d, minibatch.examples()), grad_b(d, minibatch.examples());
    EXPECT_EQ(a->step(typed.H, typed.targets(), eta, grad_a), b->step(typed.H, typed.targets(), eta, grad_b));
    EXPECT_TRUE(is_identical<T>(grad_a, grad_b));
  }
  Dice dice_{61};
};

template <class T>
struct Good : TypedMinibatch<T> {
  explicit Good(Size m = 3)
      : TypedMinibatch<T>([m] {
          Dice dice(62);
          return make_minibatch(dice, {D, d, m, 2});
        }()) {}
};

TEST_P(HeadTest, RefusesHiddenVectorsThatAreNotFinite) {
  run([&]<class T>() {
    using Limits = std::numeric_limits<T>;
    Twins<T> twins(GetParam());
    for (const T bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
      Good<T> good;
      good.H(1, 2) = bad;
      const std::vector<std::string> words{fmt::format("H(1, 2) = {}", bad), "unit 1 of example 2"};
      twins.template expect_refused<std::invalid_argument>(words, [&] { twins.a->step(good.H, good.targets(), 0.01); });
      twins.template expect_refused<std::invalid_argument>(words, [&] { twins.a->evaluate(good.H, good.targets()); });
      twins.template expect_refused<std::invalid_argument>(words, [&] { twins.a->top_k(good.H, 2); });
      const std::vector<Index> rows{1};
      twins.template expect_refused<std::invalid_argument>(words,
                                                           [&] { twins.a->scores(good.H, rows, Matrix<T>(1, 3)); });
    }
  });
}

TEST_P(HeadTest, RefusesHiddenVectorsOfTheWrongShape) {
  run([&]<class T>() {
    Twins<T> twins(GetParam());
    const Good<T> good;
    auto H = Dice(1).matrix<T>(d + 1, 3);
    const auto refuse = [&](const std::string& text, MatrixView<const T> view) {
      twins.template expect_refused<std::invalid_argument>({text, "d = 4"},
                                                           [&] { twins.a->step(view, good.targets(), 0.01); });
    };
    refuse("5 x 3", H);
    refuse("4 x 0", H.view().block(0, 0, d, 0));
    refuse("stride 2", MatrixView<const T>(H.data(), d, 3, 2));
    refuse("0 x 0", MatrixView<const T>());
  });
}

TEST_P(HeadTest, RefusesTargetsAndGradientsThatDoNotFit) {
  run([&]<class T>() {
    Twins<T> twins(GetParam());
    const Good<T> good, other(4);
    const auto refuse = [&](const std::vector<std::string>& words, const auto& action) {
      twins.template expect_refused<std::invalid_argument>(words, action);
    };
    const std::vector<std::int64_t> offsets{0, 0, 0, 0};
    const SparseBatch<T> wider(D + 1, offsets, {}, {});
    refuse({"D = 21", "D = 20"}, [&] { twins.a->step(good.H, wider, 0.01); });
    refuse({"4 targets", "3 examples"}, [&] { twins.a->step(good.H, other.targets(), 0.01); });
    auto room = Dice(1).matrix<T>(d + 1, 4);
    for (const auto& [view, text] : {std::pair{room.view().block(0, 0, d + 1, 3), "5 x 3"},
                                     {room.view().block(0, 0, d, 4), "4 x 4"},
                                     {MatrixView<T>(room.data(), d, 3, 3), "stride 3"}}) {
      refuse({text}, [&, grad_H = view] { twins.a->step(good.H, good.targets(), 0.01, grad_H); });
      refuse({text}, [&, grad_H = view] { twins.a->evaluate(good.H, good.targets(), grad_H); });
    }
  });
}

TEST_P(HeadTest, RefusesALearningRateThatIsNegativeOrNotFinite) {
  run([&]<class T>() {
    Twins<T> twins(GetParam());
    const Good<T> good;
    std::vector<std::pair<double, std::string>> bad{{-0.5, "eta = -0.5"}, {NAN, "eta = nan"}, {INFINITY, "eta = inf"}};
    if (GetParam().dtype == Dtype::f32) bad.emplace_back(1e300, "eta = 1e+300");  // too large for a float
    for (const auto& [eta, text] : bad) {
      twins.template expect_refused<std::invalid_argument>(
          {text}, [&, rate = eta] { twins.a->step(good.H, good.targets(), rate); });
    }
  });
}

class WeightDecayTest : public HeadTest {};
std::vector<HeadCase> heads_with_weight_decay() {
  auto heads = plain_heads();
  std::erase_if(heads, [](const HeadCase& head) { return !head.allows_weight_decay; });
  return in_each_dtype(heads);
}
INSTANTIATE_TEST_SUITE_P(Plain, WeightDecayTest, testing::ValuesIn(heads_with_weight_decay()), case_name);

TEST_P(WeightDecayTest, RefusesAWeightDecayThatWouldTurnWAround) {
  run([&]<class T>() {
    Twins<T> twins(GetParam(), 0.5);
    Good<T> good;
    for (Size i = 0; i < good.H.size(); ++i) good.H.data()[i] *= T(0.01);
    const auto step = [&](double eta) { return [&, eta] { twins.a->step(good.H, good.targets(), eta); }; };
    twins.template expect_refused<std::invalid_argument>({"2 · 0.5 = 1"}, step(2));
    twins.template expect_refused<std::invalid_argument>({"3 · 0.5 = 1.5"}, step(3));
    // Less than 1 in double, but 1 in float, where c = 1 − ηλ is computed: U would be 0 and U⁻¹ infinite.
    if (GetParam().dtype == Dtype::f32) {
      twins.template expect_refused<std::invalid_argument>({"1.99999999", "0.5"}, step(2 * (1 - 1e-9)));
    }
  });
}

// ── steps that do not exist ─────────────────────────────────────────────────────────────────────

/// H with 2η‖H‖₂² = 1 for η = 1/2, so that I − 2ηHHᵀ is singular: m columns, all along one direction.
template <class T>
Matrix<T> singular_H(Size m, bool exactly) {
  Matrix<T> H(d, m);
  for (Size j = 0; j < m; ++j) {
    // (1, 0, 0, 0)/√m with m a square is exact; (.6, .8, 0, 0)/√m is off by roundings
    const double length = 1 / std::sqrt(static_cast<double>(m));
    H(0, j) = static_cast<T>(exactly ? length : 0.6 * length);
    H(1, j) = static_cast<T>(exactly ? 0 : 0.8 * length);
  }
  return H;
}

TEST_P(HeadTest, RefusesAStepAfterWhichUHasNoInverseAndOnlyThat) {
  run([&]<class T>() {
    for (const Size m : {1, 4}) {
      for (const bool exactly : {true, false}) {
        SCOPED_TRACE(fmt::format("m = {}, {}", m, exactly ? "exactly singular" : "singular but for roundings"));
        Twins<T> twins(GetParam());
        const Good<T> good(m);
        const auto H = singular_H<T>(m, exactly);
        if (GetParam().inverts_U) {
          twins.template expect_refused<NumericalError>({"singular", "eta = 0.5"},
                                                        [&] { twins.a->step(H, good.targets(), 0.5); });
          EXPECT_NO_THROW(twins.a->step(H, good.targets(), 0.45)) << "any other eta will do";
        } else {
          EXPECT_NO_THROW(twins.a->step(H, good.targets(), 0.5)) << "this head does not invert U";
          EXPECT_TRUE(all_finite<T>(twins.a->weights()));
        }
      }
    }
  });
}

// ── runs that diverge ───────────────────────────────────────────────────────────────────────────

/// A step either is taken, and the layer goes on, or is refused, and the layer is as before.
template <class T>
void expect_sound_step(OutputLayer<T>& layer, ConstView<T> H, const SparseBatch<T>& targets, double eta,
                       bool& refused) {
  const auto W = layer.weights(), Q = layer.gram();
  try {
    const double loss = layer.step(H, targets, eta);
    EXPECT_TRUE(std::isfinite(loss)) << "the loss of a step that was taken is " << loss;
    EXPECT_TRUE(all_finite<T>(layer.weights())) << "W is not finite after a step that was taken";
    // h = 0 has the loss 0 whatever W is, unless the state is broken.
    const std::vector<std::int64_t> offsets{0, 0};
    EXPECT_EQ(layer.evaluate(Matrix<T>(layer.dim(), 1), SparseBatch<T>(layer.outputs(), offsets, {}, {})), 0)
        << "the layer is broken after a step that was taken";
  } catch (const NumericalError& error) {
    refused = true;
    EXPECT_NE(std::string(error.what()).find("eta = "), std::string::npos) << error.what();
    EXPECT_TRUE(is_identical<T>(layer.weights(), W)) << error.what();
    EXPECT_TRUE(is_identical<T>(layer.gram(), Q)) << error.what();
  }
}

TEST_P(HeadTest, RefusesToOverflowWhenTheRunDiverges) {
  run([&]<class T>() {
    for (const double lambda : {30.0, 1e4, 1e8}) {
      SCOPED_TRACE(fmt::format("λ₁ = {}", lambda));
      const auto layer = make_layer<T>(GetParam(), {.outputs = D, .dim = d, .initial = Initial::normal});
      Dice dice(63);
      bool refused = false;
      for (int t = 0; t < 400 && !refused && !testing::Test::HasFailure(); ++t) {
        const auto minibatch = make_minibatch(dice, {D, d, 3, 2});
        const TypedMinibatch<T> typed(minibatch);
        expect_sound_step<T>(*layer, typed.H, typed.targets(), eta_for(minibatch, 1e-8) * 1e8 * lambda, refused);
      }
      EXPECT_TRUE(refused || testing::Test::HasFailure()) << "the run did not diverge: the test has no power";
    }
  });
}

TEST_P(HeadTest, RefusesOneStepThatWouldOverflow) {
  run([&]<class T>() {
    const double huge = std::sqrt(static_cast<double>(std::numeric_limits<T>::max()));
    struct Case {
      const char* what;
      double h, y, eta, weight;
      bool must_refuse = true;
    };
    for (const auto& [what, h, y, eta, weight, must_refuse] :
         {Case{"a target whose square overflows and that makes W overflow", 1, huge * 1e3, huge, 1},
          Case{"hidden vectors whose squares overflow", huge * 10, 1, 1, 1},
          Case{"a weight that makes the target infinite", 1, huge * huge / 1e3, 1e-3, huge},
          Case{"Q = WᵀW overflows, W does not", 1e-3, huge * 1e-4, 1e8, 1, false},
          Case{"a learning rate at the end of the range", 1, 1, huge * huge / 10, 1, false}}) {
      for (const Size m : {1, 3}) {
        SCOPED_TRACE(fmt::format("{}, m = {}", what, m));
        const auto layer = make_layer<T>(GetParam(), {.outputs = D, .dim = d, .initial = Initial::normal});
        Dice dice(64);
        auto minibatch = make_minibatch(dice, {D, d, m, 1});
        for (Size i = 0; i < minibatch.H.size(); ++i) minibatch.H.data()[i] *= h;
        for (auto& value : minibatch.values) value = y;
        minibatch.weights.assign(static_cast<std::size_t>(m), weight);
        const TypedMinibatch<T> typed(minibatch);
        bool refused = false;
        expect_sound_step<T>(*layer, typed.H, typed.targets(), eta, refused);
        if (must_refuse) {
          EXPECT_TRUE(refused);
        }
      }
    }
  });
}

}  // namespace
}  // namespace widehead::test
