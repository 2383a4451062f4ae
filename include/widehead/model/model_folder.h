#pragma once
/// A model on disk: a folder, changed a transaction at a time. What it holds is said by manifest.json alone:
///   {"format": 1, "widehead": "0.1.0", "generation": 12,
///    "files": [{"role": "state.safetensors", "name": "state-000012.safetensors", "bytes": …, "xxh3_128": "…"}, …],
///    "info": {…}}
/// Files carry in their names the generation that wrote them, so that a new one never overwrites the one in force.
/// To commit, all files are brought to the disk, then a new manifest takes the name of the old: whatever happens,
/// and whenever, either generation is there and whole. What a broken change leaves behind, the next one removes:
/// names that end in six digits or more, as in state-000012.safetensors, or in .tmp, are the folder's own.
///
///   auto folder = ModelFolder::create("model");
///   auto change = folder.begin();
///   save_state(change.file("state.safetensors"), …);
///   change.commit(R"({"step": 1000})");

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace widehead {

class FolderChange;

class ModelFolder {
 public:
  enum class Access {
    read,   ///< any number of processes, also while another writes
    write,  ///< one at a time, in one process: DIR/lock is held as long as the folder is open
  };
  enum class Verify { checksums, sizes };  ///< what is compared with the manifest; checksums read every byte

  /// A folder without a model in it; made where there is none. Holds no model until the first commit.
  /// @throws std::invalid_argument where there is a model, std::system_error where another process holds the lock
  static ModelFolder create(const std::filesystem::path& path);
  /// A model. With Access::write its append-only files are cut back to the lengths that the manifest has.
  /// @throws FileError where something is missing, damaged or too new; std::system_error
  static ModelFolder open(const std::filesystem::path& path, Access access = Access::read,
                          Verify verify = Verify::checksums);
  static bool exists(const std::filesystem::path& path);  ///< whether there is a model in the folder

  const std::filesystem::path& path() const;
  std::int64_t generation() const;  ///< 0 before the first commit
  const std::string& info() const;  ///< the JSON object given to the commit
  bool has(const std::string& role) const;
  /// @throws std::invalid_argument for a file that the generation in force does not have
  std::filesystem::path path_of(const std::string& role) const;

  /// Where to append to a file that only grows, such as a log: DIR/role, empty at first. What is appended counts from
  /// the next commit that names it.
  std::filesystem::path append_only(const std::string& role);

  /// Begins the next generation. @throws std::logic_error while another change is open
  FolderChange begin();

 private:
  struct State;
  friend class FolderChange;
  explicit ModelFolder(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

/// The next generation of a folder. What it does not name, the next generation does not have; without commit,
/// nothing has happened.
class FolderChange {
 public:
  FolderChange(FolderChange&&) noexcept;
  FolderChange& operator=(FolderChange&&) = delete;
  FolderChange(const FolderChange&) = delete;
  FolderChange& operator=(const FolderChange&) = delete;
  ~FolderChange();

  /// Where to write a file of the new generation: "state.safetensors" becomes DIR/state-000012.safetensors.
  std::filesystem::path file(const std::string& role);
  /// The same under its plain name, DIR/vocabulary.txt, for a file that will never change: kept, not written again.
  /// @throws std::invalid_argument where the generation in force has one
  std::filesystem::path fixed_file(const std::string& role);
  /// Takes a file of the generation in force over as it is.
  void keep(const std::string& role);
  /// Takes what has been appended to the file so far.
  void append_only(const std::string& role);

  /// Puts the new generation in force. @param info  a JSON object
  /// @throws std::invalid_argument where a file was not written, std::system_error; then nothing has happened
  ///         (unless it is the folder that could not be brought to the disk: then generation() tells)
  void commit(const std::string& info = "{}");

 private:
  friend class ModelFolder;
  struct Pending;
  FolderChange(std::shared_ptr<ModelFolder::State> folder, std::unique_ptr<Pending> pending);
  void claim(const std::string& role);

  std::shared_ptr<ModelFolder::State> folder_;
  std::unique_ptr<Pending> pending_;
};

}  // namespace widehead
