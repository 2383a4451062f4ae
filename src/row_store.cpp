#include "widehead/row_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
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

/// Zeros to be written: as many as the largest page has, and as the longest run for which fallocate is not asked.
constexpr std::size_t short_run = 1 << 16;
constexpr std::array<char, short_run> zeros{};

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

// ── files ───────────────────────────────────────────────────────────────────────────────────────

/// One bit for each page of the file, in memory of which only touched pages are resident: 1.6 MB for 51 GB, if all of
/// it is in use. A page, the unit in which the system fills holes: with anything larger, rows met here and there would
/// take more of the disk than they do by themselves (16 times as much with 64 KiB and rows of 512 bytes).
/// Pages without the bit hold zeros, since nobody writes to them.
struct MappedMemory::Room {
  using Word = std::uint64_t;
  static constexpr std::size_t bits = 64;

  Room(std::string file_path, std::size_t bytes)
      : path(std::move(file_path)),
        page(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))),
        shift(std::countr_zero(page)),
        made(((bytes >> shift) / bits + 1) * sizeof(Word)) {}
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() {
    if (file >= 0) close(file);
  }

  Word& word(std::size_t k) const { return static_cast<Word*>(made.data())[k / bits]; }
  static Word bit(std::size_t k) { return Word{1} << k % bits; }
  bool has(std::size_t k) const { return (word(k) & bit(k)) != 0; }

  /// For bytes that are a hole, or zero. Zeros are written to the few pages of a row: that reserves their blocks on
  /// every file system, and puts the page where the row is stored soon into the cache, so that both together take no
  /// longer than the store alone did (fallocate, which does not, takes as long again). A long run is not to be written
  /// twice.
  int fill(std::size_t first, std::size_t last) const {
    if (last - first > short_run) {
      int result = 0;
      do {
        result = fallocate(file, 0, static_cast<off_t>(first), static_cast<off_t>(last - first));
      } while (result != 0 && errno == EINTR);
      if (result == 0) return 0;
      if (errno != EOPNOTSUPP) return errno;
    }
    while (first < last) {
      const ssize_t put = pwrite(file, zeros.data(), std::min(last - first, short_run), static_cast<off_t>(first));
      if (put < 0 && errno != EINTR) return errno;
      if (put > 0) first += static_cast<std::size_t>(put);
    }
    return 0;
  }

  std::string path;
  std::size_t page;   // bytes
  int shift;          // page = 2^shift
  MappedMemory made;  // bits
  int file = -1;
};

MappedMemory::MappedMemory() = default;

