#include "widehead/train/prefetcher.h"

#include <chrono>

namespace widehead {

template <class T>
Prefetcher<T>::Prefetcher(const BatchSource<T>& source, Cursor start, std::int64_t epochs, Size m)
    : source_(source), epochs_(epochs), m_(m), thread_([this, start] { produce(start); }) {}

template <class T>
Prefetcher<T>::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

template <class T>
void Prefetcher<T>::produce(Cursor at) {
  try {
    while (at.epoch < epochs_) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock,
                      [&] { return stopping_ || filled_ + 1 < taken_ + depth; });  // one is in the trainer's hands
        if (stopping_) return;
      }
      auto& batch = ring_[filled_ % depth];
      source_.fill(at, m_, batch);
      at = batch.next;
      if (batch.examples() == 0) continue;
      const std::lock_guard lock(mutex_);
      ++filled_;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

template <class T>
const Batch<T>* Prefetcher<T>::next() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || taken_ < filled_; });
  seconds_waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (taken_ == filled_) {
    if (failure_) std::rethrow_exception(failure_);
    return nullptr;
  }
  const auto* batch = &ring_[taken_++ % depth];
  changed_.notify_all();
  return batch;
}

template class Prefetcher<float>;
template class Prefetcher<double>;

}  // namespace widehead
