#include "widehead/state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace widehead {

std::size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::u8: return 1;
    case ElementType::i32:
    case ElementType::u32:
    case ElementType::f32: return 4;
    default: return 8;
  }
}

std::string_view name_of(ElementType type) {
  switch (type) {
    case ElementType::u8: return "u8";
    case ElementType::i32: return "i32";
    case ElementType::u32: return "u32";
    case ElementType::i64: return "i64";
    case ElementType::u64: return "u64";
    case ElementType::f32: return "f32";
    default: return "f64";
  }
}

std::string to_string(const StateVisitor::Shape& shape) { return fmt::format("{{{}}}", fmt::join(shape, ", ")); }

StateVisitor::Scope::Scope(StateVisitor& visitor, std::string_view name)
    : visitor_(visitor), outer_length_(visitor.prefix_.size()) {
  visitor.prefix_.append(name).append(".");
}

StateVisitor::Scope::~Scope() { visitor_.prefix_.resize(outer_length_); }

void StateVisitor::count(std::string_view name, std::int64_t& value) {
  scalar(name, value);
  if (value < 0 || value > (std::int64_t{1} << 62)) refuse(name, fmt::format("is {}, but it must be 0 … 2⁶²", value));
}

void StateVisitor::transfer_fixed(const Array& array) {
  if (loading()) saved_shape(array.name, array.type, array.shape);
  transfer(array);
}

}  // namespace widehead
