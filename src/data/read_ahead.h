#pragma once
/// Decoding in a thread of its own, a few pieces ahead of who reads: to unpack a text takes as long as to count its
/// words.

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "byte_stream.h"

namespace widehead {

class ReadAhead final : public ByteReader {
 public:
  explicit ReadAhead(std::unique_ptr<ByteReader> inner);
  ~ReadAhead() override;
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  std::size_t read(std::span<char> out) override;
  std::int64_t bytes_read() const override { return bytes_read_; }
  std::int64_t bytes_total() const override { return bytes_total_; }

 private:
  struct Piece {
    std::vector<char> bytes;
    std::size_t size = 0;         // 0: the end, or the failure
    std::int64_t bytes_read = 0;  // of the file, to the end of this piece
    std::exception_ptr failure;
  };

  void run();
  void fill(Piece& piece);

  std::unique_ptr<ByteReader> inner_;  // the thread's
  std::int64_t bytes_total_;
  std::array<Piece, 4> pieces_;  // number n is in place n mod 4

  std::mutex mutex_;  // guards the three that follow
  std::condition_variable changed_;
  std::uint64_t filled_ = 0;  // pieces the thread has filled
  std::uint64_t done_ = 0;    // pieces that have been read
  bool stop_ = false;

  std::size_t position_ = 0;  // in the piece that is being read
  std::int64_t bytes_read_ = 0;
  std::thread thread_;  // last: it begins when all else is there
};

}  // namespace widehead
