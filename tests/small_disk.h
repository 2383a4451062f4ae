#pragma once
/// A real disk that is soon full: a tmpfs of a few pages, which only those see who go through the path given here.

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "temporary_folder.h"

namespace widehead::test {

/// The mount is in a namespace of its own, which a child process keeps alive, so it takes root or a system that gives
/// everybody a namespace of users; it is gone with this object, also when the test is killed. Where the system forbids
/// both, why_not() says so and the test is to be skipped.
class SmallDisk {
 public:
  explicit SmallDisk(std::size_t bytes) {
    // All strings before the fork: afterwards there may have been threads that hold the lock of the heap.
    const auto size = fmt::format("size={},mode=777", bytes);
    const auto users = fmt::format("0 {} 1", geteuid()), groups = fmt::format("0 {} 1", getegid());
    const auto folder = std::filesystem::canonical(folder_.path()).string();
    int ready[2], alive[2];
    if (pipe2(ready, O_CLOEXEC) != 0 || pipe2(alive, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
    keeper_ = fork();
    if (keeper_ < 0) throw std::runtime_error("fork failed");
    if (keeper_ == 0) {
      close(alive[1]);
      const int error = mount_tmpfs(folder.c_str(), size.c_str(), users, groups);
      if (write(ready[1], &error, sizeof error) != sizeof error) _exit(1);
      char end = 0;
      while (read(alive[0], &end, 1) < 0) {
      }
      _exit(0);
    }
    close(ready[1]);
    close(alive[0]);
    alive_ = alive[1];
    int error = EIO;
    if (read(ready[0], &error, sizeof error) != sizeof error) error = EIO;
    close(ready[0]);
    path_ = fmt::format("/proc/{}/root{}", keeper_, folder);
    if (error != 0) {
      why_not_ = fmt::format("this system lets us mount no small disk: {}", std::strerror(error));
    } else if (access(path_.c_str(), W_OK) != 0) {
      why_not_ = fmt::format("the small disk cannot be reached from here: {}", std::strerror(errno));
    }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    close(alive_);
    waitpid(keeper_, nullptr, 0);
  }

  const std::string& why_not() const { return why_not_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  /// Takes as many bytes as there are, but for these, and gives them back when it is called again. 0 takes all.
  void leave_free(std::size_t bytes) const {
    std::filesystem::remove(*this / "ballast");
    const auto free = std::filesystem::space(path_).available;
    ASSERT_GE(free, bytes);
    std::ofstream ballast(*this / "ballast", std::ios::binary);
    ballast << std::string(free - bytes, 'x') << std::flush;
    ASSERT_TRUE(ballast.good());
    ASSERT_EQ(std::filesystem::space(path_).available, bytes);
  }
  void leave_all_free() const { std::filesystem::remove(*this / "ballast"); }

 private:
  static bool put(const char* path, const std::string& text) {
    const int file = open(path, O_WRONLY | O_CLOEXEC);
    const bool written = file >= 0 && write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    close(file);
    return written;
  }
  static int mount_tmpfs(const char* folder, const char* size, const std::string& users, const std::string& groups) {
    if (unshare(CLONE_NEWNS) != 0) {
      if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !put("/proc/self/setgroups", "deny") ||
          !put("/proc/self/uid_map", users) || !put("/proc/self/gid_map", groups)) {
        return errno;
      }
    }
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return errno;
    return mount("widehead", folder, "tmpfs", 0, size) != 0 ? errno : 0;
  }

  TemporaryFolder folder_;  // mounted over
  std::string path_, why_not_;
  pid_t keeper_ = -1;
  int alive_ = -1;
};

#define WIDEHEAD_SKIP_WITHOUT(disk) \
  if (!(disk).why_not().empty()) GTEST_SKIP() << (disk).why_not()

}  // namespace widehead::test
