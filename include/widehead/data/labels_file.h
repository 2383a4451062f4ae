#pragma once
/// Examples with many labels, in the text format of the Extreme Classification Repository:
///
///   N F L                      examples, features, labels
///   l1,l2,… f1:v1 f2:v2 …      an example: its labels, then its features, all numbered from 0
///
/// Labels may be absent (the line then begins with a blank or with the first feature), and so may
/// features. Nothing that the header says is believed before the lines have shown it.

#include <string>

#include "widehead/data/line_reader.h"
#include "widehead/data/sparse_dataset.h"

namespace widehead {

/// Targets have the value 1. Rows come out in ascending order of indices.
/// @throws FileError naming path and line: numbers out of range or none, a label or feature twice in a line, more or
///         fewer lines than N; std::system_error
SparseDataset read_labels(const std::string& path);
SparseDataset read_labels(LineReader& lines);

}  // namespace widehead
