#include "widehead/row_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "compare.h"
#include "dice.h"
#include "errors.h"

namespace widehead::test {
namespace {

/// A path in the temporary folder, where nothing is before and after the test.
struct TemporaryPath {
  TemporaryPath() { std::filesystem::remove(path); }
  ~TemporaryPath() { std::filesystem::remove(path); }
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;
  std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("widehead_row_store_test_{}", getpid())).string();
};

template <class T>
void check_store(RowStore<T>& store) {
  const auto Z = Dice(1).matrix<T>(store.dim(), 3);
  const std::vector<Index> rows{5, 0, 999}, mixed{0, RowStore<T>::zero_row, 7, 999, 5};
  store.scatter(rows, Z);
  Padded<T> out(store.dim(), 5);
  store.gather(mixed, out);
  EXPECT_TRUE(is_identical<T>(out.view().columns(0, 1), Z.view().columns(1, 1)));
  EXPECT_TRUE(is_identical<T>(out.view().columns(3, 1), Z.view().columns(2, 1)));
  EXPECT_TRUE(is_identical<T>(out.view().columns(4, 1), Z.view().columns(0, 1)));
  EXPECT_EQ(norm<T>(out.view().columns(1, 2)), 0) << "the row that is known to be zero, and one never written";
  EXPECT_TRUE(out.rim_is_intact());
  EXPECT_EQ(store.rows_written(), 3);
  EXPECT_EQ(store.rows_read(), 4);
  EXPECT_TRUE(is_identical<T>(store.view().columns(5, 1), Z.view().columns(0, 1)));
  store.add(std::vector<Index>{999, 8}, Z.view().columns(0, 2));
  for (Size l = 0; l < store.dim(); ++l) {
    EXPECT_EQ(store.view()(l, 999), Z(l, 2) + Z(l, 0));
    EXPECT_EQ(store.view()(l, 8), Z(l, 1)) << "to a row never written";
  }
  EXPECT_EQ(store.rows_written(), 5);
  EXPECT_EQ(store.rows_read(), 6);
}

TEST(RowStore, GivesBackTheRowsItWasGiven) {
  const auto float_backend = make_cpu_backend<float>(1);
  RowStore<float> single(*float_backend, 1000, 7);
  check_store(single);
  const auto double_backend = make_cpu_backend<double>(1);
  RowStore<double> twice(*double_backend, 1000, 1);
  check_store(twice);
}

TEST(RowStore, TouchedRowsHaveMemoryAndWhatTheyHadBefore) {
  const auto backend = make_cpu_backend<float>(1);
  constexpr Size dim = 1500;  // longer than a page: a row has two or three
  RowStore<float> store(*backend, 1000, dim);
  const auto Z = Dice(3).matrix<float>(dim, 2);
  const std::vector<Index> written{7, 8}, touched{8, 500};
  store.scatter(written, Z);
  store.touch(touched);
  Matrix<float> out(dim, 2);
  store.gather(written, out);
  EXPECT_TRUE(is_identical<float>(out, Z));
  EXPECT_EQ(norm<float>(store.view().columns(499, 3)), 0);
  EXPECT_EQ(store.rows_written(), 2) << "touching is not writing";
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto row = reinterpret_cast<std::uintptr_t>(store.view().column(500));
  for (auto at = row / page * page; at < row + dim * sizeof(float); at += page) {
    unsigned char resident = 0;
    ASSERT_EQ(mincore(reinterpret_cast<void*>(at), page, &resident), 0);
    EXPECT_EQ(resident & 1, 1);
  }
}

TEST(RowStore, DoesTheSameInAFile) {
  const TemporaryPath temporary;
  {
    const auto backend = make_cpu_backend<float>(1);
    RowStore<float> store(*backend, 1000, 7, temporary.path);
    check_store(store);
  }
  EXPECT_EQ(std::filesystem::file_size(temporary.path), 1000U * 7 * sizeof(float));
}

TEST(RowStore, OfAnyExtentTakesNoMemoryUntilWritten) {
  const auto backend = make_cpu_backend<float>(1);
  RowStore<float> store(*backend, 2000000000, 256);  // 2 TB
  const auto Z = Dice(1).matrix<float>(256, 1);
  const std::vector<Index> rows{1999999999};
  store.scatter(rows, Z);
  Matrix<float> out(256, 1);
  store.gather(rows, out);
  EXPECT_TRUE(is_identical<float>(out, Z));
}

TEST(RowStore, RefusesAFileThatExistsOrCannotBe) {
  const TemporaryPath temporary;
  const auto backend = make_cpu_backend<float>(1);
  const RowStore<float> store(*backend, 10, 2, temporary.path);
  expect_throw<std::system_error>([&] { RowStore<float>(*backend, 10, 2, temporary.path); },
                                  {temporary.path, "exists"});
  expect_throw<std::system_error>([&] { RowStore<float>(*backend, 10, 2, "/nowhere/rows"); }, {"/nowhere/rows"});
}

TEST(RowStore, RefusesImpossibleExtents) {
  const auto backend = make_cpu_backend<double>(1);
  EXPECT_THROW(RowStore<double>(*backend, -1, 2), std::bad_array_new_length);
  EXPECT_THROW(RowStore<double>(*backend, Size{1} << 40, Size{1} << 40), std::bad_array_new_length);
  EXPECT_THROW(MappedMemory(std::size_t{1} << 60), std::bad_alloc);
}

TEST(MappedMemory, MovesItsMemoryAlong) {
  MappedMemory a(4096);
  static_cast<char*>(a.data())[4095] = 1;
  MappedMemory b(std::move(a));
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_EQ(static_cast<char*>(b.data())[4095], 1);
  MappedMemory c;
  c = std::move(b);
  EXPECT_EQ(static_cast<char*>(c.data())[4095], 1);
  EXPECT_EQ(c.size(), 4096U);
}

}  // namespace
}  // namespace widehead::test
