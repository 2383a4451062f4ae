/// Backend: what is below the output layer.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backend_under_test.h"
#include "compare.h"
#include "oracle.h"
#include "tolerance.h"

namespace widehead::test {
namespace {

WIDEHEAD_ON_ALL_BACKENDS;

struct Shape {
  Size rows, cols;
};
/// The last is large enough for threads, which share out its columns, or its rows.
const std::vector<Shape> shapes = {{0, 0}, {3, 0}, {1, 1}, {1, 9}, {17, 1}, {33, 5}, {301, 257}};

double definition(Activation s, double x) {
  switch (s) {
    case Activation::relu: return std::max(0.0, x);
    case Activation::tanh: return std::tanh(x);
    case Activation::sigmoid: return 1 / (1 + std::exp(-x));
    case Activation::identity: break;
  }
  return x;
}
double slope_of_definition(Activation s, double x) {
  const double y = definition(s, x);
  switch (s) {
    case Activation::relu: return x > 0 ? 1 : 0;
    case Activation::tanh: return 1 - y * y;
    case Activation::sigmoid: return y * (1 - y);
    case Activation::identity: break;
  }
  return 1;
}

/// Calls check(s, A, b) for every activation and shape.
template <class T, class Check>
void for_each_activation(const Check& check) {
  Dice dice(51);
  for (const auto& [name, s] : activation_names()) {
    for (const auto& [rows, cols] : shapes) {
      SCOPED_TRACE(fmt::format("{}, {} x {}", name, rows, cols));
      check(s, dice.matrix<T>(rows, cols), dice.matrix<T>(rows, 1));
    }
  }
}

TEST_P(BackendTest, ActivateAddsTheBiasAndAppliesTheFunction) {
  run([]<class T>(Backend<T>& backend) {
    for_each_activation<T>([&](Activation s, const Matrix<T>& A, const Matrix<T>& b) {
      for (const bool with_bias : {true, false}) {
        auto truth = to_double(A);
        for (Size j = 0; j < A.cols(); ++j) {
          for (Size i = 0; i < A.rows(); ++i) {
            truth(i, j) = definition(s, truth(i, j) + (with_bias ? static_cast<double>(b(i, 0)) : 0));
          }
        }
        Both<T> view(backend, A), bias(backend, b);
        backend.activate(s, with_bias ? bias.device() : MatrixView<T>(), view.device());
        // A few roundings for each element, of numbers that are at most |a| + |b| or 1.
        EXPECT_TRUE(is_near<T>(view.host(), truth, 8 * tolerance::epsilon<T>, norm(A) + norm(truth)));
        EXPECT_TRUE(view.rim_is_intact());
      }
    });
  });
}

TEST_P(BackendTest, ActivateIsRightAtItsEnds) {
  run([]<class T>(Backend<T>& backend) {
    const T tiny = std::numeric_limits<T>::min(), small = T(1e-4), huge = std::numeric_limits<T>::max(),
            infinite = std::numeric_limits<T>::infinity();
    const std::vector<T> arguments = {0,       -T(0),   tiny, -tiny, small,    -small,   T(0.3),
                                      -T(0.3), 1,       -1,   T(9),  -T(9),    T(50),    -T(50),
                                      T(800),  -T(800), huge, -huge, infinite, -infinite};
    for (const auto& [name, s] : activation_names()) {
      Both<T> A(backend, std::span<const T>(arguments));
      backend.activate(s, {}, A.device());
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        SCOPED_TRACE(fmt::format("{}({})", name, arguments[i]));
        const double truth = definition(s, static_cast<double>(arguments[i]));
        if (std::isinf(truth)) {
          EXPECT_EQ(static_cast<double>(A(static_cast<Size>(i), 0)), truth);
        } else {
          EXPECT_NEAR(static_cast<double>(A(static_cast<Size>(i), 0)), truth,
                      4 * tolerance::epsilon<T> * std::max(1.0, std::abs(truth)));
        }
      }
      EXPECT_EQ(A(0, 0), static_cast<T>(definition(s, 0))) << name;
    }
  });
}

TEST_P(BackendTest, ActivateKeepsTheSignOfTanhAndTheRangeOfSigmoid) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(52);
    const auto X = dice.matrix<T>(600, 1);
    Both<T> A(backend, X), B(backend, X);
    backend.scale(T(30), A.device());
    backend.activate(Activation::tanh, {}, A.device());
    backend.activate(Activation::sigmoid, {}, B.device());
    for (Size i = 0; i < X.size(); ++i) {
      EXPECT_EQ(std::signbit(A(i, 0)), std::signbit(X(i, 0)));
      EXPECT_LE(std::abs(A(i, 0)), T(1));
      EXPECT_GT(B(i, 0), T(0));
      EXPECT_LT(B(i, 0), T(1));
    }
  });
}

/// Else a run that has gone wrong would look like one whose units are idle.
TEST_P(BackendTest, ActivateLetsNaNThrough) {
  run([]<class T>(Backend<T>& backend) {
    for (const auto& [name, s] : activation_names()) {
      Both<T> A(backend, Matrix<T>(5, 1));
      A.host()(3, 0) = std::numeric_limits<T>::quiet_NaN();
      backend.activate(s, {}, A.device());
      EXPECT_TRUE(std::isnan(A(3, 0))) << name;
      EXPECT_FALSE(std::isnan(A(2, 0))) << name;
    }
  });
}

