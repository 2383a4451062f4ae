#include "manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "file.h"
#include "widehead/errors.h"
#include "widehead/version.h"

namespace widehead {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t format = 1;
constexpr std::uint64_t largest_manifest = 64 << 20;
constexpr int deepest = 64;
constexpr std::size_t checksum_digits = 32;
constexpr std::array<std::string_view, 3> kind_names = {"written", "fixed", "append_only"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

Json parse(const std::string& text) {
  return Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
    if (depth > deepest) throw FileError("is nested too deeply");
    return true;
  });
}

const Json& member(const Json& json, const char* key) {
  if (!json.is_object() || !json.contains(key)) throw FileError(fmt::format("has no \"{}\"", key));
  return json[key];
}

std::string text_of(const Json& json, const char* key) {
  const Json& value = member(json, key);
  if (!value.is_string()) throw FileError(fmt::format("\"{}\" is {}, not a text", key, value.dump()));
  return value.get<std::string>();
}

std::int64_t natural_of(const Json& json, const char* key) {
  const Json& value = member(json, key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX) {
    throw FileError(fmt::format("\"{}\" is {}, not a natural number", key, value.dump()));
  }
  return value.get<std::int64_t>();
}

FolderFile parse_file(const Json& json) {
  FolderFile file;
  file.role = text_of(json, "role");
  file.name = text_of(json, "name");
  file.bytes = static_cast<std::uint64_t>(natural_of(json, "bytes"));
  file.checksum = text_of(json, "xxh3_128");
  const auto kind = text_of(json, "kind");
  const auto* const found = std::find(kind_names.begin(), kind_names.end(), kind);
  if (found == kind_names.end()) throw FileError(fmt::format(R"("kind" is "{}")", kind));
  file.kind = static_cast<FolderFile::Kind>(found - kind_names.begin());
  if (!is_plain_name(file.role) || !is_plain_name(file.name)) {
    throw FileError(fmt::format("\"{}\" is not a name of a file in the folder", file.name));
  }
  const bool is_hex = file.checksum.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (file.checksum.size() != checksum_digits || !is_hex) {
    throw FileError(fmt::format(R"("xxh3_128" of {} is "{}")", file.name, file.checksum));
  }
  return file;
}

}  // namespace

const FolderFile* Manifest::find(const std::string& role) const {
  const auto found = std::find_if(files.begin(), files.end(), [&](const auto& file) { return file.role == role; });
  return found == files.end() ? nullptr : &*found;
}

bool Manifest::has_name(const std::string& name) const {
  return std::any_of(files.begin(), files.end(), [&](const auto& file) { return file.name == name; });
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() < 200 && name.front() != '.' && name != manifest_name && name != lock_name &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos && !name.ends_with(".tmp");
}

std::string name_in_generation(const std::string& role, std::int64_t generation) {
  const auto dot = std::min(role.rfind('.'), role.size());
  return fmt::format("{}-{:06}{}", role.substr(0, dot), generation, role.substr(dot));
}

bool is_own_name(const std::string& name) {
  if (name.ends_with(".tmp")) return true;
  const std::string stem = name.substr(0, name.rfind('.'));
  const auto dash = stem.rfind('-');
  return dash != std::string::npos && dash > 0 && stem.size() - dash > 6 &&
         std::all_of(stem.begin() + static_cast<std::ptrdiff_t>(dash) + 1, stem.end(), is_digit);
}

std::string read_manifest_text(const std::filesystem::path& path) {
  const File file = File::open(path);
  if (file.size() > largest_manifest) {
    throw FileError(fmt::format("{}: has {} bytes, too many for a manifest", path.string(), file.size()));
  }
  std::string text(file.size(), '\0');
  file.read(0, text);
  return text;
}

Manifest parse_manifest(const std::string& text, const std::filesystem::path& path) {
  try {
    const Json json = parse(text);
    if (const auto found = natural_of(json, "format"); found != format) {
      if (found < format) throw FileError(fmt::format("has format {}, but this widehead reads {}", found, format));
      throw FileError(fmt::format("model {} was written by a newer widehead (format {}); this one reads up to {}",
                                  path.parent_path().string(), found, format));
    }
    Manifest manifest;
    manifest.generation = natural_of(json, "generation");
    if (manifest.generation < 1 || manifest.generation > (std::int64_t{1} << 53)) {
      throw FileError(fmt::format("\"generation\" is {}", manifest.generation));
    }
    const Json& files = member(json, "files");
    if (!files.is_array()) throw FileError("\"files\" is not a list");
    for (const auto& entry : files) {
      auto file = parse_file(entry);
      if (manifest.find(file.role) != nullptr || manifest.has_name(file.name)) {
        throw FileError(fmt::format("file \"{}\" is there twice", file.name));
      }
      manifest.files.push_back(std::move(file));
    }
    const Json& info = member(json, "info");
    if (!info.is_object()) throw FileError("\"info\" is not an object");
    manifest.info = info.dump();
    return manifest;
  } catch (const Json::exception& error) {
    throw FileError(fmt::format("{}: is not JSON: {}", path.string(), error.what()));
  } catch (const FileError& error) {
    throw FileError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

std::string manifest_text(const Manifest& manifest) {
  try {
    Json files = Json::array();
    for (const auto& file : manifest.files) {
      files.push_back({{"role", file.role},
                       {"name", file.name},
                       {"kind", kind_names[static_cast<std::size_t>(file.kind)]},
                       {"bytes", file.bytes},
                       {"xxh3_128", file.checksum}});
    }
    const Json info = parse(manifest.info);
    if (!info.is_object()) throw FileError("is not an object");
    const Json json{{"format", format},
                    {"widehead", WIDEHEAD_VERSION},
                    {"generation", manifest.generation},
                    {"files", files},
                    {"info", info}};
    return json.dump(2) + "\n";
  } catch (const std::exception& error) {
    throw std::invalid_argument(fmt::format("model folder: info must be a JSON object: {}", error.what()));
  }
}

}  // namespace widehead
