#pragma once
/// Where the rows of V live: gather and scatter, nothing else. In memory, or in a file mapped into
/// memory that may be larger than RAM. Either way rows are zero at first and cost nothing, neither
/// time nor memory, until they are written: creating a store is O(1) in D. (A device has no such pages: there all rows
/// are allocated, and cleared at the speed of its memory.)
///
/// A device may have no room for all rows. Then they stay with the host, in memory that is pinned, hence resident as a
/// whole, and that the device reads and writes over the bus: each row that is touched crosses it once.
///
/// A disk may be full. Of a store into a hole of a mapped file the system can only say so by SIGBUS, which ends the
/// process. So room is made on the disk before a page of the file is written for the first time, where it can still be
/// refused by an error.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "widehead/backend.h"
#include "widehead/matrix.h"
#include "widehead/state.h"

namespace widehead {

/// Zeroed bytes from the system, resident only where touched.
class MappedMemory {
 public:
  MappedMemory();
  /// Anonymous memory.
  explicit MappedMemory(std::size_t bytes);
  /// A new, sparse file. @throws std::system_error naming the path, also when the file exists.
  MappedMemory(const std::string& path, std::size_t bytes);
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  ~MappedMemory();

  /// All bytes are zero again, and none is resident.
  void clear();

  bool is_file() const { return room_ != nullptr; }
  /// Whether bytes first … last − 1 of a file have yet to get room on the disk, before which nobody may write to them.
  bool needs_room(std::size_t first, std::size_t last) const;
  /// Makes room on the disk for the pages these bytes lie in, and for no others. What they hold stays. Allocates
  /// nothing. @return 0, or what the system says against it (errno)
  [[nodiscard]] int make_room(std::size_t first, std::size_t last);
  /// The file's name, while it has one; empty for memory.
  const std::string& path() const;
  /// Removes the file's name; its bytes stay as long as this object.
  void remove_name();

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  struct Room;  // which pages of the file have room

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::unique_ptr<Room> room_;  // of a file only
};

/// Where the rows are of a backend whose memory is not the host's.
enum class RowPlace {
  automatic,  ///< device, unless they would take more than four fifths of what is free there
  device,
  host,
};

template <class T>
class RowStore {
 public:
  /// @param path   file for the rows, created sparse; empty for memory
  /// @param place  on a device; where the backend's memory is the host's, there is nothing to choose
  /// @throws std::invalid_argument for a file or a place that such a backend does not have
  RowStore(Backend<T>& backend, Size rows, Size dim, const std::string& path = {},
           RowPlace place = RowPlace::automatic);

  Size rows() const { return rows_; }
  Size dim() const { return dim_; }
  /// Whether they are in the host's memory, and the backend's is another.
  bool is_remote() const { return remote_; }

  /// Stands for a row that is known to be zero and need not be read.
  static constexpr Index zero_row = Backend<T>::no_column;

  /// Column k of out ← row rows[k].
  void gather(std::span<const Index> rows, MatrixView<T> out);
  /// Backend::express_columns of the rows.
  void express(std::span<const Index> rows, ConstView<T> matrices, std::span<const Index> matrix, bool adds,
               MatrixView<T> out);
  /// Makes sure that the disk has room for these rows. Who must not fail half-way calls it before anything else;
  /// a row for which there was room once has it forever, and costs one look.
  /// @throws std::system_error naming the file, the first row without room and their number; all rows are as before
  void reserve(std::span<const Index> rows);
  /// Row rows[k] ← column k of in. Rows are distinct. Reserves those that are not.
  void scatter(std::span<const Index> rows, ConstView<T> in) { scatter(rows, in, {}); }
  /// Row rows[k] ← column columns[k] of in.
  void scatter(std::span<const Index> rows, ConstView<T> in, std::span<const Index> columns);
  /// Row rows[k] ← itself + column k of in. Rows are distinct, and not remote. Reserves those that are not.
  void add(std::span<const Index> rows, ConstView<T> in);
  /// Has the system find memory for these rows, which are reserved, in case they have none yet: who writes them later
  /// need not wait for it.
  void touch(std::span<const Index> rows);
  /// All rows as d x D, to be read: by whoever `reach`es for them first where they are remote.
  ConstView<T> view() { return data(); }
  /// The same to be filled when a layer is made: all rows are reserved. @throws as reserve; then the file is gone
  MatrixView<T> view_to_fill();

  /// @param next_used  the next row that was ever written
  void visit_state(StateVisitor& visitor, const StateVisitor::NextUsed& next_used);

  std::int64_t rows_read() const { return rows_read_; }
  std::int64_t rows_written() const { return rows_written_; }

 private:
  MatrixView<T> data();
  std::size_t row_bytes() const { return static_cast<std::size_t>(dim_) * sizeof(T); }
  void reserve(Size first, Size last);
  [[noreturn]] void refuse(int error, Size first, Size missing) const;

  Backend<T>& backend_;
  Size rows_;
  Size dim_;
  bool remote_ = false;
  MappedMemory mapped_;           // of the host, or
  Matrix<T> allocated_;           // d x D, in memory of the backend's
  Matrix<T> fetched_;             // d x rows: of remote ones, those at hand
  std::vector<Index> positions_;  // where they are there
  std::int64_t rows_read_ = 0;
  std::int64_t rows_written_ = 0;
};

}  // namespace widehead
