#pragma once
// Merges the output of a job's ranks line by line.
#include <cstddef>
#include <string>
#include <string_view>

namespace furlong {

/// Assembles the chunks of one stream into complete lines with a prefix.
class LinePrefixer {
 public:
  /// Maximum length of a line in bytes. Longer lines are split into several lines, each with the prefix, which bounds
  /// the memory.
  static constexpr std::size_t kLongestLine = 64 * 1024;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}
  /// Appends the lines that `piece` completes to `out`, and stores the rest after the last newline.
  void add(std::string_view piece, std::string& out);
  /// Ends the stream: appends an incomplete last line, with a newline.
  void finish(std::string& out);

 private:
  std::string prefix_, partial_;
  bool broken_ = false;  ///< the next bytes continue a line that was split
};

/// Queue of lines for a descriptor that other processes also write to and whose reader may be slow. Never blocks: a
/// paused terminal must not keep the launcher from handling signals and deadlines.
class LineQueue {
 public:
  explicit LineQueue(int descriptor) : descriptor_(descriptor) {}
  std::string& lines() { return waiting_; }
  bool empty() const { return waiting_.empty(); }
  /// Returns true if the readers of the streams should pause, so that their writers block as without a relay.
  bool full() const { return waiting_.size() >= 1024 * 1024; }
  /// Returns true if the reader takes at least one byte.
  bool ready() const;
  /// Writes as much as possible without blocking. Writes whole lines, so that output of others does not interrupt them
  /// (except lines longer than PIPE_BUF). Discards all lines if the reader is gone. Returns true if the reader took
  /// some.
  bool write_some();
  /// Removes all lines and counts them as lost messages.
  void discard();

 private:
  int descriptor_;
  std::string waiting_;
};

}  // namespace furlong
