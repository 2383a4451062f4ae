/// What stands in for src/cuda in a build without it.

#include "widehead/backend.h"
#include "widehead/errors.h"
#include "widehead/stream_order.h"

namespace widehead {

template <class T>
std::shared_ptr<Backend<T>> make_cuda_backend(const CudaOptions& /*options*/) {
  throw BackendError("this build has no CUDA; configure with -DWIDEHEAD_CUDA=ON");
}
template std::shared_ptr<Backend<float>> make_cuda_backend(const CudaOptions&);
template std::shared_ptr<Backend<double>> make_cuda_backend(const CudaOptions&);

int cuda_devices() { return 0; }

template <class T>
StreamOrder<T>::StreamOrder(Backend<T>& backend, void* stream) : backend_(backend), stream_(stream) {}
template <class T>
StreamOrder<T>::~StreamOrder() = default;
template class StreamOrder<float>;
template class StreamOrder<double>;

}  // namespace widehead
