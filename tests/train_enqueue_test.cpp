/// Networks and trainers that do not wait for the device: the same steps, nothing asked in between, and a run that has
/// diverged is found out before it is saved. On the CPU with a backend that enqueues (enqueueing_backend.h), and on
/// GPUs.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "enqueueing_backend.h"
#include "errors.h"
#include "jobs_under_test.h"
#include "network_under_test.h"
#include "widehead/errors.h"
#include "widehead/train/trainer.h"

namespace widehead::test {
namespace {

template <class T>
void enqueue(Network<T>& network, const Batch<T>& batch, double lr, double head_factor) {
  network.enqueue_step(batch.inputs.view(test_features), batch.targets.view(test_outputs), lr, head_factor);
}

std::vector<NetworkShape> shapes() {
  return {{.concat = true, .hidden = {5}, .head = "windowed"},
          {.concat = false, .hidden = {}, .head = "windowed"},
          {.concat = false, .hidden = {5, 6}, .head = "windowed", .loss = "taylor"},
          {.concat = true, .hidden = {}, .head = "hierarchical"}};
}

// ── networks ────────────────────────────────────────────────────────────────────────────────────

TEST(EnqueuedNetwork, IsThereWhereTheHeadEnqueues) {
  for (const std::string head : {"windowed", "dense", "factored", "softmax", "hierarchical"}) {
    const auto options = options_of({.head = head});
    EXPECT_FALSE(Network<float>(options, make_cpu_backend<float>(1)).enqueues()) << head;
    EXPECT_EQ(Network<float>(options, std::make_shared<EnqueueingBackend<float>>()).enqueues(),
              head == "windowed" || head == "hierarchical")
        << head;
  }
}

TEST(EnqueuedNetwork, TakesTheStepsOfOneThatWaits) {
  for (const auto& shape : shapes()) {
    for (const auto optimizer : {Optimizer::sgd, Optimizer::adam}) {
      for (const double clip : {0.0, 0.01, 1e6}) {
        SCOPED_TRACE(fmt::format("{}, clip {}", shape.name(), clip));
        auto options = options_of(shape);
        options.optimizer = optimizer;
        options.clip = clip;
        Network<double> waiting(options, std::make_shared<EnqueueingBackend<double>>());
        Network<double> enqueueing(options, std::make_shared<EnqueueingBackend<double>>());
        Dice dice(3);
        double loss = 0;
        for (int k = 0; k < 12; ++k) {
          const auto batch = make_batch<double>(dice, shape.concat, dice.between(2, 9));
          loss += step(waiting, batch, 0.1, 1);
          enqueue(enqueueing, batch, 0.1, 1);
        }
        EXPECT_NEAR(enqueueing.settle(), loss, 1e-12 * std::abs(loss));
        EXPECT_EQ(enqueueing.settle(), 0);
        EXPECT_EQ(enqueueing.steps(), 12);
        const auto truth = parameters(waiting);
        const auto distance = norm(combination(1, truth, -1, parameters(enqueueing)));
        if (clip == 0.01) {
          EXPECT_LE(distance, 1e-13 * norm(truth));  // a limit is multiplied in another order
        } else {
          EXPECT_EQ(distance, 0);
        }
      }
    }
  }
}

TEST(EnqueuedNetwork, AsksNothingInAStep) {
  for (const auto& shape : shapes()) {
    for (const double clip : {0.0, 0.01}) {
      SCOPED_TRACE(fmt::format("{}, clip {}", shape.name(), clip));
      auto options = options_of(shape);
      options.clip = clip;
      const auto backend = std::make_shared<EnqueueingBackend<float>>();
      Network<float> network(options, backend);
      Dice dice(4);
      const auto before = backend->waits;
      for (int k = 0; k < 20; ++k) enqueue(network, make_batch<float>(dice, shape.concat, 7), 0.1, 1);
      EXPECT_EQ(backend->waits, before);
      network.settle();
      EXPECT_GT(backend->waits, before);
    }
  }
}

/// With a rate by λ₁: in the first two steps, and where the ratio of the norms is taken.
TEST(EnqueuedNetwork, WaitsForTheRateNowAndThen) {
  auto options = options_of({.head = "windowed"});
  options.head_rate = {0, 0.1};
  const auto backend = std::make_shared<EnqueueingBackend<double>>();
  Network<double> network(options, backend);
  Dice dice(5);
  std::vector<int> waited;
  for (int k = 0; k < 200; ++k) {
    const auto before = backend->waits;
    enqueue(network, make_batch<double>(dice, true, 7), 0.01, 1);
    if (backend->waits != before) waited.push_back(k);
  }
  EXPECT_EQ(waited, (std::vector<int>{0, 1, 16, 32, 48, 64, 128, 192}));
}

/// η max(‖H‖²/m of two steps ago, of the first) m is one number until the next ratio.
TEST(EnqueuedNetwork, HasARateThatFollowsTheNormOfTwoStepsAgo) {
  auto options = options_of({.head = "windowed"});
  options.head_rate = {0, 0.1};
  Network<double> network(options, std::make_shared<EnqueueingBackend<double>>());
  Dice dice(6);
  std::vector<double> norms;
  double constant = 0;
  std::set<double> used;
  for (int k = 0; k < 60; ++k) {
    const auto batch = make_batch<double>(dice, true, dice.between(3, 9));
    const auto H = network.hidden(batch.inputs.view(test_features));
    double sum = 0;
    for (Size j = 0; j < H.cols; ++j) {
      for (Size i = 0; i < H.rows; ++i) sum += H(i, j) * H(i, j);
    }
    const auto m = static_cast<double>(H.cols);
    norms.push_back(sum / m);
    enqueue(network, batch, 0.3, 0.5);
    const bool measures = k < 2 || k % 16 == 0;
    const double norm = std::max(norms.front(), norms[static_cast<std::size_t>(measures ? k : k - 2)]);
    const double product = network.last_eta() / 0.5 * norm * m;
    if (k % 16 == 0) constant = product;
    EXPECT_NEAR(product, constant, 1e-12 * constant) << "step " << k;
    used.insert(norm);
  }
  EXPECT_GT(used.size(), 10U) << "H never grew, and the norm did not matter";
}

TEST(EnqueuedNetwork, GoesOnFromItsStateBitForBit) {
  auto options = options_of({.hidden = {5}, .head = "windowed"});
  options.head_rate = {0, 0.2};
  options.optimizer = Optimizer::adam;
  for (const int stop : {0, 1, 2, 3, 16, 21}) {
    SCOPED_TRACE(fmt::format("after {} steps", stop));
    Network<float> whole(options, std::make_shared<EnqueueingBackend<float>>());
    auto part = std::make_unique<Network<float>>(options, std::make_shared<EnqueueingBackend<float>>());
    Dice dice(7);
    for (int k = 0; k < 40; ++k) {
      if (k == stop) {
        part->settle();
        MemorySaver saver;
        part->visit_state(saver);
        part->visit_enqueued_state(saver);
        part = std::make_unique<Network<float>>(options, std::make_shared<EnqueueingBackend<float>>());
        MemoryLoader loader(saver.state);
        part->visit_state(loader);
        part->visit_enqueued_state(loader);
      }
      const auto batch = make_batch<float>(dice, true, 6);
      enqueue(whole, batch, 0.05, 1);
      enqueue(*part, batch, 0.05, 1);
      ASSERT_EQ(whole.last_eta(), part->last_eta()) << k;
    }
    whole.settle();
    part->settle();
    EXPECT_EQ(difference(timeless_state(whole), timeless_state(*part)), "");
  }
}

TEST(EnqueuedNetwork, RefusesNormsThatAreNone) {
  auto options = options_of({.head = "windowed"});
  Network<float> network(options, std::make_shared<EnqueueingBackend<float>>());
  for (const auto& norms : {std::vector<double>{1, 2, 3}, std::vector<double>{-1}, std::vector<double>{NAN}}) {
    SavedArray array{ElementType::f64, {static_cast<std::int64_t>(norms.size())}, {}};
    const auto* bytes = reinterpret_cast<const char*>(norms.data());
    array.bytes.assign(bytes, bytes + norms.size() * sizeof(double));
    const SavedState state = {{"norms", array}};
    MemoryLoader loader(state);
    expect_throw<FileError>([&] { network.visit_enqueued_state(loader); }, {"norms"});
  }
}

TEST(EnqueuedNetwork, ThatDivergedNamesTheStepsWhenSettled) {
  auto options = options_of({.concat = false, .hidden = {5}, .activation = Activation::relu, .head = "windowed"});
  Network<float> network(options, std::make_shared<EnqueueingBackend<float>>());
  Dice dice(8);
  for (int k = 0; k < 4; ++k) enqueue(network, make_batch<float>(dice, false, 7), 0.01, 1);
  network.settle();
  for (int k = 0; k < 10; ++k) enqueue(network, make_batch<float>(dice, false, 7), 1e30, 1);
  expect_throw<NumericalError>([&] { network.settle(); }, {"steps 5 … 14", "diverged"});
}

/// A gradient that only the next user of a feature would see.
TEST(EnqueuedNetwork, LooksAtItsParametersWhenAsked) {
  Network<float> network(options_of({.head = "windowed"}), std::make_shared<EnqueueingBackend<float>>());
  network.require_finite();
  const auto good = parameters(network);
  for (const auto& [name, list] : good) {
    auto bad = good;
    bad.at(name).back() = std::numeric_limits<float>::infinity();
    set_parameters(network, bad);
    EXPECT_THROW(network.require_finite(), NumericalError) << name;
  }
  set_parameters(network, good);
  network.require_finite();
}

// ── trainers ────────────────────────────────────────────────────────────────────────────────────

/// So many minibatches an epoch.
class MadeUpSource final : public BatchSource<float> {
 public:
  explicit MadeUpSource(std::int64_t batches) : batches_(batches) {}
  Size features() const override { return test_features; }
  Size outputs() const override { return test_outputs; }
  void fill(const Cursor& at, Size m, Batch<float>& batch) const override {
    Dice dice(static_cast<std::uint64_t>(1 + at.epoch * batches_ + at.position));
    batch = make_batch<float>(dice, false, m);
    batch.next = at.position + 1 < batches_ ? Cursor{at.epoch, at.position + 1} : Cursor{at.epoch + 1, 0};
  }
  double share_of_epoch(const Cursor& at) const override {
    return static_cast<double>(at.position) / static_cast<double>(batches_);
  }

