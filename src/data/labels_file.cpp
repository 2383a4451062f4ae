#include "widehead/data/labels_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "text.h"

namespace widehead {

class LabelsParser {
 public:
  explicit LabelsParser(LineReader& lines) : lines_(lines) {}

  SparseDataset parse() {
    parse_header();
    while (const auto line = lines_.next()) {
      if (data_.targets.rows() == data_.examples) {
        if (std::all_of(line->begin(), line->end(), is_blank)) continue;
        lines_.fail(fmt::format("more examples than the {} of the header", data_.examples));
      }
      parse_example(*line);
    }
    if (data_.targets.rows() != data_.examples) {
      lines_.fail(fmt::format("the file ends after {} examples, but the header tells of {}", data_.targets.rows(),
                              data_.examples));
    }
    return std::move(data_);
  }

  void expect(Size features, Size labels) {
    data_.inputs = features;
    data_.outputs = labels;
  }

  SparseRows parse_features(Size count) {
    data_.features = {};
    data_.targets = {};
    while (data_.features.rows() < count) {
      const auto line = lines_.next();
      if (!line) break;
      if (lines_.line() == 1 && is_header(*line)) {
        check_header(*line);
      } else {
        parse_example(*line);
      }
    }
    return std::move(data_.features);
  }

 private:
  /// Examples have one field without a colon at most.
  static bool is_header(std::string_view line) {
    return line.find(':') == std::string_view::npos && fields_of(line).size() == 3;
  }

  void check_header(std::string_view line) {
    const Size features = data_.inputs, labels = data_.outputs;
    parse_header(line);
    if (data_.inputs != features || data_.outputs != labels) {
      lines_.fail(
          fmt::format("{} features and {} labels, expected {} and {}", data_.inputs, data_.outputs, features, labels));
    }
  }

  void parse_header() {
    const auto line = lines_.next();
    if (!line) lines_.fail("the file is empty, expected a header: examples features labels");
    parse_header(*line);
  }

  void parse_header(std::string_view rest) {
    constexpr Size most = std::numeric_limits<Index>::max();
    const std::array<std::pair<const char*, Size*>, 3> numbers = {
        {{"examples", &data_.examples}, {"features", &data_.inputs}, {"labels", &data_.outputs}}};
    for (const auto& [name, number] : numbers) {
      const auto field = take_field(rest);
      const auto value = parse_integer<Size>(field);
      if (!value || *value < 1 || *value > most) {
        lines_.fail(fmt::format("the header's number of {} is {}, expected 1 … {}", name, quoted(field), most));
      }
      *number = *value;
    }
    if (const auto field = take_field(rest); !field.empty()) {
      lines_.fail(fmt::format("{} in the header, expected no more than: examples features labels", quoted(field)));
    }
  }

  void parse_example(std::string_view line) {
    auto rest = line;
    entries_.clear();
    if (!line.empty() && !is_blank(line.front())) {
      const auto field = take_field(rest);
      if (field.find(':') == std::string_view::npos) {
        parse_labels(field);
      } else {
        rest = line;
      }
    }
    finish_row("label", data_.targets);
    entries_.clear();
    for (auto field = take_field(rest); !field.empty(); field = take_field(rest)) parse_feature(field);
    finish_row("feature", data_.features);
  }

  void parse_labels(std::string_view field) {
    while (true) {
      const auto comma = field.find(',');
      entries_.emplace_back(parse_index("label", field.substr(0, comma), data_.outputs), 1.0F);
      if (comma == std::string_view::npos) break;
      field.remove_prefix(comma + 1);
    }
  }

  void parse_feature(std::string_view field) {
    const auto colon = field.find(':');
    if (colon == std::string_view::npos) {
      lines_.fail(fmt::format("found {}, expected feature:value", quoted(field)));
    }
    const auto feature = parse_index("feature", field.substr(0, colon), data_.inputs);
    const auto value = parse_real(field.substr(colon + 1));
    if (!value) lines_.fail(fmt::format("the value of {} is not a finite number", quoted(field)));
    entries_.emplace_back(feature, *value);
  }

  Index parse_index(const char* name, std::string_view text, Size limit) {
    const auto index = parse_integer<Size>(text);
    if (!index || *index < 0 || *index >= limit) {
      lines_.fail(fmt::format("the {} {} is not in 0 … {}", name, quoted(text), limit - 1));
    }
    return static_cast<Index>(*index);
  }

  /// entries_, sorted, become the next row.
  void finish_row(const char* name, SparseRows& rows) {
    const auto by_index = [](const auto& a, const auto& b) { return a.first < b.first; };
    if (!std::is_sorted(entries_.begin(), entries_.end(), by_index)) {
      std::sort(entries_.begin(), entries_.end(), by_index);
    }
    for (std::size_t e = 0; e < entries_.size(); ++e) {
      if (e > 0 && entries_[e].first == entries_[e - 1].first) {
        lines_.fail(fmt::format("the {} {} is there twice", name, entries_[e].first));
      }
      rows.indices.push_back(entries_[e].first);
      rows.values.push_back(entries_[e].second);
    }
    rows.end_row();
  }

  LineReader& lines_;
  SparseDataset data_;
  std::vector<std::pair<Index, float>> entries_;  // of the current row
};

SparseDataset read_labels(const std::string& path) {
  LineReader lines(path);
  return read_labels(lines);
}

SparseDataset read_labels(LineReader& lines) { return LabelsParser(lines).parse(); }

ExampleReader::ExampleReader(LineReader& lines, Size features, Size labels)
    : parser_(std::make_unique<LabelsParser>(lines)) {
  parser_->expect(features, labels);
}

ExampleReader::~ExampleReader() = default;

SparseRows ExampleReader::read(Size count) { return parser_->parse_features(count); }

}  // namespace widehead
