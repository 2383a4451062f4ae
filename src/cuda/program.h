#pragma once
/// A program: operations that are done together, by one kernel. Most operations of a step are over sooner than a launch
/// takes. So they are only written down when they are asked for, with the lists of the host's that they need, and go to
/// the device together: one upload, which overlaps with what the device is doing meanwhile, and one launch. All blocks
/// go through the instructions (program.cu), taking tiles of them as they get on, and meet where one needs what another
/// wrote since they last met. Between two meetings is a phase; an instruction need not be in the last one, if an
/// earlier one has blocks to spare and nothing that it depends on comes later.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "resources.h"
#include "widehead/matrix.h"

namespace widehead::cuda {

enum class Kind : int {
  elements,
  multiply,
  express,
  sum_columns,
  dots,
  observe,
  gram,
  judge,
  observe_and_judge,
  summarize,
  sum_rows,
};

inline constexpr std::size_t argument_bytes = 384;
struct alignas(16) Instruction {
  Kind kind;
  int tiles;   ///< what there is to do, in pieces that a block does at a time
  int before;  ///< tiles of its phase that come before its own
  float cost;  ///< of a tile, in µs or so: for the host, which has those begin first that take longest
  alignas(16) std::byte arguments[argument_bytes];
};
inline constexpr int most_instructions = 128;
inline constexpr int most_at_once = 16;      ///< of a phase: those of two lie in shared memory
inline constexpr int most_processors = 256;  ///< beyond, some are taken for others
inline constexpr int program_threads = 256;
inline constexpr int program_shared_bytes = 87040;  ///< of a block, for whatever it does

/// In which order a program's instructions are done. The counters are zero when it begins.
struct Plan {
  int starts[most_instructions + 1];  ///< of the phases in `order`, and the end of the last
  int order[most_instructions];       ///< numbers of instructions, as they were written down
  int on_processor[most_processors];  ///< blocks there
  int first, others;                  ///< blocks that are first on their multiprocessor, and those that are not
  int arrived;                        ///< blocks, at all meetings so far
  int taken[most_instructions];       ///< tiles of each phase beyond those that blocks begin with
};

/// What an operation reads or writes: pieces of `width` bytes, `stride` apart, the last of which ends at `end`; nothing
/// where that is `first`.
struct Range {
  std::uintptr_t first, end;
  std::size_t width, stride;
};
template <class U>
Range range(MatrixView<U> A) {
  const auto first = reinterpret_cast<std::uintptr_t>(A.data);
  const std::size_t width = static_cast<std::size_t>(A.rows) * sizeof(U),
                    stride = static_cast<std::size_t>(A.stride) * sizeof(U);
  const bool empty = A.data == nullptr || A.rows == 0 || A.cols == 0;
  return {first, empty ? first : first + static_cast<std::size_t>(A.cols - 1) * stride + width, width, stride};
}
template <class U>
Range range(const U* data, std::size_t count) {
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  return {first, first + count * sizeof(U), count * sizeof(U), count * sizeof(U)};
}
bool pieces_overlap(const Range& a, const Range& b);
inline bool overlap(const Range& a, const Range& b) {
  return a.first < b.end && b.first < a.end && pieces_overlap(a, b);
}

/// Lists of the host's for one operation: taken and written by the host, then given to an instruction, or to a launch
/// after Program::start.
class Lists {
 public:
  /// What a list takes up, so that the next one is aligned.
  template <class U>
  static std::size_t bytes(std::size_t count) {
    return (count * sizeof(U) + 15) / 16 * 16;
  }

  template <class U>
  struct List {
    U* host;
    const U* device;
  };
  /// The next list; nullptr, both of them, where it has no elements.
  template <class U>
  List<U> take(std::size_t count) {
    if (count == 0) return {nullptr, nullptr};
    const List<U> list{reinterpret_cast<U*>(host_), reinterpret_cast<const U*>(device_)};
    host_ += bytes<U>(count);
    device_ += bytes<U>(count);
    return list;
  }
  template <class U>
  const U* put(std::span<const U> values) {
    const auto list = take<U>(values.size());
    std::copy(values.begin(), values.end(), list.host);
    return list.device;
  }

 private:
  friend class Program;
  Lists(std::byte* host, std::byte* device) : host_(host), device_(device) {}
  std::byte* host_;
  std::byte* device_;
};

/// The program that is being written, and those that the device has not finished.
class Program {
 public:
  /// How a program is launched: by the translation unit that has the kernel.
  /// @param end  of the instructions: the first one is before it, the next before that, and so on
  using Launch = void (*)(const Instruction* end, Plan* plan, int phases, int blocks, cudaStream_t stream);

