/// widehead generate text: a made-up language, for demonstrations and measurements without any data.

#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "model_argument.h"
#include "widehead/data/synthetic_text.h"

namespace widehead::cli {
namespace {

struct GenerateSettings {
  SyntheticTextOptions text;
  std::string out, pairs;
};

int run(const GenerateSettings& settings) {
  write_synthetic_text(settings.out, settings.text);
  if (!settings.pairs.empty()) write_synthetic_pairs(settings.pairs, settings.text);
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto* generate = app.add_subcommand("generate", "data of known structure, for trying things out");
  generate->require_subcommand(1);
  auto* command = generate->add_subcommand("text", "text in a made-up language, and which of its words are similar");
  auto settings = std::make_shared<GenerateSettings>();
  auto& text = settings->text;
  command->add_option("--out", settings->out, "text to write, a sentence a line")->required()->type_name(file_type);
  command->add_option("--pairs", settings->pairs, "word pairs to write, for eval --similarity")->type_name(file_type);
  const auto add = [&](const char* flag, auto& value, const char* help) {
    command->add_option(flag, value, help)->type_name("N")->capture_default_str();
  };
  add("--words", text.words, "different words, about; 1000 or more");
  add("--tokens", text.tokens, "words of text, to the end of a sentence");
  add("--pairs-count", text.pairs, "pairs, a third of each degree of similarity");
  add("--seed", text.seed, "the same seed gives the same files");
  command->footer(
      "Example:\n"
      "  widehead generate text --out text.txt --pairs pairs.txt --words 20000 --tokens 2000000\n"
      "  widehead train lm --corpus text.txt --tokens whitespace --out model\n"
      "  widehead eval model --similarity pairs.txt");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace widehead::cli
