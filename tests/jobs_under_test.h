#pragma once
/// A small job of each kind over made-up files, and what its folder holds afterwards.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dice.h"
#include "scratch_folder.h"
#include "widehead/model/model_folder.h"
#include "widehead/model/safetensors.h"
#include "widehead/train/model.h"
#include "widehead/train/run.h"

namespace widehead::test {

constexpr std::array<Job, 3> every_job = {Job::lm, Job::labels, Job::items};

/// Lines in which a word nearly decides the next.
inline std::string make_text(Dice& dice, int lines) {
  std::string text;
  for (int line = 0; line < lines; ++line) {
    Size word = dice.between(0, 19);
    for (Size k = dice.between(2, 12); k > 0; --k) {
      text += fmt::format("w{} ", word);
      word = dice.between(0, 9) == 0 ? dice.between(0, 29) : (3 * word + 1) % 20;
    }
    if (line % 10 == 0) text += fmt::format("rare{}", line);  // unknown
    text += '\n';
  }
  return text;
}

/// Three features decide one label, another is chance.
inline std::string make_labels(Dice& dice, int examples) {
  std::string text = fmt::format("{} 30 12\n", examples);
  for (int example = 0; example < examples; ++example) {
    const Size kind = dice.between(0, 9), other = dice.between(10, 11);
    text += fmt::format("{},{} {}:1 {}:0.5 {}:2 {}:{}\n", kind, other, kind, kind + 10, 20 + kind % 5, 25 + other % 5,
                        dice.uniform(0.5, 1));
  }
  return text;
}

/// Users of three tastes.
inline std::string make_items(Dice& dice, int users) {
  std::string text;
  for (int user = 0; user < users; ++user) {
    text += fmt::format("u{}", user);
    const Size taste = 10 * dice.between(0, 2);
    for (int k = 0; k < 8; ++k) {
      text += fmt::format(" i{}", dice.between(0, 5) == 0 ? dice.between(0, 29) : taste + dice.between(0, 9));
    }
    text += '\n';
  }
  return text;
}

/// A job that takes well below a second; its data are in the folder, its model in folder/model.
inline TrainOptions small_job(const ScratchFolder& folder, Job job) {
  Dice dice(7);
  auto options = default_options(job);
  options.out = folder.path("model");
  options.threads = 1;
  options.dim = 8;
  options.batch = 32;
  options.lr = 0.01;
  options.save_every = 0;
  options.valid_every = 1;
  options.seed = 5;
  switch (job) {
    case Job::lm:
      options.train = {folder.file("text.txt", make_text(dice, 150))};
      options.hold_out = 0.1;
      options.min_count = 2;
      options.context = 2;
      options.embedding = 6;
      options.hidden = {10};
      options.epochs = 3;
      break;
    case Job::labels:
      options.train = {folder.file("labels.txt", make_labels(dice, 230))};
      options.valid = folder.file("valid.txt", make_labels(dice, 300));
      options.hidden = {9};
      options.epochs = 4;
      break;
    case Job::items:
      options.train = {folder.file("items.txt", make_items(dice, 150))};
      options.hold_out = 0.2;
      options.hidden = {9};
      options.epochs = 5;
      break;
  }
  return options;
}

/// Stops after so many steps; remembers what it was told.
class Watcher final : public RunObserver {
 public:
  explicit Watcher(std::int64_t steps = -1) : steps_left_(steps) {}
  void note(const std::string& text) override { notes.push_back(text); }
  void training(const Progress& progress) override { last = progress; }
  void evaluated(const Progress&, const Figures&) override { ++evaluations; }
  bool should_stop() override { return --steps_left_ == 0; }

  std::vector<std::string> notes;
  Progress last;
  int evaluations = 0;

 private:
  std::int64_t steps_left_;
};

inline RunResult train(Job job, const TrainOptions& options, std::int64_t steps = -1) {
  Watcher watcher(steps);
  return run_training(job, options, watcher);
}

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
/// The arrays of the state, but for what depends on the clock.
inline std::map<std::string, std::string> state_of(const std::string& model) {
  const auto folder = ModelFolder::open(model);
  std::map<std::string, std::string> arrays;
  for (const auto* role : {model_files::state, model_files::rows}) {
    if (!folder.has(role)) continue;
    const auto bytes = content_of(folder.path_of(role));
    const SafetensorsFile file(folder.path_of(role));
    for (const auto& tensor : file.tensors()) {
      if (!tensor.name.ends_with("seconds")) arrays[tensor.name] = bytes.substr(tensor.offset, tensor.bytes);
    }
  }
  return arrays;
}

/// The lines of the log, but for what depends on the clock.
inline std::vector<nlohmann::json> metrics_of(const std::string& model) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(ModelFolder::open(model).path_of(model_files::metrics));
  for (std::string line; std::getline(file, line);) {
    auto& json = lines.emplace_back(nlohmann::json::parse(line));
    for (const auto* key : {"examples_per_second", "waiting_share", "head_share"}) json.erase(key);
  }
  return lines;
}

inline double figure(const Figures& figures, const std::string& name) {
  for (const auto& [key, value] : figures) {
    if (key == name) return value;
  }
  ADD_FAILURE() << "no figure " << name;
  return 0;
}

}  // namespace widehead::test
