#include "widehead/row_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <system_error>
#include <utility>

namespace widehead {
namespace {

/// Rows ahead whose first lines are fetched early: they are scattered over gigabytes.
constexpr std::size_t prefetch_distance = 6;

template <class T>
void prefetch(const T* row, Size dim) {
  constexpr Size line = 64 / sizeof(T);
  for (Size i = 0; i < std::min(dim, 4 * line); i += line) __builtin_prefetch(row + i);
}

std::size_t bytes_of(Size rows, Size dim, std::size_t element) {
  const auto n = static_cast<std::size_t>(rows), d = static_cast<std::size_t>(dim);
  if (rows < 0 || dim < 0 || (n > 0 && d > PTRDIFF_MAX / element / n)) throw std::bad_array_new_length();
  return n * d * element;
}

}  // namespace

MappedMemory::MappedMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    throw std::bad_alloc();
  }
  madvise(data_, bytes, MADV_NOHUGEPAGE);  // touched here and there: a huge page for each row would fill the memory
}

MappedMemory::MappedMemory(const std::string& path, std::size_t bytes) : bytes_(bytes), is_file_(true) {
  const auto fail = [&](const char* what) {
    throw std::system_error(errno, std::generic_category(), path + ": " + what);
  };
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) fail("cannot create the rows file");
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  } else {
    data_ = MAP_FAILED;
  }
  const int error = errno;
  close(file);  // the mapping keeps the file
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    unlink(path.c_str());
    errno = error;
    fail("cannot make the rows file as large as D x d");
  }
  madvise(data_, bytes, MADV_RANDOM);  // rows are met in no order: reading ahead would only cost memory
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      is_file_(std::exchange(other.is_file_, false)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(is_file_, other.is_file_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

/// Pages given back read as zero; so do the holes that MADV_REMOVE leaves in a file, where its system can do it.
void MappedMemory::clear() {
  if (bytes_ == 0) return;
  if (madvise(data_, bytes_, is_file_ ? MADV_REMOVE : MADV_DONTNEED) != 0) std::memset(data_, 0, bytes_);
}

template <class T>
RowStore<T>::RowStore(Size rows, Size dim, const std::string& path) : rows_(rows), dim_(dim) {
  const auto bytes = bytes_of(rows, dim, sizeof(T));
  memory_ = path.empty() ? MappedMemory(bytes) : MappedMemory(path, bytes);
}

template <class T>
void RowStore<T>::gather(std::span<const Index> rows, MatrixView<T> out) {
  const auto V = view();
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (k + prefetch_distance < rows.size() && rows[k + prefetch_distance] != zero_row) {
      prefetch(V.column(rows[k + prefetch_distance]), dim_);
    }
    T* z = out.column(static_cast<Size>(k));
    if (rows[k] == zero_row) {
      std::fill_n(z, dim_, T(0));
    } else {
      std::copy_n(V.column(rows[k]), dim_, z);
      ++rows_read_;
    }
  }
}

template <class T>
void RowStore<T>::scatter(std::span<const Index> rows, ConstView<T> in) {
  const auto V = view();
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (k + prefetch_distance < rows.size()) prefetch(V.column(rows[k + prefetch_distance]), dim_);
    std::copy_n(in.column(static_cast<Size>(k)), dim_, V.column(rows[k]));
  }
  rows_written_ += static_cast<std::int64_t>(rows.size());
}

template <class T>
void RowStore<T>::visit_state(StateVisitor& visitor, const StateVisitor::NextUsed& next_used) {
  if (visitor.loading()) memory_.clear();
  visitor.sparse_block("V", view(), next_used);
  visitor.count("rows_read", rows_read_);
  visitor.count("rows_written", rows_written_);
}

template class RowStore<float>;
template class RowStore<double>;

}  // namespace widehead
