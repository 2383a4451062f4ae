#pragma once
/// Copies of models that say something else, with all checksums right.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "widehead/model/model_folder.h"
#include "widehead/train/model.h"

namespace widehead::test {

/// What is to be different in the copy; what is not given stays.
struct ModelEdits {
  std::function<void(std::string&)> config;
  std::function<void(ModelInfo&)> info;
  std::function<void(const std::filesystem::path&)> write_state;  ///< instead of the state that was there
};

/// Makes the folder `to`, which is replaced, and returns its path.
inline std::string copy_model(const std::string& from, const std::string& to, const ModelEdits& edits) {
  namespace fs = std::filesystem;
  const auto model = ModelFolder::open(from);
  fs::remove_all(to);
  auto copy = ModelFolder::create(to);
  auto change = copy.begin();
  std::ifstream stored(model.path_of(model_files::config), std::ios::binary);
  std::string config{std::istreambuf_iterator<char>(stored), {}};
  if (edits.config) edits.config(config);
  std::ofstream(change.fixed_file(model_files::config)) << config;
  for (const auto* role : {model_files::state, model_files::rows}) {
    if (!model.has(role)) continue;
    if (role == model_files::state && edits.write_state) {
      edits.write_state(change.file(role));
    } else {
      fs::copy_file(model.path_of(role), change.file(role));
    }
  }
  for (const auto* role : {model_files::vocabulary, model_files::items}) {
    if (model.has(role)) fs::copy_file(model.path_of(role), change.fixed_file(role));
  }
  auto info = ModelInfo::from_json(model.info(), to);
  if (edits.info) edits.info(info);
  change.commit(info.to_json());
  return to;
}

/// Replaces the line of an option in a config.
inline auto with(const std::string& name, const std::string& value) {
  return [=](std::string& config) {
    const auto begin = ("\n" + config).find("\n" + name + " = ");
    ASSERT_NE(begin, std::string::npos) << name << " in " << config;
    config.replace(begin, config.find('\n', begin) - begin, name + " = " + value);
  };
}

}  // namespace widehead::test
