#pragma once
/// How good a trained model is on files it has not seen: the measures of evaluate.h, from the files that training
/// reads. `limit` is how many examples at most; 0 for all.

#include <string>

#include "widehead/train/evaluate.h"
#include "widehead/train/model.h"

namespace widehead {

/// A language model on text. @throws FileError, also where the text has no word that counts; std::system_error
template <class T>
Figures evaluate_on_text(const Model<T>& model, const std::string& path, std::int64_t limit = 0);

/// Labels; propensities come from the training data. @throws FileError, also for other features or labels
template <class T>
Figures evaluate_on_labels(const Model<T>& model, const std::string& path, std::int64_t limit = 0);

struct ItemFiles {
  std::string train;    ///< what users have: the inputs; never recommended
  std::string test;     ///< what is to be found
  std::string exclude;  ///< further pairs not to be recommended, or empty: those used for validation
};

/// Recommendations for users of files.train, whether or not the model was trained on them. Items that the model does
/// not know are left out. @throws FileError, also where no pair is left to be found
template <class T>
Figures evaluate_on_items(const Model<T>& model, const ItemFiles& files, std::int64_t limit = 0);

}  // namespace widehead
