#pragma once
/// Assembles minibatches in a thread of its own, a few ahead of the trainer.

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "widehead/train/batch.h"

namespace widehead {

template <class T>
class Prefetcher {
 public:
  /// Minibatches of m examples from `start` until `epochs` are over; empty ones are left out.
  Prefetcher(const BatchSource<T>& source, Cursor start, std::int64_t epochs, Size m);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The next minibatch, valid until the next call; null after the last. What the source threw is thrown here.
  const Batch<T>* next();
  double seconds_waited() const { return seconds_waited_; }  ///< in next()

 private:
  void produce(Cursor at);

  static constexpr std::size_t depth = 4;

  const BatchSource<T>& source_;
  std::int64_t epochs_;
  Size m_;
  std::vector<Batch<T>> ring_{depth};
  std::size_t filled_ = 0;  // minibatches made, ever
  std::size_t taken_ = 0;   // … and given out; the last one is still in use
  bool ended_ = false, stopping_ = false;
  std::exception_ptr failure_;
  double seconds_waited_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace widehead
