#include "widehead/data/string_index.h"

#include <xxhash.h>

#include <limits>
#include <stdexcept>

namespace widehead {
namespace {

constexpr std::size_t first_slots = 1024;

std::uint64_t hash_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }
std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

}  // namespace

std::size_t StringIndex::probe(std::string_view text, std::uint64_t hash) const {
  const auto mask = slots_.size() - 1;
  for (auto slot = static_cast<std::size_t>(hash) & mask;; slot = (slot + 1) & mask) {
    const auto& [tag, id] = slots_[slot];
    if (id < 0 || (tag == tag_of(hash) && (*this)[id] == text)) return slot;
  }
}

void StringIndex::grow() {
  slots_.assign(slots_.empty() ? first_slots : 2 * slots_.size(), {0, -1});
  for (Index i = 0; i < static_cast<Index>(size()); ++i) {
    const auto text = (*this)[i];
    const auto hash = hash_of(text);
    slots_[probe(text, hash)] = {tag_of(hash), i};
  }
}

std::pair<Index, bool> StringIndex::insert(std::string_view text) {
  if (2 * ends_.size() >= slots_.size()) grow();
  const auto hash = hash_of(text);
  const auto slot = probe(text, hash);
  if (slots_[slot].id >= 0) return {slots_[slot].id, false};
  if (size() == std::numeric_limits<Index>::max()) throw std::length_error("more than 2³¹ − 1 different strings");
  const auto id = static_cast<Index>(size());
  text_ += text;
  ends_.push_back(text_.size());
  slots_[slot] = {tag_of(hash), id};
  return {id, true};
}

std::optional<Index> StringIndex::find(std::string_view text) const {
  if (slots_.empty()) return std::nullopt;
  const auto id = slots_[probe(text, hash_of(text))].id;
  if (id < 0) return std::nullopt;
  return id;
}

}  // namespace widehead
