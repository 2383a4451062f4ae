#include "widehead/hierarchical_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <stdexcept>

#include "widehead/errors.h"

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
  auto& memory = this->backend().memory();
  for (auto* scratch : {&E_, &H_pairs_, &grad_pairs_, &maxima_, &log_p_classes_, &scores_}) {
    *scratch = Matrix<T>(memory);
  }
  statistics_ = Matrix<double>(memory);
  ledger_ = Matrix<double>(1, 1, memory);
  one_ = Matrix<T>(1, 1, memory);
  const T one = 1;
  this->backend().template transfer<T>(MatrixView<const T>(&one, 1, 1), one_);
}

// ── the targets, class by class ─────────────────────────────────────────────────────────────────

/// A part for every class with targets, and behind them one for the classes, whose targets are the masses of the
/// others' pairs: entry nonzeros() + p belongs to pair p. The entries of Y are sorted by output, so those of a class
/// are consecutive, and are numbered as there.
template <class T>
void HierarchicalLayer<T>::group_by_class(const SparseBatch<T>& targets) {
  const auto& Y = this->Y();
  const Size m = targets.examples();
  parts_.clear();
  slot_.assign(static_cast<std::size_t>(m), -1);
  for (Size e = 0; e < Y.nonzeros();) {
    const Size cls = classes_.of(Y.entry(e).row), first = classes_.first(cls), end = classes_.first(cls + 1);
    parts_.begin_part(first, end - first);
    const Size first_pair = parts_.pair_count();
    for (; e < Y.nonzeros() && Y.entry(e).row < end; ++e) {
      const auto& entry = Y.entry(e);
      auto& slot = slot_[static_cast<std::size_t>(entry.example)];
      if (slot < first_pair) slot = parts_.add_pair(entry.example, 0);
      parts_.pair(slot).mass += static_cast<double>(entry.value);
      parts_.add_entry(static_cast<Index>(entry.row - first), slot, targets.weight(entry.example) * entry.value);
    }
    for (Size p = first_pair; p < parts_.pair_count(); ++p) {
      auto& pair = parts_.pair(static_cast<Index>(p));
      pair.mass *= static_cast<double>(targets.weight(pair.example));
    }
  }
  const auto pairs = static_cast<Index>(parts_.pair_count());
  parts_.begin_part(this->outputs(), classes_.count());
  for (Size j = 0; j < m; ++j) {
    parts_.add_pair(static_cast<Index>(j), static_cast<double>(targets.weight(j)) * this->mass(j));
  }
  Size part = -1, cls = 0;
  for (Index p = 0; p < pairs; ++p) {
    const auto pair = parts_.pair(p);
    if (pair.part != part) {
      part = pair.part;
      cls = classes_.of(static_cast<Index>(parts_.parts()[static_cast<std::size_t>(part)].first_row));
    }
    parts_.add_entry(static_cast<Index>(cls), pairs + pair.example, static_cast<T>(pair.mass));
  }
}

