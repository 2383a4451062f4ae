#include "program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

namespace widehead::cuda {
namespace {

constexpr Size most_tiles = std::numeric_limits<int>::max() / 2;  // of a phase: blocks count beyond the last
constexpr std::size_t least_bytes = std::size_t{1} << 18;         // of a slot, so that it grows seldom
constexpr std::size_t instructions_bytes = (sizeof(Instruction) + sizeof(int)) * most_instructions;  // with `taken`

}  // namespace

/// Exact for pieces at the same distance, as two blocks of one matrix; careful otherwise.
bool overlap(const Range& a, const Range& b) {
  if (a.end <= b.first || b.end <= a.first || a.first == a.end || b.first == b.end) return false;
  if (a.stride != b.stride || a.width > a.stride || b.width > b.stride) return true;
  const std::size_t offset =
      b.first >= a.first ? (b.first - a.first) % a.stride : (a.stride - (a.first - b.first) % a.stride) % a.stride;
  return offset < a.width || offset + b.width > a.stride;
}

Program::Program(const Device& device, const Stream& stream, Memory& pinned, Memory& memory)
    : device_(device), stream_(stream), pinned_(pinned), memory_(memory) {
  instructions_.reserve(most_instructions);
  phase_of_.reserve(most_instructions);
}

/// A slot with room for lists of so many bytes, whose last program has left the host.
void Program::open(std::size_t bytes) {
  device_.make_current();
  auto& slot = slots_[slot_];
  if (!slot) slot = std::make_unique<Slot>(pinned_, memory_);
  slot->sent.wait();
  const std::size_t needed = bytes + instructions_bytes;
  if (needed > slot->size) {
    slot->size = std::max({needed, 2 * slot->size, least_bytes});
    slot->host.room<std::byte>(slot->size);
    slot->device.room<std::byte>(slot->size);
  }
  used_ = 0;
  open_ = true;
}

Lists Program::lists(std::size_t bytes) {
  if (open_ && used_ + bytes + instructions_bytes > slots_[slot_]->size) start();
  if (!open_) open(bytes);
  auto& slot = *slots_[slot_];
  const Lists lists(slot.host.room<std::byte>(slot.size) + used_, slot.device.room<std::byte>(slot.size) + used_);
  used_ += bytes;
  return lists;
}

/// Whether something that reads and writes this must not be done beside the first so many of a phase.
bool Program::conflict(std::initializer_list<Range> reads, std::initializer_list<Range> writes, const Phase& phase,
                       std::size_t known_reads, std::size_t known_writes) {
  const auto met = [](const std::vector<Range>& known, std::size_t count, std::initializer_list<Range> ranges) {
    const auto end = known.begin() + static_cast<std::ptrdiff_t>(count);
    return std::any_of(ranges.begin(), ranges.end(), [&](const Range& a) {
      return std::any_of(known.begin(), end, [&](const Range& b) { return overlap(a, b); });
    });
  };
  return met(phase.writes, known_writes, reads) || met(phase.writes, known_writes, writes) ||
         met(phase.reads, known_reads, writes);
}

bool Program::conflict(std::initializer_list<Range> reads, std::initializer_list<Range> writes,
                       std::size_t phase) const {
  return conflict(reads, writes, phases_[phase], phases_[phase].reads.size(), phases_[phase].writes.size());
}

/// Whether it must not be done in the phase of the last instruction, by that.
bool Program::conflict_beside_last(std::initializer_list<Range> reads, std::initializer_list<Range> writes) const {
  const std::size_t own = phase_of_.back();
  for (std::size_t later = own + 1; later < phase_count_; ++later) {
    if (conflict(reads, writes, later)) return true;
  }
  return conflict(reads, writes, phases_[own], last_reads_, last_writes_);
}

/// The first phase with blocks to spare behind the last one that conflicts; else the last, or a new one where that
/// conflicts or could not count its tiles.
std::size_t Program::phase_for(Size tiles, std::initializer_list<Range> reads,
                               std::initializer_list<Range> writes) const {
  std::size_t first = phase_count_;
  while (first > 0 && !conflict(reads, writes, first - 1)) --first;
  if (first == phase_count_) return first;
  for (std::size_t phase = first; phase < phase_count_; ++phase) {
    if (phases_[phase].tiles + tiles <= most_blocks_) return phase;
  }
  return phases_[phase_count_ - 1].tiles + tiles <= most_tiles ? phase_count_ - 1 : phase_count_;
}

/// The last instruction has so many tiles, and reads and writes this.
void Program::extend(Size tiles, std::initializer_list<Range> reads, std::initializer_list<Range> writes) {
  auto& phase = phases_[phase_of_.back()];
  phase.reads.insert(phase.reads.end(), reads);
  phase.writes.insert(phase.writes.end(), writes);
  phase.tiles += tiles;
  instructions_.back().tiles = static_cast<int>(tiles);
}

Instruction& Program::next(Kind kind, Size tiles, std::initializer_list<Range> reads,
                           std::initializer_list<Range> writes) {
  if (tiles > most_tiles) {
    throw std::length_error(fmt::format("CUDA: an operation of {} tiles is too large", tiles));
  }
  if (instructions_.size() == most_instructions) start();
  const std::size_t phase = phase_count_ > 0 ? phase_for(tiles, reads, writes) : 0;
  if (phase == phase_count_) {
    if (++phase_count_ > phases_.size()) phases_.emplace_back();
    phases_[phase].reads.clear();
    phases_[phase].writes.clear();
    phases_[phase].tiles = 0;
  }
  last_reads_ = phases_[phase].reads.size();
  last_writes_ = phases_[phase].writes.size();
  instructions_.emplace_back().kind = kind;
  phase_of_.push_back(phase);
  extend(tiles, reads, writes);
  return instructions_.back();
}

/// The instructions to `to`, phase after phase, in each those with the longest tiles first: they begin first, and what
/// is short fills up what time others leave.
void Program::order(Instruction* to) {
  for (std::size_t phase = 0; phase < phase_count_; ++phase) {
    Instruction* const first = to;
    for (std::size_t k = 0; k < instructions_.size(); ++k) {
      if (phase_of_[k] != phase) continue;
      Instruction* place = to++;  // as by insertion: there are few, and they are large
      while (place > first && place[-1].cost < instructions_[k].cost) {
        *place = place[-1];
        --place;
      }
      *place = instructions_[k];
    }
    int tiles = 0;
    for (Instruction* at = first; at < to; ++at) {
      at->before = std::exchange(tiles, tiles + at->tiles);
      at->others = static_cast<int>(to - at) - 1;
    }
  }
}

void Program::start() {
  if (!open_ && instructions_.empty()) return;
  device_.make_current();
  if (!open_) open(0);
  auto& slot = *slots_[slot_];
  std::byte *host = slot.host.room<std::byte>(slot.size), *on_device = slot.device.room<std::byte>(slot.size);
  const std::size_t bytes = instructions_.size() * sizeof(Instruction), taken_bytes = phase_count_ * sizeof(int);
  auto& before = slots_[(slot_ + slots_.size() - 2) % slots_.size()];
  const int count = static_cast<int>(instructions_.size());
  Size tiles = 0;
  for (std::size_t phase = 0; phase < phase_count_; ++phase) tiles = std::max(tiles, phases_[phase].tiles);
  const auto blocks = static_cast<int>(std::min<Size>(tiles, most_blocks_));
  order(reinterpret_cast<Instruction*>(host + used_));
  std::memset(host + used_ + bytes, 0, taken_bytes);
  slot.done.block(copies_.get());
  check(cudaMemcpyAsync(on_device, host, used_ + bytes + taken_bytes, cudaMemcpyHostToDevice, copies_.get()),
        "cudaMemcpyAsync");
  slot.sent.record(copies_.get());
  slot.sent.block(stream_.get());
  const auto* program = reinterpret_cast<const Instruction*>(on_device + used_);
  auto* taken = reinterpret_cast<int*>(on_device + used_ + bytes);
  instructions_.clear();
  phase_of_.clear();
  phase_count_ = 0;
  open_ = false;
  slot_ = (slot_ + 1) % slots_.size();
  ++number_;
  if (count > 0) launch_(program, count, taken, blocks, stream_.get());
  // Whatever has been launched up to now may use lists of the two programs before this one, but of none older.
  if (before) before->done.record(stream_.get());
}

}  // namespace widehead::cuda
