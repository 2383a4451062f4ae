#include "widehead/row_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "widehead/device_state.h"

namespace widehead {
namespace {

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
RowStore<T>::RowStore(Backend<T>& backend, Size rows, Size dim, const std::string& path)
    : backend_(backend), rows_(rows), dim_(dim) {
  const auto bytes = bytes_of(rows, dim, sizeof(T));
  if (backend.memory().is_host()) {
    mapped_ = path.empty() ? MappedMemory(bytes) : MappedMemory(path, bytes);
  } else if (path.empty()) {
    on_device_ = Matrix<T>(dim, rows, backend.memory());
  } else {
    throw std::invalid_argument(
        fmt::format("rows file {}: on device {} the rows are in its memory", path, backend.device()));
  }
}

template <class T>
MatrixView<T> RowStore<T>::view() {
  return {mapped_.size() > 0 ? static_cast<T*>(mapped_.data()) : on_device_.data(), dim_, rows_};
}

template <class T>
void RowStore<T>::gather(std::span<const Index> rows, MatrixView<T> out) {
  if (rows.empty()) return;
  backend_.move_columns(view(), rows, {}, out);
  rows_read_ += std::count_if(rows.begin(), rows.end(), [](Index row) { return row != zero_row; });
}

template <class T>
void RowStore<T>::express(std::span<const Index> rows, ConstView<T> matrices, std::span<const Index> matrix,
                          MatrixView<T> out) {
  backend_.express_columns(view(), rows, matrices, matrix, out);
  rows_read_ += std::count_if(rows.begin(), rows.end(), [](Index row) { return row != zero_row; });
}

template <class T>
void RowStore<T>::scatter(std::span<const Index> rows, ConstView<T> in, std::span<const Index> columns) {
  if (rows.empty()) return;
  backend_.move_columns(in, columns, rows, view());
  rows_written_ += static_cast<std::int64_t>(rows.size());
}

template <class T>
void RowStore<T>::touch(std::span<const Index> rows) {
  if (mapped_.size() == 0) return;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), bytes = static_cast<std::size_t>(dim_) * sizeof(T);
  auto* const all = static_cast<unsigned char*>(mapped_.data());
  for (const Index row : rows) {
    const std::size_t first = static_cast<std::size_t>(row) * bytes;
    for (std::size_t at = first; at < first + bytes; at = (at / page + 1) * page) {
      // One access that writes what is there: a read before it would be given a page of zeros first.
      std::atomic_ref(all[at]).fetch_add(0, std::memory_order_relaxed);
    }
  }
}

template <class T>
void RowStore<T>::visit_state(StateVisitor& visitor, const StateVisitor::NextUsed& next_used) {
  if (visitor.loading()) mapped_.clear();
  visit_sparse_block(visitor, backend_, "V", view(), next_used);
  visitor.count("rows_read", rows_read_);
  visitor.count("rows_written", rows_written_);
}

template class RowStore<float>;
template class RowStore<double>;

}  // namespace widehead