MappedMemory::MappedMemory(const std::string& path, std::size_t bytes)
    : bytes_(bytes), room_(std::make_unique<Room>(path, bytes)) {
  const auto fail = [&](const char* what) {
    throw std::system_error(errno, std::generic_category(), path + ": " + what);
  };
  const int file = room_->file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) fail("cannot create the rows file");
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  } else {
    data_ = MAP_FAILED;
  }
  if (data_ == MAP_FAILED) {
    const int error = errno;
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
      room_(std::move(other.room_)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(room_, other.room_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

/// Pages given back read as zero; so do the holes that MADV_REMOVE leaves in a file, where its system can do it. Where
/// it cannot, the pages that have room keep it.
void MappedMemory::clear() {
  if (bytes_ == 0) return;
  if (madvise(data_, bytes_, room_ ? MADV_REMOVE : MADV_DONTNEED) == 0) {
    if (room_) room_->made.clear();
    return;
  }
  if (!room_) {
    std::memset(data_, 0, bytes_);
    return;
  }
  for (std::size_t first = 0; first < bytes_; first += room_->page) {
    if (room_->has(first >> room_->shift)) {
      std::memset(static_cast<char*>(data_) + first, 0, std::min(room_->page, bytes_ - first));
    }
  }
}

bool MappedMemory::needs_room(std::size_t first, std::size_t last) const {
  if (!room_ || first == last) return false;
  const std::size_t end = ((last - 1) >> room_->shift) + 1;
  for (std::size_t k = first >> room_->shift; k < end; ++k) {
    if (!room_->has(k)) return true;
  }
  return false;
}

int MappedMemory::make_room(std::size_t first, std::size_t last) {
  if (!room_ || first == last) return 0;
  const std::size_t page = room_->page, end = ((last - 1) >> room_->shift) + 1;
  for (std::size_t k = first >> room_->shift; k < end;) {
    if (room_->has(k)) {
      ++k;
      continue;
    }
    std::size_t stop = k + 1;
    while (stop < end && !room_->has(stop)) ++stop;
    if (const int error = room_->fill(k * page, std::min(stop * page, bytes_)); error != 0) return error;
    for (; k < stop; ++k) room_->word(k) |= Room::bit(k);
  }
  return 0;
}

const std::string& MappedMemory::path() const {
  static const std::string none;
  return room_ ? room_->path : none;
}

void MappedMemory::remove_name() {
  if (room_) unlink(room_->path.c_str());
}

// ── rows ────────────────────────────────────────────────────────────────────────────────────────

template <class T>
RowStore<T>::RowStore(Backend<T>& backend, Size rows, Size dim, const std::string& path, RowPlace place)
    : backend_(backend), rows_(rows), dim_(dim), fetched_(backend.memory()) {
  const auto bytes = bytes_of(rows, dim, sizeof(T));
  if (backend.memory().is_host()) {
    if (place != RowPlace::automatic) {
      throw std::invalid_argument(
          fmt::format("rows: a place was asked for, but the memory of device {} is the host's", backend.device()));
    }
    mapped_ = path.empty() ? MappedMemory(bytes) : MappedMemory(path, bytes);
    return;
  }
  if (!path.empty()) {
    throw std::invalid_argument(
        fmt::format("rows file {}: with device {} the rows are in its memory or in the host's, not in a file", path,
                    backend.device()));
  }
  remote_ = place == RowPlace::host || (place == RowPlace::automatic && bytes > backend.free_memory() / 5 * 4);
  allocated_ = Matrix<T>(dim, rows, remote_ ? backend.column_memory() : backend.memory());
}

template <class T>
MatrixView<T> RowStore<T>::data() {
  return {mapped_.size() > 0 ? static_cast<T*>(mapped_.data()) : allocated_.data(), dim_, rows_};
}

template <class T>
void RowStore<T>::refuse(int error, Size first, Size missing) const {
  throw std::system_error(
      error, std::generic_category(),
      fmt::format("rows file {}: no room left on the disk for {} more row{}, from row {} at byte {} on", mapped_.path(),
                  missing, missing == 1 ? "" : "s", first, static_cast<std::size_t>(first) * row_bytes()));
}

template <class T>
void RowStore<T>::reserve(std::span<const Index> rows) {
  if (!mapped_.is_file()) return;
  const auto needs_room = [&](Index row) {
    const auto first = static_cast<std::size_t>(row) * row_bytes();
    return mapped_.needs_room(first, first + row_bytes());
  };
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (!needs_room(rows[k])) continue;
    const auto first = static_cast<std::size_t>(rows[k]) * row_bytes();
    if (const int error = mapped_.make_room(first, first + row_bytes()); error != 0) {
      refuse(error, rows[k], std::count_if(rows.begin() + static_cast<std::ptrdiff_t>(k), rows.end(), needs_room));
    }
  }
}

/// Rows first … last − 1.
template <class T>
void RowStore<T>::reserve(Size first, Size last) {
  const int error =
      mapped_.make_room(static_cast<std::size_t>(first) * row_bytes(), static_cast<std::size_t>(last) * row_bytes());
  if (error != 0) refuse(error, first, last - first);
}

template <class T>
MatrixView<T> RowStore<T>::view_to_fill() {
  try {
    reserve(0, rows_);
  } catch (const std::system_error&) {
    mapped_.remove_name();
    throw;
  }
  return data();
}

template <class T>
void RowStore<T>::gather(std::span<const Index> rows, MatrixView<T> out) {
  if (rows.empty()) return;
  backend_.move_columns(data(), rows, {}, out);
  rows_read_ += std::count_if(rows.begin(), rows.end(), [](Index row) { return row != zero_row; });
}

/// What is remote is fetched first: products read a row many times.
template <class T>
void RowStore<T>::express(std::span<const Index> rows, ConstView<T> matrices, std::span<const Index> matrix, bool adds,
                          MatrixView<T> out) {
  if (remote_) {
    const auto fetched = fetched_.scratch(dim_, static_cast<Size>(rows.size()));
    backend_.move_columns(data(), rows, {}, fetched);
    positions_.resize(rows.size());
    for (std::size_t k = 0; k < rows.size(); ++k) {
      positions_[k] = rows[k] == zero_row ? zero_row : static_cast<Index>(k);
    }
    backend_.express_columns(fetched, positions_, matrices, matrix, adds, out);
  } else {
    backend_.express_columns(data(), rows, matrices, matrix, adds, out);
  }
  rows_read_ += std::count_if(rows.begin(), rows.end(), [](Index row) { return row != zero_row; });
}

template <class T>
void RowStore<T>::scatter(std::span<const Index> rows, ConstView<T> in, std::span<const Index> columns) {
  if (rows.empty()) return;
  reserve(rows);
  backend_.move_columns(in, columns, rows, data());
  rows_written_ += static_cast<std::int64_t>(rows.size());
}

template <class T>
void RowStore<T>::add(std::span<const Index> rows, ConstView<T> in) {
  if (rows.empty()) return;
  reserve(rows);
  backend_.add_to_columns(T(1), in, rows, data());
  rows_read_ += static_cast<std::int64_t>(rows.size());
  rows_written_ += static_cast<std::int64_t>(rows.size());
}

template <class T>
void RowStore<T>::touch(std::span<const Index> rows) {
  if (mapped_.size() == 0) return;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), bytes = row_bytes();
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
  if (visitor.loading() && mapped_.is_file()) {
    for (Size first = next_used(0); first < rows_;) {  // runs of rows in use: others are zero, and are not written
      Size last = first + 1;
      while (last < rows_ && next_used(last) == last) ++last;
      reserve(first, last);
      first = last < rows_ ? next_used(last) : last;
    }
  }
  if (remote_) {  // the host reaches them itself, once nobody else is at work on them
    backend_.wait();
    if (visitor.loading()) std::fill_n(allocated_.data(), allocated_.size(), T(0));
    visitor.sparse_block("V", data(), next_used);
  } else {
    visit_sparse_block(visitor, backend_, "V", data(), next_used);
  }
  visitor.count("rows_read", rows_read_);
  visitor.count("rows_written", rows_written_);
}

template class RowStore<float>;
template class RowStore<double>;

}  // namespace widehead