  /// @param memory  where programs are kept on the device; of its own, since whatever else is released there might be
  ///                in use by the program that is being written
  Program(const Device& device, const Stream& stream, Memory& pinned, Memory& memory);
  /// @param most_blocks  that the device has room for at once
  void set_launch(Launch launch, int most_blocks) {
    launch_ = launch;
    most_blocks_ = most_blocks;
  }

  /// Which program is being written: lists that were put into another are not for its instructions.
  std::uint64_t number() const { return number_; }
  /// Room for lists of so many bytes (Lists::bytes, added up).
  Lists lists(std::size_t bytes);

  /// The next instruction. Its lists need not be among the ranges. The cost of a tile is in µs or so.
  template <class Arguments>
  void add(Kind kind, Size tiles, const Arguments& arguments, std::initializer_list<Range> reads,
           std::initializer_list<Range> writes, float cost = 1) {
    static_assert(std::is_trivially_copyable_v<Arguments> && sizeof(Arguments) <= argument_bytes);
    if (tiles <= 0) return;
    auto& instruction = next(kind, tiles, reads, writes);
    instruction.cost = cost;
    std::memcpy(instruction.arguments, &arguments, sizeof(Arguments));
  }
  /// The arguments of the last instruction, if that is of this kind; else nullptr.
  template <class Arguments>
  const Arguments* last(Kind kind) const {
    if (phase_of_.empty() || last_->kind != kind) return nullptr;
    return reinterpret_cast<const Arguments*>(last_->arguments);
  }
  /// Makes of the last instruction another one, which does what it did and reads and writes this besides, where that is
  /// its own business: false where others in its phase, or later ones, have to do with it.
  template <class Arguments>
  bool replace_last(Kind kind, Size tiles, const Arguments& arguments, std::initializer_list<Range> reads,
                    std::initializer_list<Range> writes) {
    static_assert(std::is_trivially_copyable_v<Arguments> && sizeof(Arguments) <= argument_bytes);
    if (conflict_beside_last(reads, writes)) return false;
    last_->kind = kind;
    phases_[phase_of_.back()].tiles -= last_->tiles;
    extend(tiles, reads, writes);
    std::memcpy(last_->arguments, &arguments, sizeof(Arguments));
    return true;
  }

  /// What has been written goes to the device. Lists are there for whatever is launched on the stream after it.
  void start();

 private:
  /// Where a program lies while it is on its way, on both sides: instructions, the last first, up to `heads`; then the
  /// plan, and lists.
  struct Slot {
    Slot(Memory& pinned, Memory& memory) : host(pinned), device(memory) {}
    static constexpr std::size_t heads = most_instructions * sizeof(Instruction);
    static constexpr std::size_t before_lists = heads + (sizeof(Plan) + 15) / 16 * 16;
    Buffer host, device;
    std::size_t size = 0;
    Event sent;  ///< the host's bytes have been read
    Event done;  ///< all that used the device's bytes is done
  };
  struct Phase {
    std::vector<Range> reads, writes;
    Size tiles = 0;
    int instructions = 0;
  };
  Instruction& next(Kind kind, Size tiles, std::initializer_list<Range> reads, std::initializer_list<Range> writes);
  static bool conflict(std::initializer_list<Range> reads, std::initializer_list<Range> writes, const Phase& phase,
                       std::size_t known_reads, std::size_t known_writes);
  bool conflict(std::initializer_list<Range> reads, std::initializer_list<Range> writes, std::size_t phase) const;
  bool conflict_beside_last(std::initializer_list<Range> reads, std::initializer_list<Range> writes) const;
  std::size_t phase_for(Size tiles, std::initializer_list<Range> reads, std::initializer_list<Range> writes) const;
  void write_plan(Plan& plan);
  void extend(Size tiles, std::initializer_list<Range> reads, std::initializer_list<Range> writes);
  void open(std::size_t bytes);

  const Device& device_;
  const Stream& stream_;
  Stream copies_;
  Memory& pinned_;
  Memory& memory_;
  Launch launch_ = nullptr;
  int most_blocks_ = 0;

  std::array<std::unique_ptr<Slot>, 16> slots_;
  std::size_t slot_ = 0;  ///< of the program that is being written
  std::size_t used_ = 0;  ///< of its bytes, lists included
  bool open_ = false;     ///< whether the slot has been made ready
  std::uint64_t number_ = 1;
  Instruction* last_ = nullptr;        ///< of the instructions; those before it come after it, in the slot
  std::vector<std::size_t> phase_of_;  ///< of each, in the order in which they were asked for
  std::vector<Phase> phases_;          ///< those beyond phase_count_ only keep their memory
  std::size_t phase_count_ = 0;
  std::size_t limit_ = 0;                         ///< instructions with which it goes to the device unasked
  std::size_t last_reads_ = 0, last_writes_ = 0;  ///< where those of the last instruction begin, in its phase
};

}  // namespace widehead::cuda
