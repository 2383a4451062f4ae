#pragma once
/// manifest.json of a model folder (model_folder.h).

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace widehead {

/// A file of a generation.
struct FolderFile {
  enum class Kind {
    written,      ///< the name carries its generation
    fixed,        ///< a plain name, never written again
    append_only,  ///< a plain name; the first `bytes` belong to the generation
  };
  std::string role;
  std::string name;
  Kind kind = Kind::written;
  std::uint64_t bytes = 0;
  std::string checksum;
};

struct Manifest {
  std::int64_t generation = 0;
  std::vector<FolderFile> files;
  std::string info = "{}";

  const FolderFile* find(const std::string& role) const;
  bool has_name(const std::string& name) const;
};

constexpr const char* manifest_name = "manifest.json";
constexpr const char* lock_name = "lock";

/// What may stand for a file in a manifest: no folders, no hidden files, none of the folder's own names.
bool is_plain_name(const std::string& name);
/// "state.safetensors", 12 → "state-000012.safetensors".
std::string name_in_generation(const std::string& role, std::int64_t generation);
/// Whether a name is one that name_in_generation makes, or a temporary's.
bool is_own_name(const std::string& name);

/// @throws FileError for anything that is not a manifest; std::system_error
std::string read_manifest_text(const std::filesystem::path& path);
Manifest parse_manifest(const std::string& text, const std::filesystem::path& path);
/// @throws std::invalid_argument unless info is a JSON object
std::string manifest_text(const Manifest& manifest);

}  // namespace widehead
