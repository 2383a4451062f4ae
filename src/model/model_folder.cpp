#include "widehead/model/model_folder.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "file.h"
#include "manifest.h"
#include "widehead/errors.h"

namespace widehead {
namespace {

namespace fs = std::filesystem;

/// Holds DIR/lock as long as it lives. The file stays when the lock goes: who removes it could remove another's.
class Lock {
 public:
  explicit Lock(const fs::path& folder) : file_(File::open_or_create(folder / lock_name)) {
    while (flock(file_.descriptor(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) throw_system_error(file_.path(), "cannot lock");
      std::string owner(20, '\0');
      owner.resize(
          static_cast<std::size_t>(std::max<ssize_t>(0, pread(file_.descriptor(), owner.data(), owner.size(), 0))));
      throw std::system_error(
          EBUSY, std::generic_category(),
          fmt::format("model {} is being written to by process {}", folder.string(), owner.empty() ? "?" : owner));
    }
    file_.resize(0);
    file_.write(0, std::to_string(getpid()));
  }

 private:
  File file_;
};

void check_files(const fs::path& folder, const Manifest& manifest, ModelFolder::Verify verify) {
  for (const auto& file : manifest.files) {
    const auto path = folder / file.name;
    if (!fs::exists(path)) throw FileError(fmt::format("{}: is missing, but the manifest names it", path.string()));
    const File found = File::open(path);
    const bool may_be_longer = file.kind == FolderFile::Kind::append_only;
    if (const auto bytes = found.size(); may_be_longer ? bytes < file.bytes : bytes != file.bytes) {
      throw FileError(fmt::format("{}: has {} bytes, but the manifest says {}", path.string(), bytes, file.bytes));
    }
    if (verify != ModelFolder::Verify::checksums) continue;
    if (const auto checksum = found.checksum(file.bytes); checksum != file.checksum) {
      throw FileError(fmt::format("{}: is damaged: its checksum is {}, but the manifest says {}", path.string(),
                                  checksum, file.checksum));
    }
  }
}

}  // namespace

struct ModelFolder::State {
  fs::path path;
  Manifest manifest;
  std::optional<Lock> lock = {};
  std::set<std::string> logs = {};  // append-only files handed out and in no manifest yet
  bool is_changing = false;

