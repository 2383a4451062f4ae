/// States in safetensors files: byte by byte, for other readers, with holes, and files that lie.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "compare.h"
#include "dice.h"
#include "errors.h"
#include "heads_under_test.h"
#include "state_in_memory.h"
#include "temporary_folder.h"
#include "widehead/errors.h"
#include "widehead/model/safetensors.h"
#include "widehead/synthetic.h"

namespace widehead::test {
namespace {

/// One of each kind.
struct Record {
  std::uint8_t byte = 200;
  std::vector<float> list{1.5F, -2};
  Matrix<double> table = Matrix<double>(2, 3);
  Matrix<std::int32_t> block = Matrix<std::int32_t>(1, 2);
  std::uint64_t natural = UINT64_MAX;
  std::vector<std::int64_t> none;

  Record() {
    for (Size i = 0; i < 6; ++i) table.data()[i] = static_cast<double>(i) / 4;
    block(0, 0) = -7;
    block(0, 1) = 1 << 30;
  }
  void visit_state(StateVisitor& visitor) {
    visitor.scalar("byte", byte);
    visitor.list("list", list);
    const auto scope = visitor.scope("in");
    visitor.matrix("table", table);
    visitor.block("block", block.view());
    visitor.scalar("natural", natural);
    visitor.list("none", none);
  }
};

template <class Object>
VisitState visit_of(Object& object) {
  return [&object](StateVisitor& visitor) { object.visit_state(visitor); };
}

/// A file from a header as text, as it stands, and data.
std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

template <class V>
std::string raw(std::initializer_list<V> values) {
  std::string bytes;
  for (const V value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof(V));
  return bytes;
}

TEST(Safetensors, FileIsByteForByteWhatTheFormatSays) {
  const TemporaryFolder folder;
  Record record;
  save_state(folder / "a", visit_of(record), {{"head", "own"}, {"note", "ü\"\n"}});
  std::string header = R"({"__metadata__":{"head":"own","note":"ü\"\n"},)"
                       R"("in.table":{"dtype":"F64","shape":[3,2],"data_offsets":[0,48]},)"
                       R"("in.natural":{"dtype":"U64","shape":[],"data_offsets":[48,56]},)"
                       R"("in.none":{"dtype":"I64","shape":[0],"data_offsets":[56,56]},)"
                       R"("list":{"dtype":"F32","shape":[2],"data_offsets":[56,64]},)"
                       R"("in.block":{"dtype":"I32","shape":[2,1],"data_offsets":[64,72]},)"
                       R"("byte":{"dtype":"U8","shape":[],"data_offsets":[72,73]}})";
  while ((8 + header.size()) % 64 != 0) header += ' ';
  EXPECT_EQ(read_bytes(folder / "a"),
            file_of(header, raw<double>({0, 0.25, 0.5, 0.75, 1, 1.25}) + raw<std::uint64_t>({UINT64_MAX}) +
                                raw<float>({1.5F, -2}) + raw<std::int32_t>({-7, 1 << 30}) + raw<std::uint8_t>({200})));
}

TEST(Safetensors, LoadingGivesBackWhatWasSavedAndItsMetadata) {
  const TemporaryFolder folder;
  Record saved, loaded;
  saved.list = {};
  saved.none = {1, -1, 9};
  saved.table = Matrix<double>(5, 1);
  saved.table(4, 0) = 7;
  const Metadata metadata{{"head", "own"}, {"", "empty"}};
  save_state(folder / "a", visit_of(saved), metadata);
  EXPECT_EQ(load_state(folder / "a", visit_of(loaded)), metadata);
  EXPECT_EQ(save(loaded), save(saved));

  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), 6U);
  EXPECT_EQ(file.tensors()[0].name, "in.table");
  EXPECT_EQ(file.tensors()[0].shape, (StateVisitor::Shape{1, 5}));
  EXPECT_EQ(file.tensors()[0].offset % 64, 0U);
  EXPECT_EQ(file.tensors()[0].bytes, 40U);
}

TEST(Safetensors, NothingAtAllIsAStateToo) {
  const TemporaryFolder folder;
  save_state(folder / "a", [](StateVisitor&) {});
  EXPECT_TRUE(SafetensorsFile(folder / "a").tensors().empty());
  EXPECT_TRUE(load_state(folder / "a", [](StateVisitor&) {}).empty());
}

// ── layers ──────────────────────────────────────────────────────────────────────────────────────

