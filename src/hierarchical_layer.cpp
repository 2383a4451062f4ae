#include "widehead/hierarchical_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <stdexcept>

#include "widehead/softmax_kernels.h"

namespace widehead {
namespace {

/// Flops of the parts below which waking a second thread costs more than it saves.
constexpr double min_parallel_flops = 2e6;

OutputClasses make_classes(const LayerOptions& options, const HierarchicalOptions& hierarchical) {
  const auto& frequencies = hierarchical.frequencies;
  if (frequencies.empty()) return OutputClasses::of_equal_size(options.outputs, hierarchical.classes);
  if (static_cast<Size>(frequencies.size()) != options.outputs) {
    throw std::invalid_argument(
        fmt::format("head 'hierarchical': {} frequencies, but D = {}", frequencies.size(), options.outputs));
  }
  return OutputClasses::of_equal_frequency(frequencies, hierarchical.classes);
}

}  // namespace

template <class T>
HierarchicalLayer<T>::HierarchicalLayer(const LayerOptions& options, const HierarchicalOptions& hierarchical,
                                        std::shared_ptr<Backend<T>> backend)
    : HierarchicalLayer(options, make_classes(options, hierarchical), std::move(backend)) {}

template <class T>
HierarchicalLayer<T>::HierarchicalLayer(const LayerOptions& options, OutputClasses classes,
                                        std::shared_ptr<Backend<T>> backend)
    : CrossEntropyLayer<T>("hierarchical", options, std::move(backend), classes.count()), classes_(std::move(classes)) {
  this->refuse_weight_decay();
}

// ── the targets, class by class ─────────────────────────────────────────────────────────────────

/// The entries of Y are sorted by output, so those of a class are consecutive.
template <class T>
void HierarchicalLayer<T>::group_by_class(Size examples) {
  const auto& Y = this->Y();
  parts_.clear();
  pairs_.clear();
  pair_examples_.clear();
  pair_of_entry_.resize(static_cast<std::size_t>(Y.nonzeros()));
  slot_.assign(static_cast<std::size_t>(examples), -1);
  Size offset = 0;
  for (Size e = 0; e < Y.nonzeros();) {
    const Size cls = classes_.of(Y.entry(e).row), end = classes_.first(cls + 1);
    Part part{cls, static_cast<Size>(pairs_.size()), 0, e, 0, offset};
    for (; e < Y.nonzeros() && Y.entry(e).row < end; ++e, ++part.entries) {
      const auto& entry = Y.entry(e);
      auto& slot = slot_[static_cast<std::size_t>(entry.example)];
      if (slot < 0) {
        slot = static_cast<Index>(part.pairs++);
        pairs_.push_back({entry.example, 0, 0, 0});
        pair_examples_.push_back(entry.example);
      }
      pair_of_entry_[static_cast<std::size_t>(e)] = slot;
      pairs_[static_cast<std::size_t>(part.first_pair + slot)].mass += static_cast<double>(entry.value);
    }
    for (Size p = part.first_pair; p < part.first_pair + part.pairs; ++p) {
      slot_[static_cast<std::size_t>(pair_examples_[static_cast<std::size_t>(p)])] = -1;
    }
    offset += classes_.size(cls) * part.pairs;
    parts_.push_back(part);
  }
  E_.scratch(offset, 1);
}

/// Calls work(part) for every part, on all threads: the products of a part are too small to be shared out. No two parts
/// have a row or a pair in common.
template <class T>
template <class Work>
void HierarchicalLayer<T>::for_each_part(const Work& work) {
  double flops = 0;
  for (const auto& part : parts_) {
    flops += 2.0 * static_cast<double>(classes_.size(part.cls) * part.pairs) * static_cast<double>(this->dim());
  }
  if (this->backend().threads() == 1 || parts_.size() == 1 || flops < min_parallel_flops) {
    for (const auto& part : parts_) work(part);
    return;
  }
  std::exception_ptr failure;
#pragma omp parallel for num_threads(this->backend().threads()) schedule(dynamic)
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    try {
      work(parts_[p]);
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

// ── forward ─────────────────────────────────────────────────────────────────────────────────────

template <class T>
void HierarchicalLayer<T>::observe_part(const Part& part) {
  const auto O = logits_of(part);
  this->backend().gemm(Op::transpose, Op::none, T(1), rows_of(part.cls), columns_of(part, H_pairs_), T(0), O);
  const auto& Y = this->Y();
  for (Size e = part.first_entry; e < part.first_entry + part.entries; ++e) {
    const auto k = static_cast<std::size_t>(e);
    log_p_[k] = static_cast<double>(O(Y.entry(e).row - classes_.first(part.cls), pair_of_entry_[k]));
  }
  const auto first = static_cast<std::size_t>(part.first_pair), count = static_cast<std::size_t>(part.pairs);
  exponentiate_columns<T>(O, 1, std::span(maxima_).subspan(first, count), std::span(sums_).subspan(first, count));
  for (std::size_t p = first; p < first + count; ++p) {
    pairs_[p].sum = sums_[p];
    pairs_[p].log_Z = static_cast<double>(maxima_[p]) + std::log(sums_[p]);
  }
}

/// log p of every entry, and what `then` does with a part while its rows are in the cache.
template <class T>
template <class Then>
void HierarchicalLayer<T>::observe(ConstView<T> H, const Then& then) {
  auto& backend = this->backend();
  const Size m = H.cols;
  const auto& Y = this->Y();
  const auto H_pairs = H_pairs_.scratch(this->dim(), static_cast<Size>(pairs_.size()));
  if (!pairs_.empty()) backend.move_columns(H, pair_examples_, {}, H_pairs);
  const std::size_t most = std::max(pairs_.size(), static_cast<std::size_t>(m));
  maxima_.resize(most);
  sums_.resize(most);
  log_p_.resize(static_cast<std::size_t>(Y.nonzeros()));
  for_each_part([&](const Part& part) {
    observe_part(part);
    then(part);
  });

  const auto O_A = E_A_.scratch(classes_.count(), m);
  backend.gemm(Op::transpose, Op::none, T(1), A(), H, T(0), O_A);
  for (const auto& part : parts_) {
    for (Size e = part.first_entry; e < part.first_entry + part.entries; ++e) {
      const auto k = static_cast<std::size_t>(e);
      const auto& pair = pairs_[static_cast<std::size_t>(part.first_pair + pair_of_entry_[k])];
      log_p_[k] += static_cast<double>(O_A(part.cls, pair.example)) - pair.log_Z;
    }
  }
  log_Z_.resize(static_cast<std::size_t>(m));
  exponentiate_columns<T>(O_A, backend.threads(), maxima_, sums_);
  for (std::size_t j = 0; j < log_Z_.size(); ++j) log_Z_[j] = static_cast<double>(maxima_[j]) + std::log(sums_[j]);
  for (Size e = 0; e < Y.nonzeros(); ++e) {
    log_p_[static_cast<std::size_t>(e)] -= log_Z_[static_cast<std::size_t>(Y.entry(e).example)];
  }
}

// ── back ────────────────────────────────────────────────────────────────────────────────────────

/// Within a class: R = (p s − Y) diag(w), ∇H = WᵀR, W ← W − η R Hᵀ.
template <class T>
void HierarchicalLayer<T>::pass_back_part(const Part& part, const SparseBatch<T>& targets, Update update, T eta,
                                          bool wants_gradient) {
  auto& backend = this->backend();
  const auto& Y = this->Y();
  const auto R = logits_of(part), W = rows_of(part.cls);
  for (Size p = 0; p < part.pairs; ++p) {
    const auto k = static_cast<std::size_t>(part.first_pair + p);
    const auto weight = static_cast<double>(targets.weight(pairs_[k].example));
    backend.scale(static_cast<T>(weight * pairs_[k].mass / pairs_[k].sum), R.columns(p, 1));
  }
  for (Size e = part.first_entry; e < part.first_entry + part.entries; ++e) {
    const auto& entry = Y.entry(e);
    R(entry.row - classes_.first(part.cls), pair_of_entry_[static_cast<std::size_t>(e)]) -=
        targets.weight(entry.example) * entry.value;
  }
  if (wants_gradient) {
    backend.gemm(Op::none, Op::none, T(1), W, R, T(0), columns_of(part, grad_pairs_));
  }
  if (update == Update::yes) {
    backend.gemm(Op::none, Op::transpose, -eta, columns_of(part, H_pairs_), R, T(1), W);
  }
}

/// The same for the classes, whose targets are the masses of the pairs; writes ∇H's part of it.
template <class T>
void HierarchicalLayer<T>::pass_back_classes(ConstView<T> H, const SparseBatch<T>& targets, Update update, T eta,
                                             MatrixView<T> grad_H) {
  auto& backend = this->backend();
  const MatrixView<T> R(E_A_.data(), classes_.count(), H.cols);
  factors_.resize(static_cast<std::size_t>(H.cols));
  for (Size j = 0; j < H.cols; ++j) {
    const auto k = static_cast<std::size_t>(j);
    factors_[k] = static_cast<T>(static_cast<double>(targets.weight(j)) * this->mass(j) / sums_[k]);
  }
  backend.scale_columns(MatrixView<const T>(factors_.data(), H.cols, 1), R);
  for (const auto& part : parts_) {
    for (Size p = part.first_pair; p < part.first_pair + part.pairs; ++p) {
      const auto& pair = pairs_[static_cast<std::size_t>(p)];
      R(part.cls, pair.example) -= static_cast<T>(static_cast<double>(targets.weight(pair.example)) * pair.mass);
    }
  }
  if (!grad_H.empty()) backend.gemm(Op::none, Op::none, T(1), A(), R, T(0), grad_H);
  if (update == Update::yes) backend.gemm(Op::none, Op::transpose, -eta, H, R, T(1), A());
}

/// Class by class, each from its outputs to its update while its rows are in the cache: what could fail was excluded
/// before.
template <class T>
double HierarchicalLayer<T>::pass_over_classes(ConstView<T> H, const SparseBatch<T>& targets, Update update, T eta,
                                               MatrixView<T> grad_H) {
  const bool wants_gradient = !grad_H.empty(), goes_back = wants_gradient || update == Update::yes;
  group_by_class(H.cols);
  const Size pairs = static_cast<Size>(pairs_.size());
  const auto grad_pairs = grad_pairs_.scratch(this->dim(), wants_gradient ? pairs : 0);
  observe(H, [&](const Part& part) {
    if (goes_back) pass_back_part(part, targets, update, eta, wants_gradient);
  });
  const double L = this->loss_of(targets, log_p_, log_Z_);
  if (goes_back) pass_back_classes(H, targets, update, eta, grad_H);
  for (Size p = 0; wants_gradient && p < pairs; ++p) {
    const auto sum = grad_H.columns(pairs_[static_cast<std::size_t>(p)].example, 1);
    this->backend().add(T(1), sum, T(1), grad_pairs.columns(p, 1), sum);
  }
  return L;
}

template <class T>
double HierarchicalLayer<T>::take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) {
  this->take_non_negative_targets(targets);
  const double growth = this->require_no_overflow(H, targets, eta);
  const double L = pass_over_classes(H, targets, Update::yes, eta, grad_H);
  this->grow_by(growth);
  return L;
}

template <class T>
double HierarchicalLayer<T>::compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) {
  this->take_non_negative_targets(targets);
  return pass_over_classes(H, targets, Update::no, T(0), grad_H);
}

template <class T>
void HierarchicalLayer<T>::compute_log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out) {
  this->take_targets(targets);
  group_by_class(H.cols);
  observe(H, [](const Part&) {});
  this->spread(targets, log_p_, out);
}

