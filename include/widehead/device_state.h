#pragma once
/// The state of what lives in a backend's memory: saved from there and loaded to there, through the host where that
/// cannot reach it.

#include <algorithm>
#include <string_view>

#include "widehead/backend.h"
#include "widehead/state.h"

namespace widehead {

/// StateVisitor::block for a view of the backend's memory.
template <class U, class T>
void visit_block(StateVisitor& visitor, Backend<T>& backend, std::string_view name, MatrixView<U> view) {
  if (backend.memory().is_host()) {
    visitor.block(name, view);
    return;
  }
  Matrix<U> host(view.rows, view.cols);
  if (!visitor.loading()) backend.template transfer<U>(view, host);
  visitor.block(name, host.view());
  if (visitor.loading()) backend.template transfer<U>(host.view(), view);
}

/// StateVisitor::sparse_block likewise. Only columns in use cross over, and take memory of the host.
template <class T>
void visit_sparse_block(StateVisitor& visitor, Backend<T>& backend, std::string_view name, MatrixView<T> view,
                        const StateVisitor::NextUsed& next_used) {
  if (backend.can_reach(view.data) && backend.memory().is_host()) {
    visitor.sparse_block(name, view, next_used);
    return;
  }
  constexpr Size most = 1 << 14;  // columns moved at once
  Matrix<T> host(view.rows, view.cols);
  if (visitor.loading()) {
    visitor.sparse_block(name, host.view(), next_used);
    for (Size first = 0; first < view.cols; first += most) {
      const Size count = std::min(most, view.cols - first);
      backend.template transfer<T>(host.view().columns(first, count), view.columns(first, count));
    }
    return;
  }
  for (Size first = next_used ? next_used(0) : 0; first < view.cols;) {
    Size last = first + 1;
    while (last < view.cols && last - first < most && (!next_used || next_used(last) == last)) ++last;
    backend.template transfer<T>(view.columns(first, last - first), host.view().columns(first, last - first));
    first = next_used && last < view.cols ? next_used(last) : last;
  }
  visitor.sparse_block(name, host.view(), next_used);
}

}  // namespace widehead