TEST_P(BackendTest, ActivateBackwardMultipliesByTheSlope) {
  run([]<class T>(Backend<T>& backend) {
    for_each_activation<T>([&](Activation s, const Matrix<T>& X, const Matrix<T>&) {
      const auto gradient = Dice(53).matrix<T>(X.rows(), X.cols());
      auto truth = to_double(gradient);
      for (Size j = 0; j < X.cols(); ++j) {
        for (Size i = 0; i < X.rows(); ++i) truth(i, j) *= slope_of_definition(s, static_cast<double>(X(i, j)));
      }
      Both<T> A(backend, X), G(backend, gradient);
      backend.activate(s, {}, A.device());
      const auto activations = to_double<T>(A.host());
      backend.activate_backward(s, A.device(), G.device());
      EXPECT_TRUE(is_near<T>(G.host(), truth, 8 * tolerance::epsilon<T>, norm(gradient)));
      EXPECT_TRUE(G.rim_is_intact());
      EXPECT_TRUE(is_identical<double>(activations, to_double<T>(A.host())));
    });
  });
}

/// As a layer does it, where a device may do both at once: s(AB + b1ᵀ), and C ∘ s′.
TEST_P(BackendTest, ActivationsAndSlopesFollowProducts) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(54);
    const std::vector<Shape> of_C = {{1, 1}, {5, 33}, {40, 70}, {300, 128}};
    for (const auto& [name, s] : activation_names()) {
      for (const auto& [rows, cols] : of_C) {
        for (const bool bias_comes_late : {false, true}) {
          SCOPED_TRACE(fmt::format("{}, {} x {}, bias comes late: {}", name, rows, cols, bias_comes_late));
          constexpr Size depth = 37;
          const auto A = dice.matrix<T>(rows, depth), B = dice.matrix<T>(depth, cols), b = dice.matrix<T>(rows, 1);
          Both<T> a(backend, A), c(backend, B), source(backend, b), bias(backend, rows, 1), y(backend, rows, cols),
              g(backend, rows, cols);
          if (!bias_comes_late) backend.copy(source.device(), bias.device());
          backend.gemm(Op::none, Op::none, T(1), a.device(), c.device(), T(0), y.device());
          if (bias_comes_late) backend.copy(source.device(), bias.device());
          backend.activate(s, bias.device(), y.device());
          backend.gemm(Op::none, Op::none, T(1), a.device(), c.device(), T(0), g.device());
          backend.activate_backward(s, y.device(), g.device());
          Matrix<double> truth(rows, cols), slopes(rows, cols);
          for (Size j = 0; j < cols; ++j) {
            for (Size i = 0; i < rows; ++i) {
              double x = 0;
              for (Size k = 0; k < depth; ++k) x += static_cast<double>(A(i, k)) * static_cast<double>(B(k, j));
              const double at = x + static_cast<double>(b(i, 0));
              truth(i, j) = definition(s, at);
              // Where relu's argument is 0 but for rounding, either slope will do: the one that was taken.
              const bool on_the_edge = s == Activation::relu && std::abs(at) < 1e-4;
              const double slope = on_the_edge ? (y(i, j) > T(0) ? 1 : 0) : slope_of_definition(s, at);
              slopes(i, j) = x * slope;
            }
          }
          const double tolerance = 64 * tolerance::epsilon<T>, scale = norm(A) * norm(B) + norm(truth);
          EXPECT_TRUE(is_near<T>(y.host(), truth, tolerance, scale));
          EXPECT_TRUE(is_near<T>(g.host(), slopes, tolerance, scale));
          EXPECT_TRUE(y.rim_is_intact() && g.rim_is_intact());
        }
      }
    }
  });
}

TEST_P(BackendTest, SumColumnsOverwritesWithTheSum) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(54);
    for (const auto& [rows, cols] : shapes) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Both<T> A(backend, dice.matrix<T>(rows, cols)), out(backend, rows, 1);
      out.fill(std::numeric_limits<T>::quiet_NaN());
      backend.sum_columns(A.device(), out.device());
      Matrix<double> truth(rows, 1);
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) truth(i, 0) += static_cast<double>(A(i, j));
      }
      const double scale = norm<T>(A.host()) * std::sqrt(static_cast<double>(cols));
      EXPECT_TRUE(is_near<T>(out.host(), truth, tolerance::product<T>(cols), scale));
      EXPECT_TRUE(out.rim_is_intact());
    }
  });
}

/// Adam as its paper writes it, for one parameter.
struct PlainAdam {
  double p, m = 0, s = 0;

  void update(const AdamOptions& options, double eta, std::int64_t t, double g) {
    m = options.beta1 * m + (1 - options.beta1) * g;
    s = options.beta2 * s + (1 - options.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(options.beta1, static_cast<double>(t)));
    const double s_hat = s / (1 - std::pow(options.beta2, static_cast<double>(t)));
    p -= eta * m_hat / (std::sqrt(s_hat) + options.epsilon);
  }
};

