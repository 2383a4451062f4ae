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
constexpr std::size_t first_limit = 32;  // after somebody asked, who waits perhaps: the device is not kept waiting
constexpr std::size_t least_bytes = std::size_t{1} << 20;  // of a slot, so that it grows seldom

}  // namespace

/// Exact for pieces at the same distance, as two blocks of one matrix; careful otherwise.
bool pieces_overlap(const Range& a, const Range& b) {
  if (a.first == a.end || b.first == b.end) return false;
  if (a.stride != b.stride || a.width > a.stride || b.width > b.stride) return true;
  const std::size_t offset =
      b.first >= a.first ? (b.first - a.first) % a.stride : (a.stride - (a.first - b.first) % a.stride) % a.stride;
  return offset < a.width || offset + b.width > a.stride;
}

Program::Program(const Device& device, const Stream& stream, Memory& pinned, Memory& memory)
    : device_(device), stream_(stream), pinned_(pinned), memory_(memory) {
  phase_of_.reserve(most_instructions);
  limit_ = first_limit;
}

/// A slot with room for lists of so many bytes, whose last program has left the host.
void Program::open(std::size_t bytes) {
  device_.make_current();
  auto& slot = slots_[slot_];
  if (!slot) slot = std::make_unique<Slot>(pinned_, memory_);
  slot->sent.wait();
  const std::size_t needed = Slot::before_lists + bytes;
  if (needed > slot->size) {
    slot->size = std::max({needed, 2 * slot->size, least_bytes});
    slot->host.room<std::byte>(slot->size);
    slot->device.room<std::byte>(slot->size);
  }
  used_ = Slot::before_lists;
  last_ = reinterpret_cast<Instruction*>(slot->host.room<std::byte>(slot->size) + Slot::heads);
  open_ = true;
}

Lists Program::lists(std::size_t bytes) {
  if (open_ && used_ + bytes > slots_[slot_]->size) start();
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
  const auto has_room = [&](std::size_t phase, Size most) {
    return phases_[phase].instructions < most_at_once && phases_[phase].tiles + tiles <= most;
  };
  for (std::size_t phase = first; phase < phase_count_; ++phase) {
    if (has_room(phase, most_blocks_)) return phase;
  }
  return has_room(phase_count_ - 1, most_tiles) ? phase_count_ - 1 : phase_count_;
}

/// The last instruction has so many tiles, and reads and writes this.
void Program::extend(Size tiles, std::initializer_list<Range> reads, std::initializer_list<Range> writes) {
  auto& phase = phases_[phase_of_.back()];
  phase.reads.insert(phase.reads.end(), reads);
  phase.writes.insert(phase.writes.end(), writes);
  phase.tiles += tiles;
  last_->tiles = static_cast<int>(tiles);
}

Instruction& Program::next(Kind kind, Size tiles, std::initializer_list<Range> reads,
                           std::initializer_list<Range> writes) {
  if (tiles > most_tiles) {
    throw std::length_error(fmt::format("CUDA: an operation of {} tiles is too large", tiles));
  }
  if (phase_of_.size() == limit_) {
    const std::size_t next = std::min<std::size_t>(2 * limit_, most_instructions);
    start();
    limit_ = next;
  }
  if (!open_) open(0);
  const std::size_t phase = phase_count_ > 0 ? phase_for(tiles, reads, writes) : 0;
  if (phase == phase_count_) {
    if (++phase_count_ > phases_.size()) phases_.emplace_back();
    phases_[phase].reads.clear();
    phases_[phase].writes.clear();
    phases_[phase].tiles = 0;
    phases_[phase].instructions = 0;
  }
  last_reads_ = phases_[phase].reads.size();
  last_writes_ = phases_[phase].writes.size();
  ++phases_[phase].instructions;
  (--last_)->kind = kind;
  phase_of_.push_back(phase);
  extend(tiles, reads, writes);
  return *last_;
}

/// Phase after phase, in each those with the longest tiles first: they begin first, and what is short fills up what
/// time others leave.
void Program::write_plan(Plan& plan) {
  std::memset(&plan, 0, sizeof plan);
  Instruction* const end = last_ + phase_of_.size();
  const auto instruction = [&](int number) -> Instruction& { return end[-1 - number]; };
  for (const std::size_t phase : phase_of_) ++plan.starts[phase + 1];
  for (std::size_t phase = 0; phase < phase_count_; ++phase) plan.starts[phase + 1] += plan.starts[phase];
  for (std::size_t k = 0; k < phase_of_.size(); ++k) {
    const std::size_t phase = phase_of_[k];
    const int first = plan.starts[phase];
    int place = first + plan.taken[phase]++;  // as by insertion: there are few
    for (; place > first && instruction(plan.order[place - 1]).cost < instruction(static_cast<int>(k)).cost; --place) {
      plan.order[place] = plan.order[place - 1];
    }
    plan.order[place] = static_cast<int>(k);
  }
  std::memset(plan.taken, 0, sizeof plan.taken);
  for (std::size_t phase = 0; phase < phase_count_; ++phase) {
    int tiles = 0;
    for (int k = plan.starts[phase]; k < plan.starts[phase + 1]; ++k) {
      auto& next = instruction(plan.order[k]);
      next.before = std::exchange(tiles, tiles + next.tiles);
    }
  }
}

void Program::start() {
  limit_ = first_limit;
  if (!open_) return;
  device_.make_current();
  auto& slot = *slots_[slot_];
  std::byte *host = slot.host.room<std::byte>(slot.size), *on_device = slot.device.room<std::byte>(slot.size);
  auto& before = slots_[(slot_ + slots_.size() - 2) % slots_.size()];
  const int phases = static_cast<int>(phase_count_);
  write_plan(*reinterpret_cast<Plan*>(host + Slot::heads));
  const std::size_t from = Slot::heads - phase_of_.size() * sizeof(Instruction);
  slot.done.block(copies_.get());
  check(cudaMemcpyAsync(on_device + from, host + from, used_ - from, cudaMemcpyHostToDevice, copies_.get()),
        "cudaMemcpyAsync");
  slot.sent.record(copies_.get());
  slot.sent.block(stream_.get());
  phase_of_.clear();
  phase_count_ = 0;
  open_ = false;
  slot_ = (slot_ + 1) % slots_.size();
  ++number_;
  if (phases > 0) {
    launch_(reinterpret_cast<const Instruction*>(on_device + Slot::heads),
            reinterpret_cast<Plan*>(on_device + Slot::heads), phases, most_blocks_, stream_.get());
  }
  // Whatever has been launched up to now may use lists of the two programs before this one, but of none older.
  if (before) before->done.record(stream_.get());
}

}  // namespace widehead::cuda
