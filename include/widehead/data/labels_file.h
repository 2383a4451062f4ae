#pragma once
/// Examples with many labels, in the text format of the Extreme Classification Repository:
///
///   N F L                      examples, features, labels
///   l1,l2,… f1:v1 f2:v2 …      an example: its labels, then its features, all numbered from 0
///
/// Labels may be absent (the line then begins with a blank or with the first feature), and so may
/// features. Nothing that the header says is believed before the lines have shown it.

#include <memory>
#include <string>

#include "widehead/data/line_reader.h"
#include "widehead/data/sparse_dataset.h"

namespace widehead {

/// Targets have the value 1. Rows come out in ascending order of indices.
/// @throws FileError naming path and line: numbers out of range or none, a label or feature twice in a line, more or
///         fewer lines than N; std::system_error
SparseDataset read_labels(const std::string& path);
SparseDataset read_labels(LineReader& lines);

/// The features of examples, some at a time and in fixed memory, for somebody who wants labels for them. Labels that
/// are there are checked and passed over. The header may be absent; if there is one, F and L must be those given, and
/// the number of examples is not looked at.
class ExampleReader {
 public:
  /// `lines` must outlive it.
  ExampleReader(LineReader& lines, Size features, Size labels);
  ~ExampleReader();
  ExampleReader(const ExampleReader&) = delete;
  ExampleReader& operator=(const ExampleReader&) = delete;

  /// The next examples, at most `count`; none at the end. @throws FileError as read_labels
  SparseRows read(Size count);

 private:
  std::unique_ptr<class LabelsParser> parser_;
};

}  // namespace widehead
