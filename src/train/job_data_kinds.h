#pragma once
/// The data of each job, by the reader that makes it.

#include "widehead/train/job_data.h"

namespace widehead {

template <class T>
std::unique_ptr<JobData<T>> load_lm_data(const TrainOptions& options, const std::string& names_path,
                                         const std::string& tokens_path, const ReadProgress& progress);
template <class T>
std::unique_ptr<JobData<T>> load_labels_data(const TrainOptions& options);
template <class T>
std::unique_ptr<JobData<T>> load_items_data(const TrainOptions& options);

}  // namespace widehead
