#pragma once
/// Layers on a course of random steps, alone or side by side.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "compare.h"
#include "dice.h"
#include "widehead/errors.h"
#include "widehead/output_layer.h"

namespace widehead::test {

inline constexpr Size D = 30, d = 5;  // of every layer on a course

template <class T>
struct Examples {
  Matrix<T> H;
  std::vector<std::int64_t> offsets{0};
  std::vector<Index> indices;
  std::vector<T> values;
  SparseBatch<T> targets() const { return {D, offsets, indices, values}; }
};

/// K targets per example at most.
template <class T>
Examples<T> draw(Dice& dice, Size m, Size K) {
  Examples<T> examples;
  examples.H = dice.matrix<T>(d, m);
  for (Size j = 0; j < m; ++j) {
    const Size count = dice.between(0, K);
    for (Size k = 0; k < count; ++k) {
      examples.indices.push_back(static_cast<Index>(dice.between(0, D - 1)));
      examples.values.push_back(static_cast<T>(dice.uniform(0.2, 1)));
    }
    examples.offsets.push_back(static_cast<std::int64_t>(examples.indices.size()));
  }
  return examples;
}

/// The outcome of a step, its error included.
template <class T>
struct Outcome {
  std::string error;
  double loss = 0;
  Matrix<T> grad_H;
};

template <class T>
Outcome<T> step(OutputLayer<T>& layer, const Examples<T>& examples, double eta) {
  Outcome<T> outcome;
  outcome.grad_H = Matrix<T>(d, examples.H.cols());
  try {
    outcome.loss = layer.step(examples.H, examples.targets(), eta, outcome.grad_H);
  } catch (const NumericalError& error) {
    outcome.error = error.what();
  }
  return outcome;
}

/// How a layer is trained on random minibatches.
struct Course {
  Size largest_m = 4;
  Size K = 2;
  double lambda = 0.3;
};

template <class T>
void train(OutputLayer<T>& layer, Dice& dice, const Course& course, int steps) {
  for (int t = 0; t < steps; ++t) {
    const auto examples = draw<T>(dice, dice.between(1, course.largest_m), course.K);
    step<T>(layer, examples, layer.eta_for(examples.H, examples.targets(), course.lambda));
  }
}

/// Both layers take the same steps, with the same results to the last bit.
template <class T>
void expect_same_course(OutputLayer<T>& one, OutputLayer<T>& other, Dice& dice, const Course& course, int steps) {
  for (int t = 0; t < steps; ++t) {
    const auto examples = draw<T>(dice, dice.between(1, course.largest_m), course.K);
    const double eta = one.eta_for(examples.H, examples.targets(), course.lambda);
    const auto a = step<T>(one, examples, eta), b = step<T>(other, examples, eta);
    ASSERT_EQ(a.error, b.error) << "step " << t;
    ASSERT_EQ(a.loss, b.loss) << "step " << t;
    ASSERT_TRUE(is_identical<T>(a.grad_H, b.grad_H)) << "step " << t;
  }
  EXPECT_TRUE(is_identical<T>(one.weights(), other.weights()));
  EXPECT_TRUE(is_identical<T>(one.gram(), other.gram()));
  EXPECT_TRUE(is_identical<T>(one.sum_of_rows(), other.sum_of_rows()));
  EXPECT_EQ(one.steps(), other.steps());
}

}  // namespace widehead::test