INSTANTIATE_TEST_SUITE_P(Plain, HeadTest, testing::ValuesIn(in_each_dtype(plain_heads())), case_name);

TEST_P(HeadTest, ResumedFromAFileIsBitIdentical) {
  run([&]<class T>() {
    const TemporaryFolder folder;
    const LayerOptions options{.outputs = 300, .dim = 12};
    const auto layer = make_layer<T>(GetParam(), options), resumed = make_layer<T>(GetParam(), options);
    const SyntheticStream<T> stream({.outputs = 300, .dim = 12, .batch = 3, .nonzeros = 2});
    Matrix<T> grad(12, 3), resumed_grad(12, 3);
    for (std::uint64_t t = 0; t < 80; ++t) {
      const auto batch = stream.batch(t);
      const double eta = layer->eta_for(batch.H, batch.targets(), 0.4);
      if (t == 23) {
        save_state(folder / "state", visit_of(*layer));
        load_state(folder / "state", visit_of(*resumed));
      }
      const double loss = layer->step(batch.H, batch.targets(), eta, grad);
      if (t < 23) continue;
      ASSERT_EQ(loss, resumed->step(batch.H, batch.targets(), eta, resumed_grad));
      ASSERT_TRUE(is_identical<T>(grad, resumed_grad));
    }
    EXPECT_TRUE(is_identical<T>(layer->weights(), resumed->weights()));
  });
}

TEST(Safetensors, WrongHeadDtypeAndShapeAreNamed) {
  const TemporaryFolder folder;
  const auto make = [](const char* head, Size D) {
    auto options = options_of(head);
    options.layer = {.outputs = D, .dim = 3};
    return make_head<double>(options, make_cpu_backend<double>(1));
  };
  const auto dense = make("dense", 7), larger = make("dense", 8), windowed = make("windowed", 7);
  auto options = options_of("dense");
  options.layer = {.outputs = 7, .dim = 3};
  const auto single = make_head<float>(options, make_cpu_backend<float>(1));
  save_state(folder / "dense", visit_of(*dense));
  const auto path = (folder / "dense").string();
  const auto load = [&](auto& layer) { return [&] { load_state(folder / "dense", visit_of(layer)); }; };
  expect_throw<FileError>(load(*larger), {path, "'W'", "f64 {7, 3}", "f64 {8, 3} was expected"});
  expect_throw<FileError>(load(*single), {path, "'W'", "f64 {7, 3}", "f32 {7, 3} was expected"});
  expect_throw<FileError>(load(*windowed), {path, "'timeline.starts_as_zero'", "missing"});
  expect_throw<FileError>(
      [&] {
        load_state(folder / "dense", [](StateVisitor& visitor) {
          std::int64_t n = 0;
          visitor.scalar("steps", n);
        });
      },
      {path, "not expected", "'W'", "1 more"});
}

// ── holes ───────────────────────────────────────────────────────────────────────────────────────

