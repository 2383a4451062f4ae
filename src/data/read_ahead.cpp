#include "read_ahead.h"

#include <algorithm>
#include <utility>

namespace widehead {
namespace {

constexpr std::size_t piece_size = std::size_t{1} << 18;

}  // namespace

ReadAhead::ReadAhead(std::unique_ptr<ByteReader> inner)
    : inner_(std::move(inner)), bytes_total_(inner_->bytes_total()), thread_([this] { run(); }) {}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

/// The thread: fills pieces in turn, until one is the end.
void ReadAhead::run() {
  for (bool more = true; more;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_ || filled_ - done_ < pieces_.size(); });
    if (stop_) return;
    Piece& piece = pieces_[filled_ % pieces_.size()];
    lock.unlock();
    fill(piece);
    more = piece.size > 0;
    lock.lock();
    ++filled_;
    lock.unlock();
    changed_.notify_all();
  }
}

void ReadAhead::fill(Piece& piece) {
  try {
    piece.bytes.resize(piece_size);
    piece.size = inner_->read(piece.bytes);
    piece.bytes_read = inner_->bytes_read();
  } catch (...) {
    piece.size = 0;
    piece.failure = std::current_exception();
  }
}

std::size_t ReadAhead::read(std::span<char> out) {
  Piece& piece = pieces_[done_ % pieces_.size()];  // done_ changes in this function alone
  if (position_ == 0) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return filled_ > done_; });
    lock.unlock();
    if (piece.failure != nullptr) std::rethrow_exception(piece.failure);
    bytes_read_ = piece.bytes_read;
  }
  const auto count = std::min(out.size(), piece.size - position_);
  std::copy_n(piece.bytes.data() + position_, count, out.data());
  position_ += count;
  if (position_ == piece.size && piece.size > 0) {
    position_ = 0;
    {
      const std::lock_guard lock(mutex_);
      ++done_;
    }
    changed_.notify_all();
  }
  return count;
}

}  // namespace widehead
