#include "widehead/matrix.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "compare.h"
#include "dice.h"

namespace widehead::test {
namespace {

TEST(Matrix, StartsAtZeroAndAlignedToACacheLine) {
  for (const Size rows : {1, 3, 16, 1000}) {
    const Matrix<float> A(rows, 7);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(A.data()) % 64, 0U);
    EXPECT_EQ(A.size(), rows * 7);
    for (Size i = 0; i < A.size(); ++i) ASSERT_EQ(A.data()[i], 0.0F);
  }
}

TEST(Matrix, IsColumnMajor) {
  Matrix<double> A(3, 2);
  A(2, 1) = 5;
  EXPECT_EQ(A.data()[2 + 1 * 3], 5);
  EXPECT_EQ(A.view()(2, 1), 5);
  EXPECT_EQ(A.view().column(1)[2], 5);
}

TEST(Matrix, WithoutElementsHoldsNothing) {
  for (const auto& [rows, cols] : {std::pair<Size, Size>{0, 0}, {0, 5}, {5, 0}}) {
    const Matrix<float> A(rows, cols);
    EXPECT_EQ(A.data(), nullptr);
    EXPECT_EQ(A.rows(), rows);
    EXPECT_EQ(A.cols(), cols);
    EXPECT_TRUE(A.view().empty());
  }
  EXPECT_TRUE(Matrix<float>().view().empty());
}

TEST(Matrix, IdentityHasOnesOnItsDiagonalOnly) {
  const auto I = Matrix<double>::identity(4);
  for (Size j = 0; j < 4; ++j) {
    for (Size i = 0; i < 4; ++i) EXPECT_EQ(I(i, j), i == j ? 1 : 0);
  }
}

TEST(Matrix, CopyOfAStridedViewIsCompactAndItsOwn) {
  auto A = Dice(1).matrix<double>(6, 5);
  const auto block = A.view().block(1, 2, 3, 2);
  const auto copy = Matrix<double>::copy_of(block);
  EXPECT_EQ(copy.view().stride, 3);
  EXPECT_TRUE(is_identical<double>(copy, block));
  block(0, 0) += 1;
  EXPECT_NE(copy(0, 0), block(0, 0));
}

TEST(Matrix, BlocksOfBlocksSeeTheSameElements) {
  auto A = Dice(1).matrix<float>(9, 8);
  const auto block = A.view().block(2, 1, 6, 6).block(1, 2, 3, 4).columns(1, 2);
  EXPECT_EQ(block.rows, 3);
  EXPECT_EQ(block.cols, 2);
  EXPECT_EQ(block.stride, 9);
  EXPECT_EQ(block.size(), 6);
  for (Size j = 0; j < block.cols; ++j) {
    for (Size i = 0; i < block.rows; ++i) EXPECT_EQ(&block(i, j), &A(3 + i, 4 + j));
  }
}

TEST(Matrix, ScratchGrowsWithTheLargestRequestAndThenStays) {
  Matrix<double> room;
  const auto small = room.scratch(2, 3);
  EXPECT_EQ(small.rows, 2);
  EXPECT_EQ(small.cols, 3);
  const auto large = room.scratch(8, 5);
  large(7, 4) = 1;  // the sanitizer's business
  const double* memory = large.data;
  for (const auto& [rows, cols] : {std::pair<Size, Size>{2, 3}, {5, 8}, {40, 1}, {1, 40}, {8, 5}}) {
    const auto view = room.scratch(rows, cols);
    EXPECT_EQ(view.data, memory);
    EXPECT_EQ(view.rows, rows);
    EXPECT_EQ(view.cols, cols);
    EXPECT_EQ(view.stride, rows);
  }
  EXPECT_EQ(room.scratch(41, 1)(40, 0), 0);
}

TEST(Matrix, MovesItsMemoryAlongAndLeavesNoExtentsBehind) {
  auto A = Dice(1).matrix<double>(4, 3);
  const double* memory = A.data();
  const auto B = std::move(A);
  EXPECT_EQ(B.data(), memory);
  EXPECT_EQ(A.data(), nullptr);  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_EQ(A.size(), 0);        // else A.scratch(4, 3) would hand out a null pointer
  EXPECT_NE(A.scratch(4, 3).data, nullptr);
}

TEST(Matrix, RefusesNegativeExtentsAndSizesBeyondTheAddressSpace) {
  EXPECT_THROW(Matrix<float>(-1, 2), std::bad_array_new_length);
  EXPECT_THROW(Matrix<float>(2, -1), std::bad_array_new_length);
  EXPECT_THROW(Matrix<float>(Size{1} << 32, Size{1} << 32), std::bad_array_new_length);
}

TEST(Matrix, ReportsMemoryItCannotGet) {
#if WIDEHEAD_TEST_ADDRESS_SANITIZER
  GTEST_SKIP() << "the address sanitizer stops the program at such a request";
#else
  EXPECT_THROW(Matrix<double>(Size{1} << 30, Size{1} << 28), std::bad_alloc);
#endif
}

TEST(Matrix, OfLargeExtentTakesNoMemoryUntilWritten) {
  // 16 GiB of zero pages; of the sanitizer's, which writes a byte of its own for eight of them, 4 GiB: as many
  // elements.
  using Element = std::conditional_t<WIDEHEAD_TEST_ADDRESS_SANITIZER, std::uint8_t, float>;
  const Matrix<Element> A(1 << 10, 1 << 22);
  EXPECT_EQ(A(1023, (1 << 22) - 1), Element{0});
}

}  // namespace
}  // namespace widehead::test