std::uint64_t bytes_on_disk(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

std::int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(Safetensors, AHugeLayerThatIsMostlyUntouchedMakesASmallFile) {
  const TemporaryFolder folder;
  constexpr Size D = 8'000'000, d = 128;  // V: 4 GB
  auto options = options_of("windowed");
  options.layer = {.outputs = D, .dim = d};
  const auto make = [&] { return make_head<float>(options, make_cpu_backend<float>(1)); };
  const auto layer = make();
  const SyntheticStream<float> stream(
      {.outputs = D, .dim = d, .batch = 20, .nonzeros = 4, .targets = TargetLaw::uniform});
  for (std::uint64_t t = 0; t < 30; ++t) {
    const auto batch = stream.batch(t);
    layer->step(batch.H, batch.targets(), layer->eta_for(batch.H, batch.targets(), 0.4));
  }
  const auto before = resident_bytes();
  save_state(folder / "state", visit_of(*layer));
  EXPECT_GT(std::filesystem::file_size(folder / "state"), 4'000'000'000U);
  EXPECT_LT(bytes_on_disk(folder / "state"), 40'000'000U);
  const auto resumed = make();
  load_state(folder / "state", visit_of(*resumed));
  EXPECT_LT(resident_bytes() - before, 120'000'000);
  const auto batch = stream.batch(99);
  EXPECT_EQ(layer->step(batch.H, batch.targets(), 1e-3), resumed->step(batch.H, batch.targets(), 1e-3));
  std::vector<Index> rows = batch.indices;
  for (std::uint64_t t = 0; t < 30; ++t) {
    const auto met = stream.batch(t);
    rows.insert(rows.end(), met.indices.begin(), met.indices.end());
  }
  Matrix<float> scores(static_cast<Size>(rows.size()), 20), resumed_scores(static_cast<Size>(rows.size()), 20);
  layer->scores(batch.H, rows, scores);
  resumed->scores(batch.H, rows, resumed_scores);
  EXPECT_TRUE(is_identical<float>(scores, resumed_scores));
}

/// Pages of zeros and of numbers in every order, at an offset that is no multiple of a page.
struct Patchwork {
  std::uint8_t shift = 1;
  Matrix<std::uint8_t> sheet = Matrix<std::uint8_t>(1000, 300);
  Matrix<std::uint8_t> loose = Matrix<std::uint8_t>(1000, 300);
  bool hints = true;

  void fill(std::uint64_t seed) {
    Dice dice(seed);
    for (auto* matrix : {&sheet, &loose}) {
      std::fill_n(matrix->data(), matrix->size(), std::uint8_t{0});
      for (Size at = 0; at < matrix->size();) {
        const Size zeros = dice.between(0, 20000), numbers = dice.between(1, 9000);
        for (Size k = at + zeros; k < std::min(matrix->size(), at + zeros + numbers); ++k) {
          matrix->data()[k] = static_cast<std::uint8_t>(dice.between(0, 9) == 0 ? 5 : 0);
        }
        at += zeros + numbers;
      }
    }
  }
  void visit_state(StateVisitor& visitor) {
    visitor.scalar("shift", shift);
    visitor.block("sheet", sheet.view());
    StateVisitor::NextUsed next_used;
    if (hints) {
      next_used = [this](Size from) {
        const auto is_used = [&](Size j) {
          return std::any_of(&loose(0, j), &loose(0, j) + loose.rows(), [](auto value) { return value != 0; });
        };
        while (from < loose.cols() && !is_used(from)) ++from;
        return from;
      };
    }
    visitor.sparse_block("loose", loose.view(), next_used);
  }
};

TEST(Safetensors, HolesAreZerosWhateverWasThereBefore) {
  const TemporaryFolder folder;
  for (const std::uint64_t seed : seeds(20)) {
    SCOPED_TRACE(seed);
    Patchwork saved, loaded;
    saved.hints = seed % 2 == 0;
    saved.fill(seed);
    save_state(folder / "state", visit_of(saved));
    std::fill_n(loaded.sheet.data(), loaded.sheet.size(), std::uint8_t{9});  // loose is zero, as it must be
    load_state(folder / "state", visit_of(loaded));
    EXPECT_EQ(save(loaded), save(saved));

    write_bytes(folder / "copy", read_bytes(folder / "state"));  // without holes
    Patchwork copied;
    load_state(folder / "copy", visit_of(copied));
    EXPECT_EQ(save(copied), save(saved));
  }
}

// ── files that lie ──────────────────────────────────────────────────────────────────────────────

TEST(Safetensors, EveryLieOfAHeaderIsRefused) {
  const TemporaryFolder folder;
  const auto refuse = [&](const std::string& bytes, std::vector<std::string> words) {
    write_bytes(folder / "lie", bytes);
    words.push_back((folder / "lie").string());
    expect_throw<FileError>([&] { SafetensorsFile file(folder / "lie"); }, words);
  };
  const std::string four(4, 'x');
  const auto header = [](const std::string& tensors) { return "{" + tensors + "}"; };
  const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  write_bytes(folder / "good", file_of(header(a), four));
  EXPECT_NO_THROW(SafetensorsFile(folder / "good"));

  refuse("", {"0 bytes"});
  refuse("1234567", {"7 bytes"});
  refuse(raw<std::uint64_t>({UINT64_MAX}) + "{}", {"18446744073709551615"});
  refuse(raw<std::uint64_t>({3}) + "{}", {"would have 3 bytes", "has 10"});
  refuse(raw<std::uint64_t>({200'000'000}), {"200000000"});
  refuse(file_of("", ""), {"does not begin with {"});
  refuse(file_of(" " + header(a), four), {"does not begin with {"});
  refuse(file_of("[" + header(a) + "]", four), {"does not begin with {"});
  refuse(file_of(header(a) + "x", four), {"not JSON"});
  refuse(file_of("{\"a\xff\":1}", four), {"not JSON"});
  refuse(file_of("{\"a\":" + std::string(100000, '['), ""), {"deep"});
  refuse(file_of(header(a + "," + a), four), {"'a'", "twice"});
  refuse(file_of(header(R"("a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})"), four),
         {"'dtype'", "twice"});
  refuse(file_of(header(R"("a":3)"), four), {"'a'", "dtype, shape"});
  refuse(file_of(header(R"("a":{"dtype":"F32","shape":[1]})"), four), {"'a'", "dtype, shape"});
  refuse(file_of(header(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"b":1})"), four), {"'a'", "no more"});
  refuse(file_of(header(R"("a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]})"), four), {"'a'", "\"F33\""});
  refuse(file_of(header(R"("a":{"dtype":7,"shape":[1],"data_offsets":[0,4]})"), four), {"'a'", "dtype 7"});
  refuse(file_of(header(R"("a":{"dtype":"F32","shape":1,"data_offsets":[0,4]})"), four), {"'a'", "not a list"});
  refuse(file_of(header(R"("a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), four), {"'a'", "-1"});
  refuse(file_of(header(R"("a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})"), four), {"'a'", "1.0"});
  refuse(file_of(header(R"("a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]})"), four), {"'a'", "\"1\""});
  refuse(file_of(header(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]})"), four), {"'a'", "{2}", "4 bytes"});
  refuse(file_of(header(R"("a":{"dtype":"F64","shape":[1],"data_offsets":[0,4]})"), four), {"'a'", "f64", "4 bytes"});
  refuse(file_of(header(R"("a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), ""), {"'a'"});
  refuse(
      file_of(header(R"("a":{"dtype":"U8","shape":[9223372036854775807,2],"data_offsets":[0,18446744073709551614]})"),
              ""),
      {"'a'", "18446744073709551614"});
  refuse(file_of(header(R"("a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]})"),
                 four),
         {"9223372036854775807", "has 4"});
  refuse(file_of(header(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), four), {"'a'", "[4, 0]"});
  refuse(file_of(header(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0]})"), four), {"'a'", "[0]"});
  refuse(file_of(header(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), four + four),
         {"'a'", "begins at 4"});
  const std::string b = R"("b":{"dtype":"F32","shape":[1],"data_offsets":[)";
  refuse(file_of(header(a + "," + b + "0,4]}"), four), {"begins at 0", "ends at 4"});
  refuse(file_of(header(a + "," + b + "2,6]}"), four + "xx"), {"begins at 2", "ends at 4"});
  refuse(file_of(header(a + "," + b + "5,9]}"), four + four + "x"), {"begins at 5", "ends at 4"});
  refuse(file_of(header(a), four + "x"), {"4 bytes", "has 5"});
  refuse(file_of(header(a), "xxx"), {"4 bytes", "has 3"});
  refuse(file_of(header(a + R"(,"__metadata__":1)"), four), {"__metadata__"});
  refuse(file_of(header(a + R"(,"__metadata__":{"k":1})"), four), {"__metadata__", "'k'"});

  expect_throw<FileError>([&] { SafetensorsFile file(folder.path()); }, {"not a regular file"});
  EXPECT_THROW(SafetensorsFile(folder / "nowhere"), std::system_error);
}

