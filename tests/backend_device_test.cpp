/// Backends as such: their memory, their names, and how they say that something cannot be.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "backend_under_test.h"
#include "compare.h"
#include "dice.h"
#include "errors.h"
#include "widehead/device.h"
#include "widehead/errors.h"
#include "widehead/stream_order.h"
#include "widehead/system_info.h"

namespace widehead::test {
namespace {

WIDEHEAD_ON_ALL_BACKENDS;

TEST_P(BackendTest, MemoryIsZeroAtFirst) {
  run([]<class T>(Backend<T>& backend) {
    for (const Size n : {1, 1000, 300000}) {
      Matrix<T> there(n, 1, backend.memory()), here(n, 1);
      std::fill_n(here.data(), n, std::numeric_limits<T>::quiet_NaN());
      backend.template transfer<T>(there, here);
      EXPECT_TRUE(is_identical<T>(here, Matrix<T>(n, 1))) << n;
    }
  });
}

TEST_P(BackendTest, TransferMovesViewsBetweenAndWithinMemories) {
  run([]<class T>(Backend<T>& backend) {
    Dice dice(71);
    for (const auto& [rows, cols] : {std::pair<Size, Size>{0, 3}, {3, 0}, {1, 1}, {1, 40}, {300, 1}, {33, 17}}) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
      const auto A = dice.matrix<T>(rows, cols);
      Both<T> first(backend, A), second(backend, rows, cols), third(backend, rows, cols);
      backend.template transfer<T>(first.device(), second.device());
      backend.template transfer<T>(second.device(), third.host());
      EXPECT_TRUE(is_identical<T>(third.host(), A));
      EXPECT_TRUE(first.rim_is_intact() && second.rim_is_intact() && third.rim_is_intact());
      Matrix<T> compact(rows, cols, backend.memory()), back(rows, cols);
      backend.template transfer<T>(A, compact);
      backend.template transfer<T>(compact, back);
      EXPECT_TRUE(is_identical<T>(back, A));
    }
  });
}

TEST_P(BackendTest, ReachCopiesOnlyWhatIsOutOfReach) {
  run([&]<class T>(Backend<T>& backend) {
    const auto here = Dice(72).matrix<T>(5, 4);
    Matrix<T> there(5, 4, backend.memory()), room(backend.memory());
    EXPECT_TRUE(backend.can_reach(there.data()));
    EXPECT_TRUE(backend.can_reach(there.data() + 19)) << "within a block, too";
    EXPECT_EQ(backend.can_reach(here.data()), !on_gpu());
    EXPECT_EQ(backend.template reach<T>(there, room).data, there.data());
    const auto reached = backend.template reach<T>(here, room);
    EXPECT_EQ(reached.data == here.data(), !on_gpu());
    Matrix<T> back(5, 4);
    backend.template transfer<T>(reached, back);
    EXPECT_TRUE(is_identical<T>(back, here));
    EXPECT_EQ(backend.template reach<T>(MatrixView<const T>(), room).size(), 0);
  });
}

TEST_P(BackendTest, ReadbacksBringWhatWasThereWhenTheyWereSent) {
  run([]<class T>(Backend<T>& backend) {
    Matrix<T> A(100, 100, backend.memory());
    Matrix<double> dots(8, 2, backend.memory());
    std::vector<std::unique_ptr<Readback>> readbacks;
    for (int k = 0; k < 3; ++k) readbacks.push_back(backend.make_readback());
    for (int k = 0; k < 8; ++k) {
      backend.set_identity(A.view().block(0, 0, k + 1, k + 1));
      const auto some = A.view().columns(0, 8);
      const auto out = dots.view().columns(k % 2, 1);
      backend.column_dots(some, some, out);
      readbacks[static_cast<std::size_t>(k) % 3]->send(out);
      if (k < 2) continue;
      for (int turn = 0; turn < 2; ++turn) {  // the second says the same again
        const auto received = readbacks[static_cast<std::size_t>(k - 2) % 3]->receive();
        EXPECT_EQ(received.size(), 8U);
        EXPECT_EQ(std::accumulate(received.begin(), received.end(), 0.0), k - 1);
      }
    }
  });
}

TEST_P(BackendTest, StopwatchesTellWhatWasBetweenTheirPoints) {
  run([]<class T>(Backend<T>& backend) {
    const auto watch = backend.make_stopwatch();
    EXPECT_TRUE(watch->take_laps().empty());
    Matrix<T> A(400, 400, backend.memory()), B(400, 400, backend.memory()), C(400, 400, backend.memory());
    for (int turn = 0; turn < 2; ++turn) {  // the second begins anew
      watch->mark();
      for (int k = 0; k < 20; ++k) backend.gemm(Op::none, Op::none, T(1), A, B, T(1), C);
      watch->mark();
      watch->mark();
      const auto laps = watch->take_laps();
      ASSERT_EQ(laps.size(), 2U);
      EXPECT_GT(laps[0], 0);
      EXPECT_GE(laps[1], 0);
    }
  });
}

TEST_P(BackendTest, ColumnsMoveFromAndToMemoryOfTheHost) {
  run([&]<class T>(Backend<T>& backend) {
    EXPECT_GT(backend.free_memory(), std::size_t{1} << 20);
    EXPECT_TRUE(backend.column_memory().is_host());
    Matrix<T> rows(33, 5000, backend.column_memory());
    EXPECT_TRUE(is_identical<T>(rows, Matrix<T>(33, 5000))) << "zero at first";
    const auto Z = Dice(73).matrix<T>(33, 3);
    Both<T> in(backend, Z), out(backend, 33, 4);
    const std::vector<Index> to{4999, 0, 17}, from{17, Backend<T>::no_column, 4999, 1};
    backend.move_columns(in.device(), {}, to, rows);
    backend.move_columns(rows, from, {}, out.device());
    backend.wait();
    EXPECT_TRUE(is_identical<T>(rows.view().columns(4999, 1), Z.view().columns(0, 1))) << "the host sees it, too";
    EXPECT_TRUE(is_identical<T>(out.host().columns(0, 1), Z.view().columns(2, 1)));
    EXPECT_TRUE(is_identical<T>(out.host().columns(2, 1), Z.view().columns(0, 1)));
    EXPECT_EQ(norm<T>(out.host().columns(1, 1)) + norm<T>(out.host().columns(3, 1)), 0);
    EXPECT_TRUE(out.rim_is_intact());
    if (on_gpu()) {
      EXPECT_FALSE(backend.can_reach(rows.data())) << "other operations are given copies";
      EXPECT_THROW(Matrix<T>(Size{1} << 22, Size{1} << 22, backend.column_memory()), BackendError);
    }
  });
}

/// The default stream stands for somebody else's; tests/python/test_cuda.py has streams that are late.
TEST_P(BackendTest, WorkInTheOrderOfAnotherStreamIsTheSame) {
  run([]<class T>(Backend<T>& backend) {
    Both<T> A(backend, 40, 40);
    backend.set_identity(A.device());
    const auto a = A.device();
    for (int k = 0; k < 3; ++k) {
      const StreamOrder<T> order(backend, nullptr);
      backend.add(T(1), a, T(1), a, a);
    }
    EXPECT_EQ(A(3, 3), T(8));
    EXPECT_EQ(A(3, 4), T(0));
  });
}

/// An operation may still be at work when the next is called, which must wait for it.
TEST_P(BackendTest, OperationsFollowOneAnother) {
  run([]<class T>(Backend<T>& backend) {
    Both<T> A(backend, 500, 500), B(backend, 500, 500);
    backend.set_identity(A.device());
    const auto a = A.device(), b = B.device();
    for (int k = 0; k < 20; ++k) {
      backend.add(T(1), a, T(1), a, b);
      backend.copy(b, a);
    }
    EXPECT_EQ(A(3, 3), T(1 << 20));
    EXPECT_EQ(A(3, 4), T(0));
  });
}

/// More lists than fit any ring of them, larger and larger, and no wait in between.
TEST_P(BackendTest, ListsOfTheHostMayChangeAsSoonAsAnOperationReturns) {
  run([]<class T>(Backend<T>& backend) {
    constexpr Size columns = 1000;
    Matrix<T> numbered(1, columns);
    for (Size j = 0; j < columns; ++j) numbered(0, j) = static_cast<T>(j);
    Both<T> A(backend, numbered), C(backend, 1, columns * 100);
    const auto from = A.device(), to = C.device();
    std::vector<Index> sources, targets;
    for (Index round = 0; round < 100; ++round) {
      sources.resize(static_cast<std::size_t>(10 * (round + 1)));
      targets.resize(sources.size());
      for (std::size_t k = 0; k < sources.size(); ++k) {
        sources[k] = static_cast<Index>((k * 7 + static_cast<std::size_t>(round)) % columns);
        targets[k] = static_cast<Index>(columns) * round + static_cast<Index>(k);
      }
      backend.move_columns(from, sources, targets, to);
      std::fill(sources.begin(), sources.end(), 0);
    }
    for (Index round = 0; round < 100; ++round) {
      for (Index k = 0; k < 10 * (round + 1); ++k) {
        ASSERT_EQ(C(0, columns * round + k), static_cast<T>((k * 7 + round) % columns)) << round << ", " << k;
      }
    }
  });
}

TEST_P(BackendTest, KnowsItsDeviceAndThreads) {
  run([&]<class T>(Backend<T>& backend) {
    EXPECT_EQ(backend.device(), GetParam().device);
    EXPECT_EQ(backend.threads(), GetParam().threads);
    EXPECT_EQ(backend.memory().is_host(), !on_gpu());
    EXPECT_EQ(backend.factorizes_fast(), !on_gpu());
    for (const Size dim : {1, 100, 65536}) EXPECT_GE(backend.rows_per_block(dim), 1);
  });
}

TEST(Backend, WithZeroThreadsTakesAllCores) { EXPECT_EQ(make_cpu_backend<float>(0)->threads(), system_info().cores); }

TEST(Backend, RefusesANegativeNumberOfThreads) {
  expect_throw<std::invalid_argument>([] { make_cpu_backend<float>(-2); }, {"threads = -2"});
  expect_throw<std::invalid_argument>([] { make_cpu_backend<double>(-1); }, {"threads = -1"});
}

TEST(Backend, ReportsExtentsBeyondTheIntegersOfBlasAlsoFromItsThreads) {
  // Nothing is read: the extent is refused first.
  double nothing = 0;
  const Size huge = 3000000000;
  const MatrixView<double> A(&nothing, 100, 1000, huge), C(&nothing, 100, 100, huge);
  for (const int threads : {1, 3}) {
    expect_throw<BackendError>([&] { make_cpu_backend<double>(threads)->gemm(Op::none, Op::transpose, 1, A, A, 0, C); },
                               {"3000000000"});
  }
}

TEST(Backend, ReportsAProductThatOneDnnRefuses) {
  if (system_info().sgemm_library.find("oneDNN") == std::string::npos) {
    GTEST_SKIP() << "float products are not oneDNN's here";
  }
  Matrix<float> A(4, 4), C(4, 4);
  const MatrixView<float> overlapping(A.data(), 4, 4, 1);
  expect_throw<BackendError>([&] { make_cpu_backend<float>(1)->gemm(Op::none, Op::none, 1, overlapping, A, 0, C); },
                             {"dnnl_sgemm(4 x 4 x 4)"});
}

TEST(Backend, ReportsAnSvdThatFails) {
  Matrix<double> A(3, 3);
  A(1, 1) = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> sigma(3);
  expect_throw<BackendError>([&] { make_cpu_backend<double>(1)->svd(A, sigma, {}); }, {"gesdd(3 x 3)"});
}

TEST(SystemInfo, NamesTheLibrariesAndTimesAProduct) {
  const auto info = system_info();
  EXPECT_FALSE(info.version.empty());
  EXPECT_FALSE(info.sgemm_library.empty());
  EXPECT_FALSE(info.blas_library.empty());
  EXPECT_GE(info.cores, 1);
  const GemmShape shape{Op::transpose, Op::none, 20, 30, 40};
  EXPECT_EQ(shape.flops(), 2.0 * 20 * 30 * 40);
  EXPECT_GT(time_gemm(*make_cpu_backend<float>(1), shape, 0), 0);
}

TEST(Device, IsNamedByUsers) {
  EXPECT_EQ(make_backend<float>("cpu", 1)->device(), "cpu");
  EXPECT_EQ(make_backend<double>("cpu", 2)->threads(), 2);
  for (const char* name : {"", "gpu", "cpu:0", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999"}) {
    expect_throw<std::invalid_argument>([&] { make_backend<float>(name, 1); },
                                        {fmt::format("device '{}' is unknown", name), "cpu, cuda, cuda:NUMBER"});
  }
}

TEST(Device, HasTf32ForFloatsOnGpusOnly) {
  expect_throw<std::invalid_argument>([] { make_backend<float>("cpu", 1, true); }, {"tf32", "cpu"});
  for (const char* name : {"cpu", "cuda", "cuda:1"}) {
    expect_throw<std::invalid_argument>([&] { make_backend<double>(name, 1, true); }, {"tf32"});
  }
  if (cuda_devices() > 0) {
    EXPECT_EQ(make_backend<float>("cuda", 1, true)->device(), "cuda");
  } else {
    expect_throw<BackendError>([] { make_backend<float>("cuda", 1, true); }, {"CUDA"});
  }
}

TEST(Device, ThatIsNotThereIsRefused) {
  if (WIDEHEAD_TEST_CUDA == 0) {
    EXPECT_EQ(cuda_devices(), 0);
    expect_throw<BackendError>([] { make_cuda_backend<float>(); }, {"this build has no CUDA", "-DWIDEHEAD_CUDA=ON"});
    expect_throw<BackendError>([] { make_backend<double>("cuda:1", 1); }, {"this build has no CUDA"});
  } else if (cuda_devices() == 0) {
    expect_throw<BackendError>([] { make_cuda_backend<float>(); }, {"cudaGetDeviceCount"});
  } else {
    expect_throw<std::invalid_argument>([] { make_backend<float>("cuda:4000", 1); },
                                        {"CUDA device 4000", fmt::format("there are {}", cuda_devices())});
  }
}

}  // namespace
}  // namespace widehead::test
