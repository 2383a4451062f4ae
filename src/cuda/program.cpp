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
constexpr float hardly = 0.2F;          // µs by which a phase may be longer for an instruction to be over sooner
constexpr std::size_t looked_back = 8;  // phases, at most: the host has no time for more
constexpr float short_tile = 2, two_at_once = 1.4F;  // µs; how much longer tiles take by twos
constexpr std::size_t no_owner = std::numeric_limits<std::size_t>::max();
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
  efforts_.reserve(most_instructions);
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

/// Whether something that reads and writes this must not be done beside the instructions of a phase, but for one.
bool Program::conflict(std::initializer_list<Range> reads, std::initializer_list<Range> writes, const Phase& phase,
                       std::size_t but) {
  const auto met = [&](const std::vector<Owned>& known, std::initializer_list<Range> ranges) {
    return std::any_of(ranges.begin(), ranges.end(), [&](const Range& a) {
      return std::any_of(known.begin(), known.end(),
                         [&](const Owned& b) { return overlap(a, b.range) && b.owner != but; });
    });
  };
  return met(phase.writes, reads) || met(phase.writes, writes) || met(phase.reads, writes);
}

/// Whether this may be read and written by an instruction besides what it does: no other one beside it or behind it has
/// to do with it.
bool Program::can_extend(std::size_t number, std::initializer_list<Range> reads,
                         std::initializer_list<Range> writes) const {
  for (std::size_t phase = phase_of_[number]; phase < phase_count_; ++phase) {
    if (conflict(reads, writes, phases_[phase], number)) return false;
  }
  return true;
}

/// How long a phase would take with so many tiles more, about. Long tiles take longer where two of them share a
/// multiprocessor. Where there are more tiles than blocks, some block begins a second one when it is done with the
/// shortest of the first.
float Program::time_of(const Phase& phase, Size tiles, Effort effort) const {
  const float longest = std::max(phase.longest, tiles > 0 ? effort.longest : 0);
  if (phase.tiles + tiles <= most_blocks_ / 2) return longest;
  Size begun = 0, long_ones = 0;
  float first = 0, second = 0, work = 0;
  const auto begin = [&](float tile, Size count) {
    if (begun < most_blocks_) first = tile;
    begun += count;
    if (begun > most_blocks_ && second == 0) second = tile;
    if (tile > short_tile) long_ones += count;
    work += tile * static_cast<float>(count);
  };
  bool has_begun = tiles == 0;
  for (const auto& [tile, count] : phase.loads) {
    if (!has_begun && tile < effort.tile) {
      begin(effort.tile, tiles);
      has_begun = true;
    }
    begin(tile, count);
  }
  if (!has_begun) begin(effort.tile, tiles);
  const float time =
      second == 0 ? longest : std::max({longest, first + second, work / static_cast<float>(most_blocks_) + second / 2});
  return long_ones > most_blocks_ / 2 ? two_at_once * time : time;
}

/// Of the last phases, behind the last one that conflicts, the first that becomes hardly longer than any other would; a
/// new one where the last conflicts, or none has room.
std::size_t Program::phase_for(Size tiles, std::initializer_list<Range> reads, std::initializer_list<Range> writes,
                               Effort effort) const {
  constexpr float never = std::numeric_limits<float>::infinity();
  std::array<float, looked_back> longer_by{};  // from the last phase on
  std::size_t count = 0;
  float least = never;
  while (count < std::min(looked_back, phase_count_)) {
    const Phase& there = phases_[phase_count_ - 1 - count];
    if (conflict(reads, writes, there, no_owner)) break;
    const bool has_room = there.loads.size() < most_at_once && there.tiles + tiles <= most_tiles;
    longer_by[count] = has_room ? time_of(there, tiles, effort) - there.time : never;
    least = std::min(least, longer_by[count++]);
  }
  if (least == never) return phase_count_;
  while (longer_by[count - 1] > least + hardly) --count;
  return phase_count_ - count;
}

void Program::set_tiles(std::size_t number, Size tiles, Effort effort) {
  auto& phase = phases_[phase_of_[number]];
  auto& instruction = at(number);
  const auto is_longer = [](const auto& a, const auto& b) { return a.first > b.first; };
  if (instruction.tiles > 0) {
    phase.loads.erase(std::find(phase.loads.begin(), phase.loads.end(),
                                std::pair{efforts_[number].tile, static_cast<Size>(instruction.tiles)}));
  }
  const std::pair load{effort.tile, tiles};
  phase.loads.insert(std::upper_bound(phase.loads.begin(), phase.loads.end(), load, is_longer), load);
  phase.tiles += tiles - instruction.tiles;
  phase.longest = std::max(phase.longest, effort.longest);
  phase.time = time_of(phase, 0, {});
  instruction.tiles = static_cast<int>(tiles);
  efforts_[number] = effort;
}

void Program::note(std::size_t number, std::initializer_list<Range> reads, std::initializer_list<Range> writes) {
  auto& phase = phases_[phase_of_[number]];
  for (const Range& range : reads) phase.reads.push_back({range, number});
  for (const Range& range : writes) phase.writes.push_back({range, number});
}

Instruction& Program::next(Kind kind, Size tiles, std::initializer_list<Range> reads,
                           std::initializer_list<Range> writes, Effort effort) {
  if (tiles > most_tiles) {
    throw std::length_error(fmt::format("CUDA: an operation of {} tiles is too large", tiles));
  }
  if (phase_of_.size() == limit_) start();
  if (!open_) open(0);
  const std::size_t phase = phase_for(tiles, reads, writes, effort), number = phase_of_.size();
  if (phase == phase_count_) {
    if (++phase_count_ > phases_.size()) phases_.emplace_back();
    auto& fresh = phases_[phase];
    fresh.reads.clear();
    fresh.writes.clear();
    fresh.loads.clear();
    fresh.tiles = 0;
    fresh.longest = fresh.time = 0;
  }
  --last_;
  last_->kind = kind;
  last_->tiles = 0;
  phase_of_.push_back(phase);
  efforts_.emplace_back();
  set_tiles(number, tiles, effort);
  note(number, reads, writes);
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
    const auto longest = [&](int number) { return efforts_[static_cast<std::size_t>(number)].longest; };
    for (; place > first && longest(plan.order[place - 1]) < longest(static_cast<int>(k)); --place) {
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
  if (!open_) return;
  limit_ = std::min<std::size_t>(2 * limit_, most_instructions);
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
  efforts_.clear();
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
