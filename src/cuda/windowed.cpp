/// What a step of the windowed layer does in one go.

#include <algorithm>

#include "cuda_backend.h"

namespace widehead {

using cuda::Element;
using cuda::Lists;
using cuda::range;

template <class T>
void CudaBackend<T>::express_columns(ConstView<T> V, std::span<const Index> rows, ConstView<T> matrices,
                                     std::span<const Index> matrix, bool adds, MatrixView<T> Z) {
  const Size count = static_cast<Size>(rows.size());
  if (count == 0) return;
  const auto matrix_of = [&](std::size_t k) {  // a row that is zero needs none
    return rows[k] < 0 ? Backend<T>::no_column : matrix[k];
  };
  static_assert(Backend<T>::no_column == -1);
  ends_.assign(static_cast<std::size_t>(*std::max_element(matrix.begin(), matrix.end())) + 2, 0);
  for (std::size_t k = 0; k < rows.size(); ++k) ++ends_[static_cast<std::size_t>(matrix_of(k) + 1)];
  for (std::size_t n = 1; n < ends_.size(); ++n) ends_[n] += ends_[n - 1];
  by_matrix_.resize(rows.size());
  for (std::size_t k = rows.size(); k-- > 0;) {
    by_matrix_[static_cast<std::size_t>(--ends_[static_cast<std::size_t>(matrix_of(k) + 1)])] = static_cast<Index>(k);
  }
  const auto wide_view = [](ConstView<T> A) {
    return reinterpret_cast<std::uintptr_t>(A.data) % 16 == 0 && A.stride * static_cast<Size>(sizeof(T)) % 16 == 0 &&
           A.rows * static_cast<Size>(sizeof(T)) % 16 == 0;
  };
  const bool wide = wide_view(V) && wide_view(matrices) && wide_view(Z);
  auto lists = program().lists(2 * Lists::bytes<Index>(rows.size()) + Lists::bytes<cuda::Bundle>(rows.size()));
  const auto bundles = lists.template take<cuda::Bundle>(rows.size());
  Size made = 0;
  for (Index first = 0; first < static_cast<Index>(count);) {
    const auto matrix_at = [&](Index at) {
      return matrix_of(static_cast<std::size_t>(by_matrix_[static_cast<std::size_t>(at)]));
    };
    const auto end_of = [&](Index number) {  // ends_ are beginnings by now
      const auto behind = static_cast<std::size_t>(number) + 2;
      return behind < ends_.size() ? ends_[behind] : static_cast<Index>(count);
    };
    const Index used = matrix_at(first), end = end_of(used);
    const Index most = std::is_same_v<T, float> && wide ? cuda::large_bundle_columns : cuda::bundle_columns;
    const Index at_once = used == Backend<T>::no_column ? cuda::bundle_columns : most;
    const Index last = std::min(first + at_once, end);
    bundles.host[made++] = {used, first, last - first};
    first = last;
  }
  std::sort(bundles.host, bundles.host + made,  // what takes longest begins first
            [](const cuda::Bundle& a, const cuda::Bundle& b) { return a.count > b.count; });
  const Index* columns = lists.put(std::span<const Index>(by_matrix_));
  const auto sources = lists.template take<Index>(rows.size());
  for (std::size_t k = 0; k < rows.size(); ++k) sources.host[k] = rows[static_cast<std::size_t>(by_matrix_[k])];
  const cuda::Express<T> express{V,    matrices, Z, bundles.device, columns, sources.device, static_cast<int>(Z.rows),
                                 wide, adds};
  const bool has_many = bundles.host[0].count > cuda::bundle_columns;
  program().add(cuda::Kind::express, cuda::express_tiles(made, Z.rows), express, {range(V), range(matrices)},
                {range(Z)}, {4, has_many ? 4.5F : 4});
}

template <class T>
void CudaBackend<T>::observe_targets(ConstView<T> H, ConstView<T> H_hat, ConstView<T> UH, ConstView<T> Z,
                                     ConstView<T> sums, const RowGroups<T>& Y, MatrixView<double> q,
                                     MatrixView<double> o) {
  // It may become the first part of judging, to which others are added: all lists and room for that are taken first.
  const auto& y = pattern(Y);
  scratch_.room<double>(judging_room(Y));
  program().keep_together(3, Lists::bytes<T>(static_cast<std::size_t>(H.cols)));
  const cuda::Observe<T> observe{H,
                                 H_hat,
                                 UH,
                                 Z,
                                 sums,
                                 q.data,
                                 o.data,
                                 static_cast<int>(H.rows),
                                 static_cast<int>(H.cols),
                                 static_cast<int>(Y.nonzeros()),
                                 !sums.empty(),
                                 y};
  program().add(cuda::Kind::observe, cuda::dot_tiles(H.cols + Y.nonzeros()), observe,
                {range(H), range(H_hat), range(UH), range(Z), range(sums)}, {range(q), range(o)}, {4});
}

/// Where the examples of these targets are judged in the same program, by the block that judges an example.
template <class T>
void CudaBackend<T>::combine_targets(ConstView<T> Z, ConstView<T> sums, const RowGroups<T>& Y, ConstView<T> values,
                                     MatrixView<T> G, MatrixView<T> F) {
  const auto& y = pattern(Y);
  const auto* judging = program().template find<cuda::ObserveAndJudge<T>>(judging_, cuda::Kind::observe_and_judge);
  if (judging != nullptr && !judging->combines && judging->judge.g == values.data &&
      judging->observe.Y.example_starts == y.example_starts && judging->observe.Z.data == Z.data &&
      judging->observe.sums.data == sums.data && F.empty()) {
    auto more = *judging;
    more.combines = true;
    more.Gamma_hat = G;
    if (program().extend(judging_, cuda::Kind::observe_and_judge, more, {range(Z), range(sums), range(values)},
                         {range(G)})) {
      return;
    }
  }
  const auto combine = [&](ConstView<T> X, bool adds, MatrixView<T> result) {
    write_down({.starts = y.example_starts,
                .order = y.by_example,
                .columns = y.groups,
                .values = values.data,
                .X = X,
                .Y = result,
                .rows = static_cast<int>(result.rows),
                .add = adds},
               result.cols, {range(X), range(values), range(adds ? result : MatrixView<T>())}, {range(result)});
  };
  combine(Z, false, G);
  if (!sums.empty()) combine(sums, F.empty(), F.empty() ? G : F);
}

/// Where Γ̂ was made by whoever judges, by it as well.
template <class T>
void CudaBackend<T>::split_gradient(ConstView<T> a, ConstView<T> Gamma_hat, T c, MatrixView<T> H_hat,
                                    MatrixView<T> grad, MatrixView<T> C) {
  const auto* judging = program().template find<cuda::ObserveAndJudge<T>>(judging_, cuda::Kind::observe_and_judge);
  if (judging != nullptr && judging->combines && !judging->splits && judging->Gamma_hat.data == Gamma_hat.data &&
      judging->observe.H_hat.data == H_hat.data && (a.empty() || a.data == judging->judge.a)) {
    auto more = *judging;
    more.splits = true;
    more.a_is_one = a.empty();
    more.c = c;
    more.H_hat = H_hat, more.grad = grad, more.C = C;
    if (program().extend(judging_, cuda::Kind::observe_and_judge, more, {range(Gamma_hat), range(H_hat), range(a)},
                         {range(H_hat), range(grad), range(C)})) {
      return;
    }
  }
  write_down({.what = Element::split,
              .rows = grad.rows,
              .cols = grad.cols,
              .A = Gamma_hat,
              .C = H_hat,
              .D = grad,
              .F = C,
              .a = a.data,
              .alpha = c},
             {range(a), range(Gamma_hat), range(H_hat)}, {range(H_hat), range(grad), range(C)});
}

template <class T>
void CudaBackend<T>::add_products(T alpha, ConstView<T> A, ConstView<T> B, ConstView<T> F, ConstView<T> G,
                                  MatrixView<T> C) {
  if (!is_small(C.rows, C.cols, A.cols + F.cols)) return Backend<T>::add_products(alpha, A, B, F, G, C);
  auto x = product(Op::none, Op::none, alpha, A, B, T(1), C);
  add_product(x, F, G);
  write_down(x, {range(A), range(B), range(F), range(G), range(C)}, {range(C)});
}

/// H YᵀY by pairs of entries, of which there are few where few examples share a target: on a device that takes less
/// time than to wait for YᵀY.
template <class T>
void CudaBackend<T>::add_with_gram(T alpha, ConstView<T> A, ConstView<T> B, ConstView<T> H, const RowGroups<T>& Y,
                                   ConstView<T> values, MatrixView<T> N, MatrixView<T> C) {
  std::size_t count = 0;
  for (Size group = 0; group < Y.count(); ++group) count += Y.entries(group).size() * Y.entries(group).size();
  if (!std::is_same_v<T, float> || !is_small(C.rows, C.cols, A.cols) || static_cast<Size>(count) > 8 * H.cols) {
    return Backend<T>::add_with_gram(alpha, A, B, H, Y, values, N, C);
  }
  if constexpr (std::is_same_v<T, float>) {
    const auto m = static_cast<std::size_t>(H.cols);
    auto lists = program().lists(Lists::bytes<Index>(m + 1) + Lists::bytes<cuda::Pair>(count));
    const auto starts = lists.template take<Index>(m + 1);
    const auto pairs = lists.template take<cuda::Pair>(count);
    Index next = 0;
    for (Size j = 0; j < H.cols; ++j) {
      starts.host[j] = next;
      for (const Index own : Y.of_example(j)) {
        const Size group = Y.group_of(own);
        for (Size e = Y.first_entry(group); e < Y.first_entry(group + 1); ++e) {
          pairs.host[next++] = {own, static_cast<Index>(e), Y.entry(e).example};
        }
      }
    }
    starts.host[m] = next;
    auto x = product(Op::none, Op::none, alpha, A, B, T(1), C);
    x.H = H.data, x.H_stride = static_cast<int>(H.stride), x.values = values.data;
    x.pair_starts = starts.device, x.pairs = pairs.device;
    x.wide_C = x.wide_C && is_wide(H);
    write_down(x, {range(A), range(B), range(H), range(values), range(C)}, {range(C)});
  }
}

template <class T>
void CudaBackend<T>::finish_stack(T eta, ConstView<T> H, ConstView<T> high, MatrixView<T> low, MatrixView<T> S,
                                  MatrixView<T> E) {
  write_down(
      {.what = Element::finish, .rows = low.rows, .cols = low.cols, .square = low.rows, .A = high, .C = low, .D = S},
      {range(high), range(low)}, {range(low), range(S)});
  write_down({.what = Element::scaled, .rows = H.rows, .cols = H.cols, .A = H, .C = E, .alpha = -eta}, {range(H)},
             {range(E)});
}

/// Where the products are small, S is written along with them: −2ηHPᵀ made symmetric is −η(HPᵀ + PHᵀ). Q comes last:
/// all others can be begun before P is there.
template <class T>
void CudaBackend<T>::commit_stack(T eta, ConstView<T> H, ConstView<T> SH, ConstView<T> high, MatrixView<T> low,
                                  MatrixView<T> S) {
  const Size d = H.rows, m = H.cols, height = SH.rows;
  if (!is_small(d, height, 2 * m)) return Backend<T>::commit_stack(eta, H, SH, high, low, S);
  const auto advance = [&](ConstView<T> X, Size first, T alpha, bool symmetric) {
    const auto changed = low.columns(first, d), sum = S.columns(first, d);
    const auto above = high.columns(first, d);
    auto x = product(Op::none, Op::transpose, alpha, H, X, T(1), changed);
    if (symmetric) {
      add_product(x, X, H);
      x.symmetric = true;
    }
    write_sum(x, above, sum);
    write_down(x, {range(H), range(X), range(above), range(changed)}, {range(changed), range(sum)});
  };
  advance(SH.block(d, 0, d, m), d, -2 * eta, false);
  constexpr Size at_once = 384;  // of E's rows: in parts, which are done whenever there is time
  for (Size first = 2 * d; first < height; first += at_once) {
    const Size count = std::min(at_once, height - first);
    gemm(Op::none, Op::transpose, -2 * eta, H, SH.block(first, 0, count, m), T(1), S.columns(first, count));
  }
  const auto E = S.columns(height, S.cols - height);
  write_down({.what = Element::scaled, .rows = d, .cols = E.cols, .A = H, .C = E, .alpha = -eta}, {range(H)},
             {range(E)});
  advance(SH.block(0, 0, d, m), 0, -eta, true);
}

#define WIDEHEAD_INSTANTIATE(T)                                                                                       \
  template void CudaBackend<T>::express_columns(ConstView<T>, std::span<const Index>, ConstView<T>,                   \
                                                std::span<const Index>, bool, MatrixView<T>);                         \
  template void CudaBackend<T>::observe_targets(ConstView<T>, ConstView<T>, ConstView<T>, ConstView<T>, ConstView<T>, \
                                                const RowGroups<T>&, MatrixView<double>, MatrixView<double>);         \
  template void CudaBackend<T>::combine_targets(ConstView<T>, ConstView<T>, const RowGroups<T>&, ConstView<T>,        \
                                                MatrixView<T>, MatrixView<T>);                                        \
  template void CudaBackend<T>::split_gradient(ConstView<T>, ConstView<T>, T, MatrixView<T>, MatrixView<T>,           \
                                               MatrixView<T>);                                                        \
  template void CudaBackend<T>::add_products(T, ConstView<T>, ConstView<T>, ConstView<T>, ConstView<T>,               \
                                             MatrixView<T>);                                                          \
  template void CudaBackend<T>::add_with_gram(T, ConstView<T>, ConstView<T>, ConstView<T>, const RowGroups<T>&,       \
                                              ConstView<T>, MatrixView<T>, MatrixView<T>);                            \
  template void CudaBackend<T>::finish_stack(T, ConstView<T>, ConstView<T>, MatrixView<T>, MatrixView<T>,             \
                                             MatrixView<T>);                                                          \
  template void CudaBackend<T>::commit_stack(T, ConstView<T>, ConstView<T>, ConstView<T>, MatrixView<T>, MatrixView<T>)
WIDEHEAD_INSTANTIATE(float);
WIDEHEAD_INSTANTIATE(double);

}  // namespace widehead
