#include "widehead/train/job_data.h"

#include "job_data_kinds.h"

namespace widehead {

template <class T>
std::unique_ptr<JobData<T>> load_job_data(Job job, const TrainOptions& options, const std::string& names_path,
                                          const std::string& tokens_path, const ReadProgress& progress) {
  switch (job) {
    case Job::labels: return load_labels_data<T>(options);
    case Job::items: return load_items_data<T>(options);
    case Job::lm: break;
  }
  return load_lm_data<T>(options, names_path, tokens_path, progress);
}

template std::unique_ptr<JobData<float>> load_job_data(Job, const TrainOptions&, const std::string&, const std::string&,
                                                       const ReadProgress&);
template std::unique_ptr<JobData<double>> load_job_data(Job, const TrainOptions&, const std::string&,
                                                        const std::string&, const ReadProgress&);

}  // namespace widehead