/// Calls work(range) for parts that make up all of them: at once, or each for itself on all threads, since the products
/// of a class are too small to be shared out. Those of A are not.
template <class T>
template <class Work>
void HierarchicalLayer<T>::for_each_part(const Work& work) {
  const auto parts = parts_.parts();
  const auto count = static_cast<Size>(parts.size());
  if (this->backend().takes_parts_at_once()) {
    work(PartRange{0, count});
    return;
  }
  const Size classes = count - 1;
  double flops = 0;
  for (const auto& part : parts.first(static_cast<std::size_t>(classes))) {
    flops += 2.0 * static_cast<double>(part.rows * part.pairs) * static_cast<double>(this->dim());
  }
  if (this->backend().threads() == 1 || classes == 1 || flops < min_parallel_flops) {
    for (Size p = 0; p < classes; ++p) work(PartRange{p, 1});
  } else {
    std::exception_ptr failure;
#pragma omp parallel for num_threads(this->backend().threads()) schedule(dynamic)
    for (Size p = 0; p < classes; ++p) {
      try {
        work(PartRange{p, 1});
      } catch (...) {
#pragma omp critical
        failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }
  work(PartRange{classes, 1});
}

// ── there and back ──────────────────────────────────────────────────────────────────────────────

/// Each part from its outputs to its update: what could fail was excluded before. With R = (p s − Y) diag(w) of the
/// part, ∇h of a pair is W_cᵀ r and W_c ← W_c − η R Hᵀ, where W_c is the rows of a class, or A.
template <class T>
void HierarchicalLayer<T>::pass_over_parts(ConstView<T> H, Update update, T eta, MatrixView<T> grad_H) {
  auto& backend = this->backend();
  const Size pairs = parts_.pair_count(), entries = parts_.entry_count();
  const auto H_pairs = H_pairs_.scratch(this->dim(), pairs);
  backend.move_columns(H, parts_.examples(), {}, H_pairs);
  const auto grad_pairs = grad_H.empty() ? MatrixView<T>() : grad_pairs_.scratch(this->dim(), pairs);
  const auto E = E_.scratch(parts_.logits(), 1);
  const auto all = statistics_.scratch(entries + 2 * pairs, 1);
  known_ = {all.block(0, 0, entries, 1), maxima_.scratch(pairs, 1), all.block(entries + pairs, 0, pairs, 1),
            all.block(entries, 0, pairs, 1)};
  for_each_part([&](PartRange range) {
    backend.part_logits(parts_, range, this->all_rows(), H_pairs, E);
    backend.part_softmax(parts_, range, E, known_);
    if (!grad_H.empty() || update == Update::yes) {
      backend.part_backward(parts_, range, E, known_.sums, H_pairs, update == Update::yes ? eta : T(0),
                            this->all_rows(), grad_pairs);
    }
  });
  if (!grad_H.empty()) add_up_gradient(grad_H);
}

/// log p of every entry of Y, and log Z of the classes.
template <class T>
void HierarchicalLayer<T>::take_log_p(const SparseBatch<T>& targets) {
  const auto& Y = this->Y();
  const Size pairs = parts_.pair_count(), entries = parts_.entry_count(), m = targets.examples();
  const auto known = this->template on_host<double>(MatrixView<const double>(statistics_.data(), entries + pairs, 1),
                                                    host_statistics_);
  const double* o = known.data;
  const double* log_Z = known.data + entries;
  log_Z_.assign(log_Z + pairs - m, log_Z + pairs);
  log_p_.resize(static_cast<std::size_t>(Y.nonzeros()));
  for (Size e = 0; e < Y.nonzeros(); ++e) {
    const Index pair = parts_.entries()[static_cast<std::size_t>(e)].pair;
    log_p_[static_cast<std::size_t>(e)] =
        o[e] + (o[Y.nonzeros() + pair] - log_Z[pair]) - log_Z_[static_cast<std::size_t>(Y.entry(e).example)];
  }
}

/// ∇H: what A says of an example, and then the classes it has targets in.
template <class T>
void HierarchicalLayer<T>::add_up_gradient(MatrixView<T> grad_H) {
  const Size m = grad_H.cols, pairs = parts_.pair_count();
  const auto examples = parts_.examples();
  pair_offsets_.assign(static_cast<std::size_t>(m) + 1, 0);
  for (const Index j : examples) ++pair_offsets_[static_cast<std::size_t>(j) + 1];
  for (std::size_t j = 1; j < pair_offsets_.size(); ++j) pair_offsets_[j] += pair_offsets_[j - 1];
  pairs_by_example_.resize(examples.size());
  slot_.resize(static_cast<std::size_t>(m));
  for (Size j = 0; j < m; ++j) {
    const auto first = pair_offsets_[static_cast<std::size_t>(j)];
    pairs_by_example_[static_cast<std::size_t>(first)] = static_cast<Index>(pairs - m + j);
    slot_[static_cast<std::size_t>(j)] = static_cast<Index>(first + 1);
  }
  for (Index p = 0; p < pairs - m; ++p) {
    auto& slot = slot_[static_cast<std::size_t>(examples[static_cast<std::size_t>(p)])];
    pairs_by_example_[static_cast<std::size_t>(slot++)] = p;
  }
  all_first_.assign(examples.size(), 0);
  this->backend().gather(MatrixView<const T>(grad_pairs_.data(), this->dim(), pairs),
                         Selection{pair_offsets_, pairs_by_example_, all_first_}, one_, grad_H);
}

template <class T>
double HierarchicalLayer<T>::pass(ConstView<T> H, const SparseBatch<T>& targets, Update update, T eta,
                                  MatrixView<T> grad_H) {
  group_by_class(targets);
  pass_over_parts(H, update, eta, grad_H);
  take_log_p(targets);
  return this->loss_of(targets, log_p_, log_Z_);
}

template <class T>
double HierarchicalLayer<T>::take_step(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) {
  this->take_non_negative_targets(targets);
  const double growth = this->require_no_overflow(H, targets, eta);
  const double L = pass(H, targets, Update::yes, eta, grad_H);
  this->grow_by(growth);
  return L;
}

template <class T>
bool HierarchicalLayer<T>::take_step_later(ConstView<T> H, const SparseBatch<T>& targets, T eta, MatrixView<T> grad_H) {
  if (!this->backend().takes_parts_at_once()) return false;
  this->take_non_negative_targets(targets);
  group_by_class(targets);
  pass_over_parts(H, Update::yes, eta, grad_H);
  this->backend().add_part_loss(parts_, known_, ledger_);
  this->forget_bound();
  return true;
}

template <class T>
double HierarchicalLayer<T>::settle_steps() {
  double L = 0;
  this->backend().template transfer<double>(ledger_.view(), MatrixView<double>(&L, 1, 1));
  this->backend().clear_in_double(ledger_);
  if (!std::isfinite(L)) {
    throw NumericalError(
        fmt::format("step {} or one of those enqueued before it: the loss is {}: the run has diverged, and the layer "
                    "with it",
                    this->steps(), L));
  }
  return L;
}

template <class T>
double HierarchicalLayer<T>::compute_loss(ConstView<T> H, const SparseBatch<T>& targets, MatrixView<T> grad_H) {
  this->take_non_negative_targets(targets);
  return pass(H, targets, Update::no, T(0), grad_H);
}

template <class T>
void HierarchicalLayer<T>::compute_log_prob(ConstView<T> H, const SparseBatch<T>& targets, std::span<double> out) {
  this->take_targets(targets);
  group_by_class(targets);
  pass_over_parts(H, Update::no, T(0), {});
  take_log_p(targets);
  this->spread(targets, log_p_, out);
}

// ── log p of any output ─────────────────────────────────────────────────────────────────────────

template <class T>
void HierarchicalLayer<T>::begin_scores(ConstView<T> H) {
  CrossEntropyLayer<T>::begin_scores(H);
  scored_class_ = -1;
  const auto O_A = log_p_classes_.scratch(classes_.count(), H.cols);
  this->backend().gemm(Op::transpose, Op::none, T(1), A(), H, T(0), O_A);
  this->backend().log_softmax_columns({}, O_A);
}

/// A class is normalised as a whole, and kept as long as the rows asked for are in it.
template <class T>
void HierarchicalLayer<T>::write_scores(std::span<const Index> rows, MatrixView<T> out) {
  auto& backend = this->backend();
  const Size m = out.cols;
  const MatrixView<const T> log_p_classes(log_p_classes_.data(), classes_.count(), m);
  for (std::size_t r = 0; r < rows.size();) {
    const Size cls = classes_.of(rows[r]), first = rows[r] - classes_.first(cls);
    const auto log_p = scores_.scratch(classes_.size(cls), m);
    if (cls != scored_class_) {
      scored_class_ = -1;
      backend.gemm(Op::transpose, Op::none, T(1), rows_of(cls), this->H_scored(), T(0), log_p);
      backend.log_softmax_columns(log_p_classes.block(cls, 0, 1, m), log_p);
      scored_class_ = cls;
    }
    Size run = 1;  // consecutive rows
    while (r + static_cast<std::size_t>(run) < rows.size() && first + run < log_p.rows &&
           rows[r + static_cast<std::size_t>(run)] == rows[r] + static_cast<Index>(run)) {
      ++run;
    }
    backend.copy(log_p.block(first, 0, run, m), out.block(static_cast<Size>(r), 0, run, m));
    r += static_cast<std::size_t>(run);
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