TEST(Safetensors, EveryCutIsRefusedAndEveryFlipIsRefusedOrHarmless) {
  const TemporaryFolder folder;
  Record record;
  save_state(folder / "good", visit_of(record), {{"key", "value"}});
  const auto good = read_bytes(folder / "good");
  const auto load = [&](const std::string& bytes) {
    write_bytes(folder / "bad", bytes);
    Record victim;
    load_state(folder / "bad", visit_of(victim));
  };
  EXPECT_NO_THROW(load(good));
  for (std::size_t length = 0; length < good.size(); ++length) EXPECT_THROW(load(good.substr(0, length)), FileError);
  EXPECT_THROW(load(good + '\0'), FileError);
  int refused = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const char flip : {'\x01', '\x10', '\x80', '\xff'}) {
      auto bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      try {
        load(bad);
      } catch (const FileError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, static_cast<int>(good.size()));  // of the header nearly all, of the numbers none
}

TEST(Safetensors, RefusesNamesThatAreNone) {
  const TemporaryFolder folder;
  const auto save_names = [&](const std::string& one, const std::string& other) {
    save_state(folder / "a", [&](StateVisitor& visitor) {
      std::int32_t x = 0;
      visitor.scalar(one, x);
      visitor.scalar(other, x);
    });
  };
  expect_throw<std::invalid_argument>([&] { save_names("x", "x"); }, {"'x'", "twice"});
  expect_throw<std::invalid_argument>([&] { save_names("x", "__metadata__"); }, {"__metadata__"});
  expect_throw<std::invalid_argument>([&] { save_names("x", "\xff"); }, {"UTF-8"});
  expect_throw<std::invalid_argument>([&] { save_state(folder / "a", [](auto&) {}, {{"k", "\xff"}}); }, {"UTF-8"});
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// ── wholly or not at all ────────────────────────────────────────────────────────────────────────

TEST(Safetensors, AFailedSaveLeavesTheOldFileAndNothingElse) {
  const TemporaryFolder folder;
  Record record;
  save_state(folder / "a", visit_of(record));
  const auto old = read_bytes(folder / "a");
  int passes = 0;
  const auto fail = [&](StateVisitor& visitor) {
    record.visit_state(visitor);
    if (++passes == 2) throw std::runtime_error("in the middle");
  };
  expect_throw<std::runtime_error>([&] { save_state(folder / "a", fail); }, {"in the middle"});
  const auto change = [&](StateVisitor& visitor) {
    record.list.push_back(1);
    record.visit_state(visitor);
  };
  expect_throw<std::logic_error>([&] { save_state(folder / "a", change); }, {"'list'", "measured"});
  EXPECT_EQ(read_bytes(folder / "a"), old);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_THROW(save_state(folder / "no/such/folder", visit_of(record)), std::system_error);
}

TEST(Safetensors, AFullDiskIsASystemErrorAndLeavesTheOldFile) {
  const TemporaryFolder folder;
  Record record;
  save_state(folder / "a", visit_of(record));
  const auto old = read_bytes(folder / "a");
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{2000, limit.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  record.list.assign(10000, 1);
  EXPECT_THROW(save_state(folder / "a", visit_of(record)), std::system_error);
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_bytes(folder / "a"), old);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

// ── other readers ───────────────────────────────────────────────────────────────────────────────

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  return pclose(pipe) == 0 ? text : "failed: " + text;
}

TEST(Safetensors, PythonReadsTheSame) {
  const char* wish = std::getenv("WIDEHEAD_TEST_PYTHON");
  const std::string python = wish != nullptr ? wish : "python3";
  if (output_of(python + " -c 'import safetensors.numpy; print(1)' 2>/dev/null") != "1\n") {
    GTEST_SKIP() << python << " has no packages safetensors and numpy";
  }
  const TemporaryFolder folder;
  Record record;
  save_state(folder / "a", visit_of(record), {{"head", "own"}});
  write_bytes(folder / "read.py",
              "import sys\n"
              "from safetensors import safe_open\n"
              "with safe_open(sys.argv[1], 'np') as f:\n"
              "  print(f.metadata())\n"
              "  for name in sorted(f.keys()):\n"
              "    a = f.get_tensor(name)\n"
              "    print(name, a.dtype, a.shape, a.tolist())\n");
  EXPECT_EQ(output_of(fmt::format("{} {} {}", python, (folder / "read.py").string(), (folder / "a").string())),
            "{'head': 'own'}\n"
            "byte uint8 () 200\n"
            "in.block int32 (2, 1) [[-7], [1073741824]]\n"
            "in.natural uint64 () 18446744073709551615\n"
            "in.none int64 (0,) []\n"
            "in.table float64 (3, 2) [[0.0, 0.25], [0.5, 0.75], [1.0, 1.25]]\n"
            "list float32 (2,) [1.5, -2.0]\n");
}

TEST(TensorWriter, WritesTheFileThatSavingTheWholeArrayWould) {
  const TemporaryFolder folder;
  auto A = Dice(3).matrix<float>(5, 7);
  save_state(folder.path() / "whole", [&](StateVisitor& visitor) { visitor.block("A", A.view()); }, {{"key", "text"}});
  TensorWriter writer((folder.path() / "blocks").string(), "A", 7, 5, {{"key", "text"}});
  writer.write(A.view().columns(0, 3));
  EXPECT_THROW(writer.finish(), std::invalid_argument);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "blocks"));
  writer.write(A.view().columns(3, 4));
  writer.finish();
  EXPECT_EQ(read_bytes(folder.path() / "blocks"), read_bytes(folder.path() / "whole"));
}

}  // namespace
}  // namespace widehead::test
