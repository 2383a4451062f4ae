/// What stands in for files and trainer in a build without the training library: the layers are all there is.

#include <stdexcept>

#include "layer.h"

namespace widehead::python {
namespace {

[[noreturn]] void refuse() {
  throw std::invalid_argument(
      "this build of widehead has layers only, no files and no trainer; configure with -DWIDEHEAD_BUILD_TRAINING=ON");
}

}  // namespace

template <class T>
void Layer<T>::save(const std::string&, const nb::dict&) {
  refuse();
}
template <class T>
void Layer<T>::load(const std::string&) {
  refuse();
}
template void Layer<float>::save(const std::string&, const nb::dict&);
template void Layer<double>::save(const std::string&, const nb::dict&);
template void Layer<float>::load(const std::string&);
template void Layer<double>::load(const std::string&);

void add_files(nb::module_& m) {
  m.def("read_metadata", [](const nb::args&) { refuse(); });
}

void add_training(nb::module_& m) {
  m.def("train_options", [](const nb::args&) { return nb::list(); });
  for (const char* name : {"train", "model_vectors", "save_word_vectors", "load_word_vectors"}) {
    m.def(name, [](const nb::args&) { refuse(); });
  }
}

}  // namespace widehead::python
