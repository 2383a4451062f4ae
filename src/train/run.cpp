#include "widehead/train/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "widehead/data/output_file.h"
#include "widehead/device.h"
#include "widehead/errors.h"
#include "widehead/model/model_folder.h"
#include "widehead/model/safetensors.h"
#include "widehead/train/assemble.h"
#include "widehead/train/job_data.h"
#include "widehead/train/model.h"

namespace widehead {
namespace {

namespace fs = std::filesystem;

/// One run: data, network and trainer over a folder.
template <class T>
class Run final : TrainerHooks {
 public:
  Run(Job job, const TrainOptions& options, ModelFolder folder, RunObserver& observer)
      : job_(job),
        options_(options),
        folder_(std::move(folder)),
        observer_(observer),
        resumed_(folder_.generation() > 0),
        backend_(make_backend<T>(options.device, static_cast<int>(options.threads), options.tf32)),
        data_(load_job_data<T>(job, options, names_path(), (folder_.path() / model_files::tokens).string(),
                               [&](double share) { observer.reading(share); })),
        counts_(data_->counts().begin(), data_->counts().end()),
        network_(network_options(job, options, data_->source().features(), data_->source().outputs(), counts_),
                 backend_),
        trainer_(trainer_options(options), network_, data_->source(), *this) {
    observer_.note(data_->description());
    if (resumed_) load();
  }

  RunResult run() {
    if (!resumed_) save();  // from here on the folder is a model
    result_.complete = trainer_.run();
    if (result_.complete) fs::remove(folder_.path() / model_files::tokens);
    return result_;
  }

 private:
  /// Names come from the folder when a run is resumed: the corpus is not counted again.
  std::string names_path() const {
    return resumed_ && folder_.has(model_files::vocabulary) ? folder_.path_of(model_files::vocabulary).string() : "";
  }

  void visit_state(StateVisitor& state) {
    state.list("counts", counts_);
    {
      const auto scope = state.scope("trainer");
      trainer_.visit_state(state);
    }
    const auto scope = state.scope("network");
    network_.visit_state(state);
  }

  void load() {
    const auto info = ModelInfo::from_json(folder_.info(), folder_.path().string());
    const auto& source = data_->source();
    if (info.features != source.features() || info.outputs != source.outputs()) {
      throw FileError(
          fmt::format("{}: {} features and {} outputs, but the data have {} and {}: not the data of this run",
                      folder_.path().string(), info.features, info.outputs, source.features(), source.outputs()));
    }
    load_state(
        folder_.path_of(model_files::state), [&](StateVisitor& state) { visit_state(state); },
        folder_.has(model_files::rows) ? folder_.path_of(model_files::rows) : fs::path());
    result_.progress.share = info.share;
    observer_.note(fmt::format("resumed at step {}, {:.1f}% of the run", info.steps, 100 * info.share));
  }

  // ── hooks ───────────────────────────────────────────────────────────────────────────────────
  void save() override {
    auto change = folder_.begin();
    if (folder_.generation() == 0) {
      OutputFile config(change.fixed_file(model_files::config));
      config.write(to_toml(job_, options_, false));
      config.commit();
      if (!data_->names_file().empty()) data_->save_names(change.fixed_file(data_->names_file()));
    } else {
      change.keep(model_files::config);
      if (!data_->names_file().empty()) change.keep(data_->names_file());
    }
    const auto rows = options_.rows_file.empty() ? fs::path() : change.file(model_files::rows);
    save_state(
        change.file(model_files::state), [&](StateVisitor& state) { visit_state(state); },
        {{"widehead", "state of a training run"}}, rows);
    folder_.append_only(model_files::metrics);
    change.append_only(model_files::metrics);
    ModelInfo info;
    info.job = job_;
    info.features = data_->source().features();
    info.outputs = data_->source().outputs();
    info.examples = data_->examples();
    info.share = result_.progress.share;
    info.steps = network_.steps();
    info.complete = trainer_.cursor().epoch >= options_.epochs;
    change.commit(info.to_json());
  }

  void log(const Progress& p) override {
    append({{"step", p.steps},
            {"epoch", p.epoch},
            {"share", p.share},
            {"examples", p.examples},
            {"loss", p.loss},
            {"lr", p.lr},
            {"eta", p.eta},
            {"examples_per_second", p.examples_per_second},
            {"waiting_share", p.waiting_share},
            {"head_share", p.head_share}});
  }

