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

INSTANTIATE_TEST_SUITE_P(Cpu, BackendTest, testing::ValuesIn(backend_cases()), backend_case_name);

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
        Padded<T> view(A);
        const std::span<const T> bias(b.data(), with_bias ? static_cast<std::size_t>(b.rows()) : 0);
        backend.activate(s, bias, view);
        // A few roundings for each element, of numbers that are at most |a| + |b| or 1.
        EXPECT_TRUE(is_near<T>(view, truth, 8 * tolerance::epsilon<T>, norm(A) + norm(truth)));
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
      Matrix<T> A(static_cast<Size>(arguments.size()), 1);
      std::copy(arguments.begin(), arguments.end(), A.data());
      backend.activate(s, {}, A);
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        SCOPED_TRACE(fmt::format("{}({})", name, arguments[i]));
        const double truth = definition(s, static_cast<double>(arguments[i]));
        if (std::isinf(truth)) {
          EXPECT_EQ(static_cast<double>(A.data()[i]), truth);
        } else {
          EXPECT_NEAR(static_cast<double>(A.data()[i]), truth,
                      4 * tolerance::epsilon<T> * std::max(1.0, std::abs(truth)));
        }
      }
      EXPECT_EQ(A.data()[0], static_cast<T>(definition(s, 0))) << name;
    }
  });
}

TEST_P(BackendTest, ActivateKeepsTheSignOfTanhAndTheRangeOfSigmoid) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(52);
    auto A = dice.matrix<T>(200, 3), B = Matrix<T>::copy_of(A);
    backend.scale(T(30), A);
    const auto X = Matrix<T>::copy_of(A);
    backend.activate(Activation::tanh, {}, A);
    backend.activate(Activation::sigmoid, {}, B);
    for (Size i = 0; i < A.size(); ++i) {
      EXPECT_EQ(std::signbit(A.data()[i]), std::signbit(X.data()[i]));
      EXPECT_LE(std::abs(A.data()[i]), T(1));
      EXPECT_GT(B.data()[i], T(0));
      EXPECT_LT(B.data()[i], T(1));
    }
  });
}

/// Else a run that has gone wrong would look like one whose units are idle.
TEST_P(BackendTest, ActivateLetsNaNThrough) {
  run([]<class T>(Backend<T>& backend) {
    for (const auto& [name, s] : activation_names()) {
      Matrix<T> A(5, 1);
      A(3, 0) = std::numeric_limits<T>::quiet_NaN();
      backend.activate(s, {}, A);
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
      Padded<T> A(X), G(gradient);
      backend.activate(s, {}, A);
      const auto activations = to_double<T>(A);
      backend.activate_backward(s, A, G);
      EXPECT_TRUE(is_near<T>(G, truth, 8 * tolerance::epsilon<T>, norm(gradient)));
      EXPECT_TRUE(G.rim_is_intact());
      EXPECT_TRUE(is_identical<double>(activations, to_double<T>(A)));
    });
  });
}

TEST_P(BackendTest, SumColumnsOverwritesWithTheSum) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(54);
    for (const auto& [rows, cols] : shapes) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      Padded<T> A(dice.matrix<T>(rows, cols));
      Matrix<T> out(rows, 1);
      std::fill_n(out.data(), rows, std::numeric_limits<T>::quiet_NaN());
      backend.sum_columns(A, {out.data(), static_cast<std::size_t>(rows)});
      Matrix<double> truth(rows, 1);
      for (Size j = 0; j < cols; ++j) {
        for (Size i = 0; i < rows; ++i) truth(i, 0) += static_cast<double>(A.view()(i, j));
      }
      const double scale = norm<T>(A) * std::sqrt(static_cast<double>(cols));
      EXPECT_TRUE(is_near<T>(out, truth, tolerance::product<T>(cols), scale));
    }
  });
}