/// The columns that an update names, out of more: every third, in descending order.
std::vector<Index> some_columns(Size cols) {
  std::vector<Index> columns;
  for (Size c = cols - 1; c >= 0; c -= 3) columns.push_back(static_cast<Index>(c));
  return columns;
}

TEST_P(BackendTest, AdamIsThatOfThePaper) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(56);
    const AdamOptions options{.beta1 = 0.8, .beta2 = 0.97, .epsilon = 1e-3};
    for (const bool named : {false, true}) {
      for (const auto& [rows, cols] : shapes) {
        SCOPED_TRACE(fmt::format("{} x {}, {}", rows, cols, named ? "some columns" : "all columns"));
        std::vector<Index> columns = some_columns(cols);
        const Size updated = named ? static_cast<Size>(columns.size()) : cols;
        const auto start = dice.matrix<T>(rows, cols);
        Both<T> P(backend, start), M(backend, Matrix<T>(rows, cols)), S(backend, Matrix<T>(rows, cols));
        std::vector<PlainAdam> plain;
        for (Size i = 0; i < start.size(); ++i) plain.push_back({static_cast<double>(start.data()[i])});
        constexpr std::int64_t steps = 6;
        for (std::int64_t t = 1; t <= steps; ++t) {
          const double scale = 1.0 / static_cast<double>(t + 1);
          Both<T> G(backend, dice.matrix<T>(rows, updated));
          backend.adam(AdamStep(options, 0.1, t, scale),
                       named ? std::span<const Index>(columns) : std::span<const Index>(), G.device(), P.device(),
                       M.device(), S.device());
          for (Size k = 0; k < updated; ++k) {
            const Size column = named ? columns[static_cast<std::size_t>(k)] : k;
            for (Size i = 0; i < rows; ++i) {
              plain[static_cast<std::size_t>(column * rows + i)].update(options, 0.1, t,
                                                                        scale * static_cast<double>(G(i, k)));
            }
          }
        }
        Matrix<double> p(rows, cols), m(rows, cols), s(rows, cols);
        for (std::size_t i = 0; i < plain.size(); ++i) {
          p.data()[i] = plain[i].p;
          m.data()[i] = plain[i].m;
          s.data()[i] = plain[i].s;
        }
        EXPECT_TRUE(is_near<T>(P.host(), p, 8 * steps * tolerance::epsilon<T>));
        EXPECT_TRUE(is_near<T>(M.host(), m, 8 * steps * tolerance::epsilon<T>));
        EXPECT_TRUE(is_near<T>(S.host(), s, 8 * steps * tolerance::epsilon<T>));
        EXPECT_TRUE(P.rim_is_intact() && M.rim_is_intact() && S.rim_is_intact());
        for (Size c = 0; named && c < cols; ++c) {
          if (std::find(columns.begin(), columns.end(), static_cast<Index>(c)) != columns.end()) continue;
          EXPECT_TRUE(is_identical<T>(P.host().columns(c, 1), start.view().columns(c, 1))) << "column " << c;
        }
      }
    }
  });
}

TEST_P(BackendTest, AdamWithoutAGradientMovesNothing) {
  run([]<class T>(Backend<T>& backend) {
    const auto start = Dice(57).matrix<T>(5, 3);
    const Matrix<T> zero(5, 3);
    Both<T> G(backend, zero), P(backend, start), M(backend, zero), S(backend, zero);
    backend.adam(AdamStep(AdamOptions{}, 0.1, 1, 1), {}, G.device(), P.device(), M.device(), S.device());
    EXPECT_TRUE(is_identical<T>(P.host(), start));
  });
}

TEST_P(BackendTest, LimitNormShrinksWhatIsTooLongAndNothingElse) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(58);
    for (const auto& [rows, cols] : {std::pair<Size, Size>{0, 3}, {3, 0}, {1, 1}, {33, 17}}) {
      const auto start = dice.matrix<T>(rows, cols);
      for (const auto& [squared, factor] : {std::pair{9.0, 0.5}, {2.25, 1.0}, {1.0, 1.0}, {0.0, 1.0}}) {
        Both<T> A(backend, start);
        Both<double> n(backend, 1, 1);
        n.fill(squared);
        backend.limit_norm(n.device(), 1.5, A.device());
        Matrix<T> truth = Matrix<T>::copy_of(start);
        for (Size i = 0; i < truth.size(); ++i) truth.data()[i] *= static_cast<T>(factor);
        EXPECT_TRUE(is_identical<T>(A.host(), truth)) << squared;
        EXPECT_TRUE(A.rim_is_intact());
      }
    }
    Both<T> A(backend, dice.matrix<T>(4, 4));
    Both<double> n(backend, 1, 1);
    for (const T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()}) {
      A.host()(1, 2) = bad;
      n.fill(static_cast<double>(bad));
      backend.limit_norm(n.device(), 1, A.device());
      EXPECT_FALSE(std::isfinite(A(1, 2))) << "what is not finite must not be hidden";
    }
  });
}

}  // namespace
}  // namespace widehead::test