 private:
  std::int64_t batches_;
};

struct Notebook final : TrainerHooks {
  explicit Notebook(Network<float>& trained) : network(trained) {}
  void save() override {
    saved_at.push_back(network.steps());
    network.require_finite();
  }
  void log(const Progress& p) override {
    logged += p.loss * static_cast<double>(p.examples - std::exchange(examples, p.examples));
  }
  void after_epoch(const Progress&) override { epochs_at.push_back(network.steps()); }
  void progress(const Progress& p) override { last = p; }
  bool should_stop() override { return false; }

  Network<float>& network;
  std::vector<std::int64_t> saved_at, epochs_at;
  double logged = 0;  // the loss of all steps
  std::int64_t examples = 0;
  Progress last;
};

NetworkOptions options_for_trainer() {
  auto options = options_of({.concat = false, .hidden = {5}, .activation = Activation::relu, .head = "windowed"});
  options.head_rate.eta = 0.003;
  return options;
}

TEST(EnqueueingTrainer, LogsTheLossesOfAllStepsAndWaitsNowAndThen) {
  const MadeUpSource source(1000);
  TrainerOptions options;
  options.epochs = 2;
  options.batch = 6;
  options.lr = 0.01;
  const auto enqueueing = std::make_shared<EnqueueingBackend<float>>();
  Network<float> network(options_for_trainer(), enqueueing);
  Notebook notes(network);
  const auto waits = enqueueing->waits;
  EXPECT_TRUE(Trainer<float>(options, network, source, notes).run());
  EXPECT_EQ(notes.saved_at, (std::vector<std::int64_t>{2000}));
  EXPECT_EQ(notes.epochs_at, (std::vector<std::int64_t>{1000, 2000}));
  EXPECT_GT(notes.last.loss, 0);
  EXPECT_GT(notes.last.head_share, 0);
  EXPECT_LT(notes.last.head_share, 1);
  // 200 logs, 32 timed steps of four waits and a settlement each, the last checkpoint.
  EXPECT_LT(enqueueing->waits - waits, 200 + 32 * 5 + 20);

  Network<float> waiting(options_for_trainer(), std::make_shared<EnqueueingBackend<float>>());
  double loss = 0;
  Cursor at;
  for (Batch<float> batch; at.epoch < 2; at = batch.next) {
    source.fill(at, options.batch, batch);
    const double share = (static_cast<double>(at.epoch) + source.share_of_epoch(at)) / 2;
    const double factor = rate_factor(options.schedule, options.warm_up, share);
    loss += step(waiting, batch, options.lr * factor, factor);
  }
  EXPECT_NEAR(notes.logged, loss, 1e-9 * loss);
  EXPECT_EQ(norm(combination(1, parameters(waiting), -1, parameters(network))), 0);
}

TEST(EnqueueingTrainer, FindsOutBeforeItIsLoggedAndSavesNothingOfIt) {
  for (const double seconds : {0.0, 1e-9}) {  // at the end only, or after every step
    const MadeUpSource source(100000);        // a log every 500 steps
    TrainerOptions options;
    options.lr = 1e30;
    options.batch = 6;
    options.save_every_seconds = seconds;
    auto diverging = options_for_trainer();
    diverging.activation = Activation::identity;  // units of relu would die instead
    Network<float> network(diverging, std::make_shared<EnqueueingBackend<float>>());
    Notebook notes(network);
    Trainer<float> trainer(options, network, source, notes);
    EXPECT_THROW(trainer.run(), NumericalError);
    EXPECT_LE(network.steps(), Trainer<float>::most_enqueued);
    EXPECT_EQ(notes.saved_at.size(), seconds == 0 ? 0U : static_cast<std::size_t>(network.steps() - 1));
  }
}

// ── runs on a GPU ───────────────────────────────────────────────────────────────────────────────

#define WIDEHEAD_NEEDS_A_GPU \
  if (cuda_devices() == 0) GTEST_SKIP() << "there is no GPU here"

std::vector<double> losses_of(const std::string& model) {
  std::vector<double> losses;
  for (const auto& line : metrics_of(model)) {
    if (line.contains("loss")) losses.push_back(line["loss"]);
  }
  return losses;
}

/// The loss curves of a job on the CPU and on a GPU.
std::pair<std::vector<double>, std::vector<double>> curves(const ScratchFolder& folder, Job job, TrainOptions options) {
  train(job, options);
  const auto here = losses_of(options.out);
  options.device = "cuda";
  options.out = folder.path("model-there");
  EXPECT_TRUE(train(job, options).complete);
  return {here, losses_of(options.out)};
}

TEST(Run, HasTheSameLosses_Cuda) {
  WIDEHEAD_NEEDS_A_GPU;
  for (const Job job : every_job) {
    for (const std::string head : {"windowed", "dense", "hierarchical"}) {
      for (const std::string dtype : {"f32", "f64"}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", name_of(job), head, dtype));
        const ScratchFolder folder;
        auto options = small_job(folder, job);
        options.head = head;
        options.dtype = dtype;
        options.head_lr = 0.001;  // else the rate on the GPU is another one
        options.window = 100;
        options.clip = 0.5;
        const auto [here, there] = curves(folder, job, options);
        ASSERT_GT(here.size(), 20U);
        ASSERT_EQ(there.size(), here.size());
        const double tolerance = dtype == "f64" ? 1e-8 : 1e-3;
        for (std::size_t k = 0; k < here.size(); ++k)
          EXPECT_NEAR(there[k], here[k], tolerance * std::abs(here[k])) << k;
      }
    }
  }
}

/// Where the rate follows H with two steps' delay, curves part, but not far.
TEST(Run, LearnsAsWellByLambda_Cuda) {
  WIDEHEAD_NEEDS_A_GPU;
  for (const Job job : every_job) {
    SCOPED_TRACE(name_of(job));
    const ScratchFolder folder;
    auto options = small_job(folder, job);
    options.epochs *= 3;
    const auto [here, there] = curves(folder, job, options);
    ASSERT_EQ(there.size(), here.size());
    double sum_here = 0, sum_there = 0;
    for (std::size_t k = here.size() / 2; k < here.size(); ++k) {
      sum_here += here[k];
      sum_there += there[k];
    }
    EXPECT_NEAR(sum_there, sum_here, 0.1 * std::abs(sum_here));
  }
}

TEST(Run, GoesOnAsIfItHadNotStopped_Cuda) {
  WIDEHEAD_NEEDS_A_GPU;
  for (const Job job : every_job) {
    SCOPED_TRACE(name_of(job));
    const ScratchFolder folder;
    auto options = small_job(folder, job);
    options.device = "cuda";
    options.batch = 3;
    train(job, options);
    auto whole = state_of(options.out);
    options.overwrite = true;
    train(job, options, 41);
    options.overwrite = false;
    options.resume = true;
    EXPECT_TRUE(train(job, options).complete);
    auto parts = state_of(options.out);
    for (auto* state : {&whole, &parts}) state->erase("trainer.recent_loss");  // a sum, made in another order
    EXPECT_TRUE(whole == parts);
  }
}

void expect_checkpoint_of_diverged_run(const std::string& device) {
  const ScratchFolder folder;
  auto options = small_job(folder, Job::labels);
  options.device = device;
  options.optimizer = "sgd";
  options.activation = "relu";
  for (const double save_every : {0.0, 1e-9}) {
    options.save_every = save_every;
    options.overwrite = true;
    for (const double head_lr : {0.0, 0.001}) {
      options.head_lr = head_lr;
      options.lr = 0.01;
      options.epochs = 1;
      train(Job::labels, options);
      options.lr = 1e30;
      EXPECT_THROW(train(Job::labels, options), NumericalError);
      // What is left opens, and is finite.
      const auto model = open_model(options.out, 1);
      std::get<Model<float>>(model).network->require_finite();
      EXPECT_FALSE(ModelInfo::from_json(ModelFolder::open(options.out).info(), "").complete);
    }
  }
}
TEST(Run, ThatDivergesKeepsItsCheckpoint) { expect_checkpoint_of_diverged_run("cpu"); }
TEST(Run, ThatDivergesKeepsItsCheckpoint_Cuda) {
  WIDEHEAD_NEEDS_A_GPU;
  expect_checkpoint_of_diverged_run("cuda");
}

}  // namespace
}  // namespace widehead::test
