#pragma once
/// Order between a backend and the streams of others. On a GPU a backend works on a stream of its own, which waits for
/// nobody's: what another library has yet to write there, or is going to read, must be put in order with it.

#include "widehead/backend.h"

namespace widehead {

/// While it lives, the backend works as if on the stream of somebody else: after all that was in that stream when this
/// was made, and before all that is put there once it is gone. The host waits for neither. The thread's current device,
/// which operations of a backend change, is the same before and after. Does nothing for backends without streams.
template <class T>
class StreamOrder {
 public:
  /// @param stream  a cudaStream_t of the backend's device; null is the default stream
  StreamOrder(Backend<T>& backend, void* stream);
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;
  ~StreamOrder();

 private:
  Backend<T>& backend_;
  void* stream_;
  int device_ = -1;  // the thread's, before
};

}  // namespace widehead
