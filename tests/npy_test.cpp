#include "widehead/model/npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "compare.h"
#include "dice.h"
#include "errors.h"
#include "python.h"
#include "scratch_folder.h"

namespace widehead::test {
namespace {

/// In two blocks with a gap between their columns.
template <class T>
void write(const std::string& path, const Matrix<T>& A) {
  NpyWriter<T> writer(path, A.cols(), A.rows());
  Padded<T> padded{A.view()};
  writer.write(padded.view().columns(0, A.cols() / 2));
  writer.write(padded.view().columns(A.cols() / 2, A.cols() - A.cols() / 2));
  writer.finish();
}

template <class T>
void check_bytes(const char* descr) {
  const ScratchFolder folder;
  const auto A = Dice(1).matrix<T>(3, 5);
  write(folder.path("a.npy"), A);
  const auto content = folder.content("a.npy");
  ASSERT_EQ(content.size(), 128 + 15 * sizeof(T));
  std::string dictionary = std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (5, 3), }";
  dictionary.resize(128 - 11, ' ');
  EXPECT_EQ(content.substr(0, 128), std::string("\x93NUMPY\x01\x00\x76\x00", 10) + dictionary + "\n");
  EXPECT_EQ(std::memcmp(content.data() + 128, A.data(), 15 * sizeof(T)), 0);
}

TEST(Npy, HasTheHeaderAndTheRowsOneAfterTheOther) {
  check_bytes<float>("<f4");
  check_bytes<double>("<f8");
}

TEST(Npy, HasAHeaderWithRoomForTheLargestShape) {
  const ScratchFolder folder;
  constexpr Size most = std::numeric_limits<Size>::max();
  NpyWriter<float>(folder.path("a.npy"), 0, most).finish();
  const auto content = folder.content("a.npy");
  ASSERT_EQ(content.size(), 128U);
  EXPECT_NE(content.find("'shape': (0, 9223372036854775807), }  "), std::string::npos) << "room for 18 digits more";
  EXPECT_EQ(content.substr(108), std::string(19, ' ') + "\n");
}

TEST(Npy, IsReadByNumPy) {
  if (!python_has("numpy")) GTEST_SKIP() << "python3 with numpy is not installed";
  const ScratchFolder folder;
  Matrix<float> A(3, 2);
  Matrix<double> B(1, 4);
  for (Size i = 0; i < 6; ++i) A.data()[i] = static_cast<float>(i) + 0.5F;
  for (Size i = 0; i < 4; ++i) B.data()[i] = static_cast<double>(i) / 8;
  write(folder.path("a.npy"), A);
  write(folder.path("b.npy"), B);
  write(folder.path("c.npy"), Matrix<float>(5, 0));
  const auto load = [&](const char* name) {
    return python("import numpy as n; a = n.load('" + folder.path(name) + "'); print(a.dtype, a.shape, a.tolist())");
  };
  EXPECT_EQ(load("a.npy"), "float32 (2, 3) [[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]]\n");
  EXPECT_EQ(load("b.npy"), "float64 (4, 1) [[0.0], [0.125], [0.25], [0.375]]\n");
  EXPECT_EQ(load("c.npy"), "float32 (0, 5) []\n");
}

TEST(Npy, RefusesBlocksThatDoNotFit) {
  const ScratchFolder folder;
  const auto path = folder.path("a.npy");
  {
    NpyWriter<float> writer(path, 5, 3);
    writer.write(Matrix<float>(3, 4));
    expect_throw<std::invalid_argument>([&] { writer.write(Matrix<float>(2, 1)); },
                                        {path + ": a block with d = 2, but the file has 3"});
    expect_throw<std::invalid_argument>([&] { writer.write(Matrix<float>(3, 2)); },
                                        {path + ": 2 rows after 4, but the file has 5"});
    expect_throw<std::invalid_argument>([&] { writer.finish(); }, {path + ": 4 rows were written, but the file has 5"});
  }
  EXPECT_EQ(folder.files(), 0);
  expect_throw<std::invalid_argument>([&] { NpyWriter<float>(path, -1, 3); }, {path + ": shape (-1, 3)"});
}

}  // namespace
}  // namespace widehead::test
