#pragma once
/// What an object must remember to go on bit for bit: its state, as named arrays. A class lists its fields
/// once, in visit_state(StateVisitor&), and that one list drives saving and loading alike:
///   visitor.scalar("steps", steps_);
///   visitor.block("W", W_.view());
/// Scratch is not listed, nor what follows from other fields; whoever loads recomputes the latter and checks
/// what it was given, for a file may hold anything: a loaded object must be as safe to use as a new one.
/// A load that fails leaves the object half loaded. Discard it.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "widehead/errors.h"
#include "widehead/matrix.h"

namespace widehead {

enum class ElementType { u8, i32, u32, i64, u64, f32, f64 };

std::size_t size_of(ElementType type);       ///< bytes of an element
std::string_view name_of(ElementType type);  ///< "u8", "i32", …

/// The element type of a C++ type: by its size and kind, so that long and long long are one.
template <class V>
constexpr ElementType element_type() {
  static_assert(std::is_arithmetic_v<V> && !std::is_same_v<V, bool>);
  if constexpr (std::is_floating_point_v<V>) {
    static_assert(sizeof(V) == 4 || sizeof(V) == 8);
    return sizeof(V) == 4 ? ElementType::f32 : ElementType::f64;
  } else {
    static_assert(sizeof(V) == 4 || sizeof(V) == 8 || (sizeof(V) == 1 && std::is_unsigned_v<V>));
    if constexpr (sizeof(V) == 1) return ElementType::u8;
    if constexpr (sizeof(V) == 4) return std::is_signed_v<V> ? ElementType::i32 : ElementType::u32;
    return std::is_signed_v<V> ? ElementType::i64 : ElementType::u64;
  }
}

class StateVisitor {
 public:
  using Shape = std::vector<std::int64_t>;
  /// The first column from the given one on that may hold something; the number of columns if none does.
  using NextUsed = std::function<Size(Size)>;

  virtual ~StateVisitor() = default;
  StateVisitor(const StateVisitor&) = delete;
  StateVisitor& operator=(const StateVisitor&) = delete;

  virtual bool loading() const = 0;

  // Names are unique within their scope. What a load finds missing, of another type or of a shape that does
  // not fit is an error that names it; nothing larger than the saved array is allocated for it.

  /// A number, shape {}; bool as u8.
  template <class V>
  void scalar(std::string_view name, V& value);
  /// A number that only ever grows by counting: 0 … 2⁶², so that it may go on.
  void count(std::string_view name, std::int64_t& value);
  /// Shape {n}; takes the saved length.
  template <class V>
  void list(std::string_view name, std::vector<V>& values);
  /// Shape {cols, rows}, as NumPy sees it; takes the saved shape.
  template <class T>
  void matrix(std::string_view name, Matrix<T>& matrix);
  /// Shape {cols, rows}, which must be the saved one; contiguous, loaded in place.
  template <class T>
  void block(std::string_view name, MatrixView<T> view);
  /// The same for a block that may be far larger than memory because most of it was never touched. Saving
  /// reads the columns in use only (all of them where next_used is empty). Loading is into a view that is zero
  /// throughout, and writes to pages that hold something only.
  template <class T>
  void sparse_block(std::string_view name, MatrixView<T> view, NextUsed next_used = {});
  /// A value that the object was made with and that the saved one must equal.
  template <class V>
  void agree(std::string_view name, const V& value);

  /// Names visited while it lives get the prefix "name.".
  class Scope {
   public:
    Scope(StateVisitor& visitor, std::string_view name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StateVisitor& visitor_;
    std::size_t outer_length_;
  };
  [[nodiscard]] Scope scope(std::string_view name) { return {*this, name}; }
  /// What an object has to list, in a scope of its own.
  template <class Object, class... Context>
  void part(std::string_view name, Object& object, Context&&... context) {
    const auto inside = scope(name);
    object.visit_state(*this, std::forward<Context>(context)...);
  }

  /// For whoever loads a value and finds it impossible.
  [[noreturn]] void refuse(std::string_view name, const std::string& why) const { throw error(full_name(name), why); }

 protected:
  StateVisitor() = default;

  /// An array as it is handed to an implementation; contiguous, the last extent running fastest.
  struct Array {
    std::string name;  ///< with its scopes
    ElementType type = ElementType::u8;
    Shape shape;
    void* data = nullptr;
    bool is_sparse = false;  ///< see sparse_block
    NextUsed next_used = {};
  };
  static constexpr std::int64_t any = -1;

  /// Loading: the saved shape of an array, which must exist, have this type, and the extents asked for.
  virtual Shape saved_shape(const std::string& name, ElementType type, const Shape& extents) = 0;
  /// Saves the array's data, or loads them; then the shape is the saved one.
  virtual void transfer(const Array& array) = 0;
  /// The error that says what is wrong with an array.
  virtual FileError error(const std::string& name, const std::string& why) const = 0;

 private:
  std::string full_name(std::string_view name) const { return prefix_ + std::string(name); }
  /// Transfers what has its final place and shape already.
  void transfer_fixed(const Array& array);

  std::string prefix_;
};

/// "{}" for a number, "{3}", "{4, 3}".
std::string to_string(const StateVisitor::Shape& shape);

template <class V>
void StateVisitor::scalar(std::string_view name, V& value) {
  if constexpr (std::is_same_v<V, bool>) {
    std::uint8_t byte = value ? 1 : 0;
    scalar(name, byte);
    if (byte > 1) refuse(name, "is " + std::to_string(byte) + ", but it must be 0 or 1");
    value = byte != 0;
  } else {
    transfer_fixed({full_name(name), element_type<V>(), {}, &value});
  }
}

template <class V>
void StateVisitor::list(std::string_view name, std::vector<V>& values) {
  const auto full = full_name(name);
  if (loading()) values.resize(static_cast<std::size_t>(saved_shape(full, element_type<V>(), {any})[0]));
  transfer({full, element_type<V>(), {static_cast<std::int64_t>(values.size())}, values.data()});
}

template <class T>
void StateVisitor::matrix(std::string_view name, Matrix<T>& matrix) {
  const auto full = full_name(name);
  if (loading()) {
    const auto shape = saved_shape(full, element_type<T>(), {any, any});
    matrix = Matrix<T>(shape[1], shape[0]);
  }
  transfer({full, element_type<T>(), {matrix.cols(), matrix.rows()}, matrix.data()});
}

template <class T>
void StateVisitor::block(std::string_view name, MatrixView<T> view) {
  if (view.stride != view.rows && view.cols > 1) throw std::invalid_argument("state: a block must be contiguous");
  transfer_fixed({full_name(name), element_type<T>(), {view.cols, view.rows}, view.data});
}

template <class T>
void StateVisitor::sparse_block(std::string_view name, MatrixView<T> view, NextUsed next_used) {
  if (view.stride != view.rows && view.cols > 1) throw std::invalid_argument("state: a block must be contiguous");
  transfer_fixed({full_name(name), element_type<T>(), {view.cols, view.rows}, view.data, true, std::move(next_used)});
}

template <class V>
void StateVisitor::agree(std::string_view name, const V& value) {
  V saved = value;
  scalar(name, saved);
  if (saved != value) {
    refuse(name, "is " + std::to_string(saved) + ", but here it is " + std::to_string(value));
  }
}

}  // namespace widehead