// ── log p of any output ─────────────────────────────────────────────────────────────────────────

/// O ← log softmax of every column.
template <class T>
void HierarchicalLayer<T>::take_log_softmax(MatrixView<T> O) {
  maxima_.resize(static_cast<std::size_t>(O.cols));
  sums_.resize(maxima_.size());
  const auto E = exponentials_.scratch(O.rows, O.cols);
  this->backend().copy(O, E);
  exponentiate_columns<T>(E, this->backend().threads(), maxima_, sums_);
  for (Size j = 0; j < O.cols; ++j) {
    const auto k = static_cast<std::size_t>(j);
    const T log_Z = static_cast<T>(static_cast<double>(maxima_[k]) + std::log(sums_[k]));
    for (Size i = 0; i < O.rows; ++i) O(i, j) -= log_Z;
  }
}

template <class T>
void HierarchicalLayer<T>::begin_scores(ConstView<T> H) {
  CrossEntropyLayer<T>::begin_scores(H);
  scored_class_ = -1;
  const auto O_A = log_p_classes_.scratch(classes_.count(), H.cols);
  this->backend().gemm(Op::transpose, Op::none, T(1), A(), H, T(0), O_A);
  take_log_softmax(O_A);
}

/// A class is normalised as a whole, and kept as long as the rows asked for are in it.
template <class T>
void HierarchicalLayer<T>::write_scores(std::span<const Index> rows, MatrixView<T> out) {
  const MatrixView<const T> log_p_classes(log_p_classes_.data(), classes_.count(), out.cols);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Size cls = classes_.of(rows[r]);
    const auto log_p = scores_.scratch(classes_.size(cls), out.cols);
    if (cls != scored_class_) {
      this->backend().gemm(Op::transpose, Op::none, T(1), rows_of(cls), this->H_scored(), T(0), log_p);
      take_log_softmax(log_p);
      scored_class_ = cls;
    }
    for (Size j = 0; j < out.cols; ++j) {
      out(static_cast<Size>(r), j) = log_p_classes(cls, j) + log_p(rows[r] - classes_.first(cls), j);
    }
  }
}

template <class T>
std::vector<GemmShape> HierarchicalLayer<T>::step_products(Size m) const {
  const Size d = this->dim(), C = classes_.count(), size = (this->outputs() + C - 1) / C;
  return {{Op::transpose, Op::none, C, m, d}, {Op::none, Op::none, d, m, C},
          {Op::none, Op::transpose, d, C, m}, {Op::transpose, Op::none, size, m, d},
          {Op::none, Op::none, d, m, size},   {Op::none, Op::transpose, d, size, m}};
}

template class HierarchicalLayer<float>;
template class HierarchicalLayer<double>;

}  // namespace widehead