TEST_P(BackendTest, CombineIsWhatScatterAddsToEachRow) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(55);
    // The last is large enough for threads (nonzeros · d > 65536).
    for (const MinibatchShape& shape : std::vector<MinibatchShape>{{1, 1, 1, 0},
                                                                   {1, 1, 1, 1},
                                                                   {1, 3, 4, 5},
                                                                   {9, 1, 5, 1},
                                                                   {12, 7, 10, 0},
                                                                   {8, 16, 20, 5},
                                                                   {900, 121, 301, 3}}) {
      SCOPED_TRACE(
          fmt::format("D = {}, d = {}, m = {}, K = {}", shape.outputs, shape.dim, shape.batch, shape.nonzeros));
      const auto minibatch = make_minibatch(dice, shape);
      const TypedMinibatch<T> typed(minibatch);
      RowGroups<T> groups;
      groups.assign(typed.targets());
      const auto all = product(Op::none, minibatch.H, Op::transpose, minibatch.Y());  // d x D
      Matrix<double> truth(shape.dim, groups.count());
      for (Size g = 0; g < groups.count(); ++g) {
        std::copy_n(all.view().column(groups.row(g)), shape.dim, truth.view().column(g));
      }
      Padded<T> X(typed.H), Z(shape.dim, groups.count());  // Z's values are not zero before
      backend.combine(groups, X, Z);
      EXPECT_TRUE(is_near<T>(Z, truth, tolerance::product<T>(shape.batch), norm(minibatch.H) * norm(minibatch.Y())));
      EXPECT_TRUE(Z.rim_is_intact());
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
        Padded<T> P(start), M(Matrix<T>(rows, cols)), S(Matrix<T>(rows, cols));
        std::vector<PlainAdam> plain;
        for (Size i = 0; i < start.size(); ++i) plain.push_back({static_cast<double>(start.data()[i])});
        constexpr std::int64_t steps = 6;
        for (std::int64_t t = 1; t <= steps; ++t) {
          const double scale = 1.0 / static_cast<double>(t + 1);
          Padded<T> G(dice.matrix<T>(rows, updated));
          backend.adam(AdamStep(options, 0.1, t, scale),
                       named ? std::span<const Index>(columns) : std::span<const Index>(), G, P, M, S);
          for (Size k = 0; k < updated; ++k) {
            const Size column = named ? columns[static_cast<std::size_t>(k)] : k;
            for (Size i = 0; i < rows; ++i) {
              plain[static_cast<std::size_t>(column * rows + i)].update(options, 0.1, t,
                                                                        scale * static_cast<double>(G.view()(i, k)));
            }
          }
        }
        Matrix<double> p(rows, cols), m(rows, cols), s(rows, cols);
        for (std::size_t i = 0; i < plain.size(); ++i) {
          p.data()[i] = plain[i].p;
          m.data()[i] = plain[i].m;
          s.data()[i] = plain[i].s;
        }
        EXPECT_TRUE(is_near<T>(P, p, 8 * steps * tolerance::epsilon<T>));
        EXPECT_TRUE(is_near<T>(M, m, 8 * steps * tolerance::epsilon<T>));
        EXPECT_TRUE(is_near<T>(S, s, 8 * steps * tolerance::epsilon<T>));
        EXPECT_TRUE(P.rim_is_intact() && M.rim_is_intact() && S.rim_is_intact());
        for (Size c = 0; named && c < cols; ++c) {
          if (std::find(columns.begin(), columns.end(), static_cast<Index>(c)) != columns.end()) continue;
          EXPECT_TRUE(is_identical<T>(P.view().columns(c, 1), start.view().columns(c, 1))) << "column " << c;
        }
      }
    }
  });
}

TEST_P(BackendTest, AdamWithoutAGradientMovesNothing) {
  run([]<class T>(Backend<T>& backend) {
    const auto start = Dice(57).matrix<T>(5, 3);
    auto P = Matrix<T>::copy_of(start);
    Matrix<T> M(5, 3), S(5, 3);
    backend.adam(AdamStep(AdamOptions{}, 0.1, 1, 1), {}, Matrix<T>(5, 3), P, M, S);
    EXPECT_TRUE(is_identical<T>(P, start));
  });
}

}  // namespace
}  // namespace widehead::test