  void after_epoch(const Progress& p) override {
    const auto done = trainer_.cursor().epoch;
    if (done % options_.valid_every != 0 && done < options_.epochs) return;
    result_.figures = data_->evaluate(network_);
    if (result_.figures.empty()) return;
    nlohmann::ordered_json figures;
    for (const auto& [name, value] : result_.figures) figures[name] = value;
    append({{"step", p.steps}, {"epochs_done", done}, {"held_out", figures}});
    observer_.evaluated(p, result_.figures);
  }

  void progress(const Progress& p) override {
    result_.progress = p;
    observer_.training(p);
  }

  bool should_stop() override { return observer_.should_stop(); }

  void append(const nlohmann::ordered_json& line) {
    const auto path = folder_.append_only(model_files::metrics);
    std::ofstream file(path, std::ios::app);
    file << line.dump() << '\n';
    if (!file.flush()) throw std::system_error(errno, std::generic_category(), path.string());
  }

  Job job_;
  TrainOptions options_;
  ModelFolder folder_;
  RunObserver& observer_;
  bool resumed_;
  std::shared_ptr<Backend<T>> backend_;  // before the data, which may take long to read: there may be no such device
  std::unique_ptr<JobData<T>> data_;
  std::vector<std::int64_t> counts_;
  Network<T> network_;
  Trainer<T> trainer_;
  RunResult result_;
};

/// The folder of a new run, which is gone again if the run ends before there is a model in it. A model that is to be
/// overwritten stays beside it until the run has ended.
class NewFolder {
 public:
  NewFolder(const fs::path& path, bool overwrite)
      : path_(path.has_filename() ? path : path.parent_path()),  // "model/" is "model"
        old_(path_.string() + ".old"),
        existed_(fs::exists(path)) {
    if (overwrite && ModelFolder::exists(path_)) {
      fs::remove_all(old_);
      fs::rename(path_, old_);
      moved_ = true;
    }
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code ignored;
    if (ModelFolder::exists(path_)) {
      if (moved_) fs::remove_all(old_, ignored);
      return;
    }
    if (!existed_ || moved_) fs::remove_all(path_, ignored);
    if (moved_) fs::rename(old_, path_, ignored);
  }

 private:
  fs::path path_, old_;
  bool existed_, moved_ = false;
};

RunResult run_in(Job job, const TrainOptions& options, ModelFolder folder, RunObserver& observer) {
  if (options.dtype == "f64") return Run<double>(job, options, std::move(folder), observer).run();
  return Run<float>(job, options, std::move(folder), observer).run();
}

RunResult resume(Job job, const TrainOptions& options, RunObserver& observer) {
  auto folder = ModelFolder::open(options.out, ModelFolder::Access::write);
  const auto stored = read_toml(folder.path_of(model_files::config), &job).options;
  if (const auto names = differences(job, stored, options); !names.empty()) {
    throw std::invalid_argument(
        fmt::format("--resume: the run in {} has other values of --{}", options.out, fmt::join(names, ", --")));
  }
  const auto info = ModelInfo::from_json(folder.info(), options.out);
  if (info.complete) {
    observer.note(fmt::format("the run in {} is complete", options.out));
    RunResult result;
    result.complete = true;
    result.progress.share = 1;
    return result;
  }
  if (!options.rows_file.empty()) {
    fs::remove(options.rows_file);  // of the run that ended; the checkpoint has what it held
  }
  return run_in(job, options, std::move(folder), observer);
}

}  // namespace

RunResult run_training(Job job, const TrainOptions& options, RunObserver& observer) {
  check(job, options);
  const bool exists = ModelFolder::exists(options.out);
  if (exists && options.resume) return resume(job, options, observer);
  if (exists && !options.overwrite) {
    throw std::invalid_argument(fmt::format(
        "--out {}: there is a model in this folder; --resume goes on with it, --overwrite replaces it", options.out));
  }
  const NewFolder guard(options.out, options.overwrite);
  return run_in(job, options, ModelFolder::create(options.out), observer);
}

}  // namespace widehead
