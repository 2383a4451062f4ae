#pragma once
/// A program: operations that are done together, by one kernel. Most operations of a step are over sooner than a launch
/// takes. So they are only written down when they are asked for, with the lists of the host's that they need, and go to
/// the device together: one upload, which overlaps with what the device is doing meanwhile, and one launch. All blocks
/// go through the instructions (program.cu), taking tiles of them as they get on, and meet where one needs what another
/// wrote since they last met. Between two meetings is a phase; an instruction need not be in the last one, if it costs
/// less time in an earlier one and nothing that it depends on comes later.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
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

inline constexpr std::size_t argument_bytes = 464;
struct alignas(16) Instruction {
  Kind kind;
  int tiles;   ///< what there is to do, in pieces that a block does at a time
  int before;  ///< tiles of its phase that come before its own
  alignas(16) std::byte arguments[argument_bytes];
};
inline constexpr int most_instructions = 128;
inline constexpr int first_limit = 32;   ///< of a program after somebody waited; the next ones are longer and longer
inline constexpr int most_at_once = 16;  ///< of a phase: those of two lie in shared memory
inline constexpr int most_processors = 256;  ///< beyond, some are taken for others
inline constexpr int program_threads = 256;
inline constexpr int program_shared_bytes = 84480;  ///< of a block, for whatever it does

/// In which order a program's instructions are done. The counters are zero when it begins.
struct Plan {
  int starts[most_instructions + 1];  ///< of the phases in `order`, and the end of the last
  int order[most_instructions];       ///< numbers of instructions, as they were written down
  int on_processor[most_processors];  ///< blocks there
  int first, others;                  ///< blocks that are first on their multiprocessor, and those that are not
  int arrived;                        ///< blocks, at all meetings so far
  int taken[most_instructions];       ///< tiles of each phase beyond those that blocks begin with
};

/// How long a tile takes, in µs or so, and the longest of them, which begin first where they are much longer.
struct Effort {
  float tile = 1, longest = tile;
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

  /// The next instruction. Its lists need not be among the ranges.
  template <class Arguments>
  void add(Kind kind, Size tiles, const Arguments& arguments, std::initializer_list<Range> reads,
           std::initializer_list<Range> writes, Effort effort = {}) {
    static_assert(std::is_trivially_copyable_v<Arguments> && sizeof(Arguments) <= argument_bytes);
    if (tiles <= 0) return;
    auto& instruction = next(kind, tiles, reads, writes, effort);
    std::memcpy(instruction.arguments, &arguments, sizeof(Arguments));
  }

  /// One of the instructions, as long as its program is being written.
  struct Mark {
    std::uint64_t program = 0;
    std::size_t number = 0;
  };
  /// The last instruction; that of no program where there is none.
  Mark last() const { return phase_of_.empty() ? Mark{} : Mark{number_, phase_of_.size() - 1}; }
  /// The arguments of an instruction, if it is still there and of this kind; else nullptr.
  template <class Arguments>
  const Arguments* find(Mark mark, Kind kind) const {
    if (mark.program != number_ || phase_of_.empty() || at(mark.number).kind != kind) return nullptr;
    return reinterpret_cast<const Arguments*>(at(mark.number).arguments);
  }
  /// Makes of an instruction another one, which does what it did and reads and writes this besides, where that is its
  /// own business: false where others in its phase, or later ones, have to do with it. It has as many tiles as before
  /// unless it is told.
  template <class Arguments>
  bool extend(Mark mark, Kind kind, const Arguments& arguments, std::initializer_list<Range> reads,
              std::initializer_list<Range> writes, Size tiles = 0, Effort effort = {}) {
    static_assert(std::is_trivially_copyable_v<Arguments> && sizeof(Arguments) <= argument_bytes);
    if (mark.program != number_ || !can_extend(mark.number, reads, writes)) return false;
    at(mark.number).kind = kind;
    if (tiles > 0) set_tiles(mark.number, tiles, effort);
    note(mark.number, reads, writes);
    std::memcpy(at(mark.number).arguments, &arguments, sizeof(Arguments));
    return true;
  }

  /// The next so many instructions are of one program: whether they are extended, and so what they round, is the same
  /// wherever they stand. So are lists of so many bytes.
  void keep_together(std::size_t count, std::size_t bytes = 0) {
    if (phase_of_.size() + count > limit_ || (open_ && used_ + bytes > slots_[slot_]->size)) start();
  }

  /// What has been written goes to the device. Lists are there for whatever is launched on the stream after it.
  void start();
  /// Somebody waits for the device, or will: it is not to be kept waiting for a long program after that.
  void hurry() { limit_ = first_limit; }

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
  /// A range, and the number of the instruction whose it is.
  struct Owned {
    Range range;
    std::size_t owner;
  };
  struct Phase {
    std::vector<Owned> reads, writes;
    std::vector<std::pair<float, Size>> loads;  ///< what a tile takes, and how many there are; the longest first
    Size tiles = 0;
    float longest = 0;  ///< of a tile
    float time = 0;     ///< of all, by time_of
  };
  Instruction& at(std::size_t number) { return last_[phase_of_.size() - 1 - number]; }
  const Instruction& at(std::size_t number) const { return last_[phase_of_.size() - 1 - number]; }
  Instruction& next(Kind kind, Size tiles, std::initializer_list<Range> reads, std::initializer_list<Range> writes,
                    Effort effort);
  static bool conflict(std::initializer_list<Range> reads, std::initializer_list<Range> writes, const Phase& phase,
                       std::size_t but);
  bool can_extend(std::size_t number, std::initializer_list<Range> reads, std::initializer_list<Range> writes) const;
  float time_of(const Phase& phase, Size tiles, Effort effort) const;
  std::size_t phase_for(Size tiles, std::initializer_list<Range> reads, std::initializer_list<Range> writes,
                        Effort effort) const;
  void set_tiles(std::size_t number, Size tiles, Effort effort);
  void note(std::size_t number, std::initializer_list<Range> reads, std::initializer_list<Range> writes);
  void write_plan(Plan& plan);
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
  std::vector<Effort> efforts_;        ///< likewise
  std::vector<Phase> phases_;          ///< those beyond phase_count_ only keep their memory
  std::size_t phase_count_ = 0;
  std::size_t limit_ = first_limit;  ///< instructions with which it goes to the device unasked
};

}  // namespace widehead::cuda
