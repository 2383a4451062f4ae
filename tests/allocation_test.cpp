/// A step allocates nothing after warm-up. This program counts: operator new is replaced here, and the
/// library's calloc (which Matrix stands on) and malloc are wrapped by the linker.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "heads_under_test.h"
#include "oracle.h"

namespace {
std::atomic<long> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment = 0) {
  ++allocations;
  void* memory = alignment == 0 ? std::malloc(bytes)
                                : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
/// Not inline: GCC would take free for the wrong end of a new.
[[gnu::noinline]] void release(void* memory) { std::free(memory); }
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

extern "C" {
void* __real_calloc(std::size_t count, std::size_t size);   // NOLINT: the linker's names
void* __wrap_calloc(std::size_t count, std::size_t size) {  // NOLINT
  ++allocations;
  return __real_calloc(count, size);
}
}

namespace widehead::test {
namespace {

std::vector<HeadCase> heads_without_checks() {
  auto heads = fast_heads();
  for (auto& head : heads) head.options.factored.stabilizer.n_check = 1000;  // not due
  return in_each_dtype(heads);
}
INSTANTIATE_TEST_SUITE_P(Plain, HeadTest, testing::ValuesIn(heads_without_checks()), case_name);

TEST(Allocations, AreCounted) {
  const long before = allocations;
  const Matrix<float> A(3, 3);
  const long after_matrix = allocations;
  const std::vector<int> v(3);
  const long after_vector = allocations;
  EXPECT_GT(after_matrix, before);
  EXPECT_GT(after_vector, after_matrix);
}

TEST_P(HeadTest, StepAllocatesNothingAfterWarmUp) {
  run([&]<class T>() {
    constexpr Size D = 3000, d = 48;
    for (const int threads : {1, 2}) {
      for (const bool weighted : {false, true}) {
        SCOPED_TRACE(fmt::format("{} threads, {}", threads, weighted ? "weighted" : "not weighted"));
        const auto layer = make_layer<T>(
            GetParam(), {.outputs = D, .dim = d, .weight_decay = 0.1, .initial = Initial::normal}, threads);
        std::vector<TypedMinibatch<T>> minibatches;
        Dice dice(91);
        // The first is the largest; the same shapes come again: what is made once for each shape is made.
        for (const Size m : {100, 1, 30, 100})
          minibatches.emplace_back(make_minibatch(dice, {D, d, m, m == 30 ? 0 : 4, weighted}));
        Matrix<T> grad_H(d, 100);
        const auto round = [&] {
          for (const auto& minibatch : minibatches) {
            layer->step(minibatch.H, minibatch.targets(), 1e-6, grad_H.view().columns(0, minibatch.H.cols()));
            layer->evaluate(minibatch.H, minibatch.targets());
          }
        };
        round();
        round();
        const long before = allocations;
        round();
        round();
        EXPECT_EQ(allocations - before, 0);
      }
    }
  });
}

TEST(Allocations, SoftmaxHeadsMakeNoneAfterWarmUp) {
  constexpr Size D = 3000, d = 48;
  for (const std::string head : {"softmax", "hierarchical", "sampled"}) {
    for (const int threads : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, {} threads", head, threads));
      auto options = options_of(head);
      options.layer = {.outputs = D, .dim = d, .initial = Initial::normal};
      const auto layer = make_head<float>(options, make_cpu_backend<float>(threads));
      std::vector<TypedMinibatch<float>> minibatches;
      Dice dice(92);
      for (const Size m : {100, 1, 30, 100}) {
        auto minibatch = make_minibatch(dice, {D, d, m, m == 30 ? 0 : 4, true});
        for (auto& value : minibatch.values) value = std::abs(value);
        minibatches.emplace_back(minibatch);
      }
      Matrix<float> grad_H(d, 100);
      const auto round = [&] {
        for (const auto& minibatch : minibatches) {
          const auto room = grad_H.view().columns(0, minibatch.H.cols());
          layer->step(minibatch.H, minibatch.targets(), 1e-6, room);
          layer->evaluate(minibatch.H, minibatch.targets(), room);
          layer->evaluate(minibatch.H, minibatch.targets());
        }
      };
      for (int i = 0; i < 10; ++i) round();  // samples differ in size a little
      const long before = allocations;
      for (int i = 0; i < 3; ++i) round();
      EXPECT_EQ(allocations - before, 0);
    }
  }
}

}  // namespace
}  // namespace widehead::test
