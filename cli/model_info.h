#pragma once
/// What is known about a model without reading all of it.

#include <string>

namespace widehead::cli {

/// Prints it, in words or as one JSON object; returns the exit code.
/// @throws FileError for what is no model
int print_model_info(const std::string& path, bool json);

}  // namespace widehead::cli
