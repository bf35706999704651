#pragma once
// Output that nobody reads.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "framework/core/standard_streams.h"

namespace furlong::testing {

/// A pipe or a terminal for the output of a program.
class UnreadOutput {
 public:
  enum Kind { pipe, terminal };

  explicit UnreadOutput(Kind kind) {
    if (kind == pipe) {
      int ends[2] = {-1, -1};
      EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
      reader_ = ends[0];
      writer_ = ends[1];
    } else {
      reader_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
      EXPECT_TRUE(grantpt(reader_) == 0 && unlockpt(reader_) == 0);
      writer_ = open(ptsname(reader_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    }
    EXPECT_TRUE(reader_ >= 0 && writer_ >= 0);
  }
  ~UnreadOutput() {
    close_reader();
    close_writer();
  }
  UnreadOutput(const UnreadOutput&) = delete;
  UnreadOutput& operator=(const UnreadOutput&) = delete;

  int reader() const { return reader_; }
  int writer() const { return writer_; }
  void close_reader() { close_once(reader_); }
  void close_writer() { close_once(writer_); }
  /// Writes until nothing fits for half a second: on a busy host, the system makes room in a terminal late.
  void fill() const {
    using Clock = std::chrono::steady_clock;
    const std::string text(1 << 20, 'x');
    for (auto last = Clock::now(); Clock::now() - last < std::chrono::milliseconds(500);) {
      if (write_without_waiting(writer_, text) > 0)
        last = Clock::now();
      else
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

 private:
  static void close_once(int& descriptor) {
    if (descriptor >= 0) close(descriptor);
    descriptor = -1;
  }

  int reader_ = -1, writer_ = -1;
};

}  // namespace furlong::testing
