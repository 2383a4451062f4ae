#pragma once
/// The `widehead` program as a process: started, killed, waited for.

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace widehead::test {

struct Ended {
  int code = -1;  ///< exit code, or −signal
  std::string out, err;
};

/// A running program; its output goes to files in `folder`.
class Process {
 public:
  static constexpr std::uint64_t no_limit = RLIM_INFINITY;

  /// @param largest_file  bytes beyond which the system lets it write no file, as if the disk were full
  Process(const std::vector<std::string>& arguments, const std::string& folder, std::uint64_t largest_file = no_limit)
      : out_(folder + "/stdout"), err_(folder + "/stderr") {
    process_ = fork();
    if (process_ < 0) throw std::runtime_error("fork failed");
    if (process_ > 0) return;
    setenv("OMP_WAIT_POLICY", "passive", 1);
    redirect(out_, STDOUT_FILENO);
    redirect(err_, STDERR_FILENO);
    if (largest_file != no_limit) {
      ::signal(SIGXFSZ, SIG_IGN);  // an error, not the end
      const rlimit limit{largest_file, RLIM_INFINITY};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    std::vector<char*> argv = {const_cast<char*>(WIDEHEAD_PROGRAM)};
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(argv.front(), argv.data());
    _exit(127);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

  pid_t id() const { return process_; }
  void signal(int number) const {
    if (process_ > 0) kill(process_, number);  // 0 would be ourselves
  }
  bool has_ended() {
    if (process_ > 0 && waitpid(process_, &status_, WNOHANG) == process_) process_ = 0;
    return process_ == 0;
  }
  Ended wait() {
    if (process_ > 0) waitpid(process_, &status_, 0);
    process_ = 0;
    return {WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_), content(out_), content(err_)};
  }

 private:
  static void redirect(const std::string& path, int descriptor) {
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(file, descriptor);
    close(file);
  }
  static std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string out_, err_;
  pid_t process_ = -1;
  int status_ = 0;
};

inline Ended run_process(const std::vector<std::string>& arguments, const std::string& folder) {
  return Process(arguments, folder).wait();
}

}  // namespace widehead::test
