#include "progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace widehead::cli {
namespace {

constexpr double terminal_interval = 0.1;  // seconds between rewritten lines
constexpr int bar_width = 24;

std::size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// "━━━━━━━───": `share` of it done.
std::string bar(double share) {
  const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * bar_width);
  std::string text;
  for (int i = 0; i < bar_width; ++i) text += i < full ? "━" : "─";
  return text;
}

/// The first `width` characters of UTF-8.
std::string shortened(const std::string& text, std::size_t width) {
  std::size_t characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool starts_character = (static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U;
    if (starts_character && characters++ == width) return text.substr(0, i);
  }
  return text;
}

std::string count_of(double n) {
  if (n >= 1e6) return fmt::format("{:.1f} M", n / 1e6);
  if (n >= 1e4) return fmt::format("{:.0f} k", n / 1e3);
  return fmt::format("{:.0f}", n);
}

}  // namespace

std::string clock_of(double seconds) {
  const auto s = std::llround(std::clamp(seconds, 0.0, 1e9));
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

ProgressLine::ProgressLine(double every) : terminal_(isatty(STDERR_FILENO) == 1), every_(every) {}

bool ProgressLine::due(double interval) {
  const auto now = Clock::now();
  if (shown_ && std::chrono::duration<double>(now - last_).count() < (terminal_ ? interval : every_)) return false;
  last_ = now;
  shown_ = true;
  return true;
}

void ProgressLine::show(const std::string& text) {
  if (terminal_) {
    fmt::print(stderr, "\r{}\x1b[K", shortened(text, terminal_width() - 1));
    open_ = true;
  } else {
    fmt::print(stderr, "{}\n", text);
  }
  std::fflush(stderr);
}

void ProgressLine::note(const std::string& text) {
  if (open_) fmt::print(stderr, "\r\x1b[K");
  fmt::print(stderr, "{}\n", text);
  open_ = false;
  shown_ = false;
}

void ProgressLine::reading(double share) {
  if (due(terminal_interval)) show(fmt::format("reading   {} {:3.0f}%", bar(share), 100 * share));
}

void ProgressLine::training(const Progress& p) {
  if (!due(terminal_interval)) return;
  show(fmt::format("epoch {}/{} {} {:5.1f}%  {} examples/s  loss {:.5g}  lr {:.2g}  η {:.2g}  {} left", p.epoch,
                   p.epochs, terminal_ ? bar(p.share) : "", 100 * p.share, count_of(p.examples_per_second), p.loss,
                   p.lr, p.eta, clock_of(p.seconds_left)));
}

void ProgressLine::finish() {
  if (open_) fmt::print(stderr, "\n");
  open_ = false;
  shown_ = false;
}

}  // namespace widehead::cli
