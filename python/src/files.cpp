/// Layers in files.

#include "layer.h"
#include "widehead/model/safetensors.h"

namespace widehead::python {

template <class T>
void Layer<T>::save(const std::string& path, const nb::dict& metadata) {
  Metadata entries;
  for (const auto& [key, value] : metadata) entries[nb::cast<std::string>(key)] = nb::cast<std::string>(value);
  run([&] {
    save_state(
        path, [&](StateVisitor& visitor) { layer_->visit_state(visitor); }, entries);
  });
}

/// Into a layer that is thrown away if this fails.
template <class T>
void Layer<T>::load(const std::string& path) {
  run([&] { widehead::load_state(path, [&](StateVisitor& visitor) { layer_->visit_state(visitor); }); });
  ++loads_;
}

template void Layer<float>::save(const std::string&, const nb::dict&);
template void Layer<double>::save(const std::string&, const nb::dict&);
template void Layer<float>::load(const std::string&);
template void Layer<double>::load(const std::string&);

namespace {

nb::dict read_metadata(const std::string& path) {
  const SafetensorsFile file(path);
  nb::dict result;
  for (const auto& [key, value] : file.metadata()) result[key.c_str()] = value;
  return result;
}

}  // namespace

void add_files(nb::module_& m) { m.def("read_metadata", &read_metadata, nb::arg("path")); }

}  // namespace widehead::python