  /// Removes the folder's own files that the manifest does not name. One that cannot be removed now is there to
  /// be removed by the next change.
  void remove_leftovers() const {
    std::error_code ignored;
    std::vector<fs::path> leftovers;
    for (fs::directory_iterator entry(path, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
      const auto name = entry->path().filename().string();
      if (is_own_name(name) && !manifest.has_name(name)) leftovers.push_back(entry->path());
    }
    for (const auto& leftover : leftovers) ::unlink(leftover.c_str());
  }
};

// ── the folder ──────────────────────────────────────────────────────────────────────────────────

bool ModelFolder::exists(const fs::path& path) { return fs::exists(path / manifest_name); }

ModelFolder ModelFolder::create(const fs::path& path) {
  fs::create_directories(path);
  auto state = std::make_shared<State>();
  state->path = path;
  state->lock.emplace(path);
  if (exists(path)) throw std::invalid_argument(fmt::format("model {} exists already", path.string()));
  return ModelFolder(std::move(state));
}

ModelFolder ModelFolder::open(const fs::path& path, Access access, Verify verify) {
  const auto manifest_path = path / manifest_name;
  if (!exists(path)) throw FileError(fmt::format("{}: there is no model (no {})", path.string(), manifest_name));
  auto state = std::make_shared<State>();
  state->path = path;
  if (access == Access::write) state->lock.emplace(path);
  for (;;) {
    const auto text = read_manifest_text(manifest_path);
    state->manifest = parse_manifest(text, manifest_path);
    try {
      check_files(path, state->manifest, verify);
      break;
    } catch (const std::runtime_error&) {  // unless a commit has come between
      if (read_manifest_text(manifest_path) == text) throw;
    }
  }
  if (access == Access::write) {
    for (const auto& file : state->manifest.files) {
      if (file.kind == FolderFile::Kind::append_only) fs::resize_file(path / file.name, file.bytes);
    }
  }
  return ModelFolder(std::move(state));
}

const fs::path& ModelFolder::path() const { return state_->path; }
std::int64_t ModelFolder::generation() const { return state_->manifest.generation; }
const std::string& ModelFolder::info() const { return state_->manifest.info; }
bool ModelFolder::has(const std::string& role) const { return state_->manifest.find(role) != nullptr; }

fs::path ModelFolder::path_of(const std::string& role) const {
  const auto* const file = state_->manifest.find(role);
  if (file == nullptr) {
    throw std::invalid_argument(fmt::format("model {} has no file '{}'", state_->path.string(), role));
  }
  return state_->path / file->name;
}

fs::path ModelFolder::append_only(const std::string& role) {
  if (!state_->lock) throw std::logic_error(fmt::format("model {} is open for reading", state_->path.string()));
  if (!is_plain_name(role) || is_own_name(role)) {
    throw std::invalid_argument(fmt::format("model folder: '{}' is not a name for a file", role));
  }
  if (!has(role) && state_->logs.insert(role).second) File::create(state_->path / role);
  return state_->path / role;
}

FolderChange ModelFolder::begin() {
  if (!state_->lock) throw std::logic_error(fmt::format("model {} is open for reading", state_->path.string()));
  if (state_->is_changing) throw std::logic_error(fmt::format("model {} is being changed", state_->path.string()));
  state_->remove_leftovers();
  state_->is_changing = true;
  return {state_, std::make_unique<FolderChange::Pending>()};
}

// ── a change ────────────────────────────────────────────────────────────────────────────────────

struct FolderChange::Pending {
  struct Item {
    FolderFile file;
    bool is_kept = false;
  };
  std::vector<Item> items;
};

FolderChange::FolderChange(std::shared_ptr<ModelFolder::State> folder, std::unique_ptr<Pending> pending)
    : folder_(std::move(folder)), pending_(std::move(pending)) {}

FolderChange::FolderChange(FolderChange&&) noexcept = default;

FolderChange::~FolderChange() {
  if (pending_ == nullptr) return;  // committed, or moved from
  folder_->is_changing = false;
  for (const auto& [file, is_kept] : pending_->items) {
    if (!is_kept && file.kind == FolderFile::Kind::fixed) ::unlink((folder_->path / file.name).c_str());
  }
  folder_->remove_leftovers();
}

/// Each role once, in a change that is open.
void FolderChange::claim(const std::string& role) {
  if (pending_ == nullptr) throw std::logic_error("model folder: the change is over");
  if (!is_plain_name(role) || is_own_name(role)) {
    throw std::invalid_argument(fmt::format("model folder: '{}' is not a name for a file", role));
  }
  const auto& items = pending_->items;
  if (std::any_of(items.begin(), items.end(), [&](const auto& item) { return item.file.role == role; })) {
    throw std::invalid_argument(fmt::format("model folder: '{}' is named twice in one change", role));
  }
}

fs::path FolderChange::file(const std::string& role) {
  claim(role);
  const auto name = name_in_generation(role, folder_->manifest.generation + 1);
  pending_->items.push_back({{role, name, FolderFile::Kind::written, 0, {}}});
  return folder_->path / name;
}

fs::path FolderChange::fixed_file(const std::string& role) {
  claim(role);
  if (folder_->manifest.has_name(role)) {
    throw std::invalid_argument(fmt::format("model folder: '{}' is there already, to be kept", role));
  }
  pending_->items.push_back({{role, role, FolderFile::Kind::fixed, 0, {}}});
  return folder_->path / role;
}

void FolderChange::keep(const std::string& role) {
  claim(role);
  const auto* const file = folder_->manifest.find(role);
  if (file == nullptr) throw std::invalid_argument(fmt::format("model folder: there is no '{}' to keep", role));
  pending_->items.push_back({*file, true});
}

void FolderChange::append_only(const std::string& role) {
  claim(role);
  const auto* const file = folder_->manifest.find(role);
  if (file != nullptr ? file->kind != FolderFile::Kind::append_only : !folder_->logs.contains(role)) {
    throw std::invalid_argument(fmt::format("model folder: '{}' is not an append-only file of it", role));
  }
  pending_->items.push_back({{role, role, FolderFile::Kind::append_only, 0, {}}});
}

void FolderChange::commit(const std::string& info) {
  if (pending_ == nullptr) throw std::logic_error("model folder: the change is over");
  const auto& path = folder_->path;
  Manifest next{folder_->manifest.generation + 1, {}, info};
  manifest_text(next);  // refuses a bad info before the work
  for (auto& [file, is_kept] : pending_->items) {
    if (!is_kept) {
      if (!fs::exists(path / file.name)) {
        throw std::invalid_argument(fmt::format("model folder: {} was not written", (path / file.name).string()));
      }
      auto written = File::open(path / file.name);
      written.sync();
      file.bytes = written.size();
      file.checksum = written.checksum(file.bytes);
    }
    next.files.push_back(file);
  }
  sync_folder(path);

  const auto temporary = path / fmt::format("{}.tmp", manifest_name);
  {
    auto file = File::create(temporary);
    file.write(0, manifest_text(next));
    file.sync();
  }
  if (std::rename(temporary.c_str(), (path / manifest_name).c_str()) != 0) {
    throw_system_error(path / manifest_name, "cannot put the new generation in force");
  }

  // From here on it is in force: nothing of it may be removed, whatever else fails.
  const auto before = std::exchange(folder_->manifest, std::move(next));
  pending_.reset();
  folder_->is_changing = false;
  sync_folder(path);
  for (const auto& file : before.files) {
    if (!folder_->manifest.has_name(file.name)) ::unlink((path / file.name).c_str());
  }
  folder_->remove_leftovers();
}

}  // namespace widehead
