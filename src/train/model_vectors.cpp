#include "widehead/train/model_vectors.h"

#include <algorithm>
#include <stdexcept>

namespace widehead {
namespace {

constexpr Size outputs_per_block = 4096;

template <class T>
void copy_as_float(ConstView<T> from, MatrixView<float> to) {
  for (Size j = 0; j < from.cols; ++j) {
    std::transform(from.column(j), from.column(j) + from.rows, to.column(j),
                   [](T value) { return static_cast<float>(value); });
  }
}

}  // namespace

std::string_view name_of(VectorKind kind) { return kind == VectorKind::input ? "input" : "output"; }

template <class T>
Size vector_dim(const Model<T>& model, VectorKind kind) {
  if (kind == VectorKind::output) return model.network->head().dim();
  if (model.info.job == Job::labels) {
    throw std::invalid_argument("labels are no inputs: they have no input vectors, only output ones");
  }
  return model.network->embedding_width();
}

template <class T>
void for_each_block_of_vectors(const Model<T>& model, VectorKind kind,
                               const std::function<void(Size, ConstView<float>)>& visit) {
  Matrix<float> floats;
  const auto pass_on = [&](Size first, ConstView<T> block) {
    const auto view = floats.scratch(block.rows, block.cols);
    copy_as_float<T>(block, view);
    visit(first, view);
  };
  vector_dim(model, kind);  // throws where there are none
  if (kind == VectorKind::output) {
    model.network->head().for_each_block_of_rows(pass_on);
    return;
  }
  Matrix<T> room;
  for (Size first = 0; first < model.info.outputs; first += outputs_per_block) {
    const Size count = std::min(outputs_per_block, model.info.outputs - first);
    const auto block = room.scratch(model.network->embedding_width(), count);
    model.network->embeddings(first, block);
    pass_on(first, block);
  }
}

template <class T>
Matrix<float> vectors_of(const Model<T>& model, VectorKind kind, std::span<const Index> outputs) {
  Matrix<float> vectors(vector_dim(model, kind), static_cast<Size>(outputs.size()));
  Size next = 0;
  for_each_block_of_vectors(model, kind, [&](Size first, ConstView<float> block) {
    for (; next < vectors.cols(); ++next) {
      const Size place = outputs[static_cast<std::size_t>(next)] - first;
      if (place >= block.cols) break;
      std::copy_n(block.column(place), block.rows, vectors.view().column(next));
    }
  });
  return vectors;
}

#define WIDEHEAD_INSTANTIATE(T)                                                                \
  template Size vector_dim(const Model<T>&, VectorKind);                                       \
  template void for_each_block_of_vectors(const Model<T>&, VectorKind,                         \
                                          const std::function<void(Size, ConstView<float>)>&); \
  template Matrix<float> vectors_of(const Model<T>&, VectorKind, std::span<const Index>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
