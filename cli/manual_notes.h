#pragma once
/// What the manual says beyond what the parser knows: explanations, and output of real runs.

#include <string_view>

namespace widehead::cli {

/// Markdown for a command by its full name ("widehead train lm"; "widehead" for what concerns all); may be empty.
std::string_view manual_notes(std::string_view command);

}  // namespace widehead::cli
