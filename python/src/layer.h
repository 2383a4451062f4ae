#pragma once
/// An output layer as Python holds it. Every call releases the GIL, and one at a time is let in.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "module.h"
#include "targets.h"
#include "widehead/heads.h"
#include "widehead/spherical_layer.h"
#include "widehead/stream_order.h"

namespace widehead::python {

template <class T>
class Layer {
 public:
  using Hidden = AnyTable<const T>;  // of the host's memory or of the layer's device, as is what follows
  using Out = AnyTable<T>;
  using Doubles = List<const double>;
  using DoublesOut = List<double>;
  using Ticket = std::uint64_t;

  /// @param options  a dict: the members of HeadOptions by their names in Python (layer.cpp lists them)
  /// @param W0       where options["init"] is "given": what W starts with, or nothing if a state will be loaded
  /// @param device   as in device.h
  Layer(const nb::dict& options, const std::optional<Table<const T>>& W0, int threads, const std::string& device);

  double step(const Hidden& h, const Targets<T>& targets, double lr, const std::optional<List<const T>>& weights,
              const std::optional<Out>& grad_h);
  double evaluate(const Hidden& h, const Targets<T>& targets, const std::optional<List<const T>>& weights,
                  const std::optional<Out>& grad_h);

  /// Seconds for so many steps, on one minibatch (h, targets) after the other, in a loop of C++: what the comforts of
  /// Python are measured against (python/benchmarks/overhead.py).
  double time_steps(const nb::list& batches, double lr, std::int64_t steps);

  // A step in parts (spherical_layer.h). A ticket stands for what the layer still knows of a minibatch: whoever comes
  // with the last one handed out saves the layer computing it again. 0 is never handed out.
  Ticket observe(const Hidden& h, const Targets<T>& targets, const DoublesOut& q, const std::optional<DoublesOut>& s,
                 const DoublesOut& o);
  Ticket backpropagate(const Hidden& h, const Targets<T>& targets, const Doubles& a, const std::optional<Doubles>& b,
                       const Doubles& g, const Out& grad_h, Ticket ticket);
  void update(const Hidden& h, const Targets<T>& targets, const Doubles& a, const std::optional<Doubles>& b,
              const Doubles& g, double lr, const std::optional<Out>& grad_h, Ticket ticket);

  // The same for the layer's own loss, of which only the factor comes from outside: it goes into lr.
  /// @return L, a ticket, and the stamp of W
  std::tuple<double, Ticket, std::uint64_t> judge(const Hidden& h, const Targets<T>& targets, const Out& grad_h);
  void finish(const Hidden& h, const Targets<T>& targets, double lr, Ticket ticket);

  double rate_for(const Hidden& h, const Targets<T>& targets, double lambda,
                  const std::optional<List<const T>>& weights);
  void log_prob(const Hidden& h, const Targets<T>& targets, const DoublesOut& out);
  void scores(const Hidden& h, const List<const Index>& rows, const Out& out);
  void top_k(const Hidden& h, const Table<Index>& outputs, const Table<T>& scores);
  void weights(Size first, const Out& out);
  void gram(const Out& out);
  void sum_of_rows(const Out& out);
  nb::dict diagnostics();
  nb::dict counters();

  void save(const std::string& path, const nb::dict& metadata);
  void load(const std::string& path);
  nb::dict state();
  void load_state(const nb::dict& state);

  OutputLayer<T>& layer() { return *layer_; }
  const std::shared_ptr<Backend<T>>& backend() const { return backend_; }
  const std::shared_ptr<std::mutex>& mutex() const { return mutex_; }  ///< held while anybody is at work
  bool has_statistics() const { return dynamic_cast<SphericalLayer<T>*>(layer_.get()) != nullptr; }
  /// Another number after every change of W.
  std::uint64_t stamp() const { return loads_ << 48 | static_cast<std::uint64_t>(layer_->steps()); }
  bool uses_sum() const { return widehead::uses_sum(options_.layer.loss); }

 private:
  using Known = typename SphericalLayer<T>::Known;

  /// Runs `work` without the GIL, alone; what the layer knew of a minibatch is lost.
  template <class Work>
  auto alone(const Work& work) {
    const nb::gil_scoped_release release;
    const std::scoped_lock lock(*mutex_);
    const auto forget = std::exchange(known_, Known::nothing);
    return work(forget);
  }
  /// For what does not care what was known.
  template <class Work>
  auto run(const Work& work) {
    return alone([&](Known) { return work(); });
  }
  Known known_by(Ticket ticket, Known known) const { return ticket == ticket_ ? known : Known::nothing; }
  SphericalLayer<T>& spherical();
  /// The view of a table. @throws std::invalid_argument where the layer has no business with its memory
  template <class V>
  MatrixView<V> view_of(const AnyTable<V>& table) const;
  template <class V>
  MatrixView<V> view_of(const std::optional<AnyTable<V>>& table) const {
    return table ? view_of(*table) : MatrixView<V>();
  }
  void check_parts(const Targets<T>& targets, std::size_t q, std::size_t s, std::size_t o, const char* what) const;

  HeadOptions options_;
  std::shared_ptr<Backend<T>> backend_;
  std::unique_ptr<OutputLayer<T>> layer_;
  std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
  Ticket ticket_ = 0;  // the last one handed out
  Known known_ = Known::nothing;
  std::uint64_t loads_ = 0;
  HostStatistics statistics_;
};

/// `with layer.order(stream):` what the layer does there is in order with that stream (stream_order.h).
template <class T>
class Order {
 public:
  /// @param mutex  that of the layer: both ends of the order send off what others may be writing down for the device
  Order(std::shared_ptr<Backend<T>> backend, std::shared_ptr<std::mutex> mutex, std::uintptr_t stream)
      : backend_(std::move(backend)), mutex_(std::move(mutex)), stream_(stream) {}
  void enter() {
    const nb::gil_scoped_release release;
    const std::scoped_lock lock(*mutex_);
    order_.emplace(*backend_, reinterpret_cast<void*>(stream_));
  }
  void exit() {
    const nb::gil_scoped_release release;
    const std::scoped_lock lock(*mutex_);
    order_.reset();
  }

 private:
  std::shared_ptr<Backend<T>> backend_;
  std::shared_ptr<std::mutex> mutex_;
  std::uintptr_t stream_;
  std::optional<StreamOrder<T>> order_;
};

}  // namespace widehead::python
