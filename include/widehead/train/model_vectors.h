#pragma once
/// The vectors of a model's outputs, in float: what is compared, searched and exported.
///   input    their embeddings, where outputs are inputs as well: words and items, not labels
///   output   their rows of W

#include <functional>
#include <span>
#include <string_view>

#include "widehead/train/model.h"

namespace widehead {

enum class VectorKind { input, output };

/// "input", "output".
std::string_view name_of(VectorKind kind);

/// e or d. @throws std::invalid_argument for the input vectors of labels, which have none
template <class T>
Size vector_dim(const Model<T>& model, VectorKind kind);

/// visit(first, block) over all D outputs in order, block (dim x count) holding one output per column. W is never in
/// memory as a whole.
template <class T>
void for_each_block_of_vectors(const Model<T>& model, VectorKind kind,
                               const std::function<void(Size, ConstView<float>)>& visit);

/// Column i is the vector of outputs[i] (dim x n); outputs ascend.
template <class T>
Matrix<float> vectors_of(const Model<T>& model, VectorKind kind, std::span<const Index> outputs);

}  // namespace widehead
