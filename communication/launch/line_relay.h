#pragma once
// What the processes of a job print, brought together line by line in one place.
#include <cstddef>
#include <string>
#include <string_view>

namespace furlong {

/// Turns the pieces in which one stream arrives into whole lines with a prefix.
class LinePrefixer {
 public:
  /// A line that grows beyond this is handed out in parts, each a line with the prefix: nobody's memory is for sale.
  static constexpr std::size_t kLongestLine = 64 * 1024;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}
  /// Appends the lines that `piece` completes to `out`, and keeps what is behind the last newline.
  void add(std::string_view piece, std::string& out);
  /// The stream has ended: appends a last line that has no newline, giving it one.
  void finish(std::string& out);

 private:
  std::string prefix_, begun_;
  bool broken_ = false;  ///< what comes next continues a line that was too long
};

/// Lines on their way to a descriptor that others write to as well and whose reader may be slow. Never blocks: who
/// reads a paused terminal must not keep the launcher from its signals and deadlines.
class LineQueue {
 public:
  explicit LineQueue(int descriptor) : descriptor_(descriptor) {}
  int descriptor() const { return descriptor_; }
  std::string& lines() { return waiting_; }
  bool empty() const { return waiting_.empty(); }
  /// True where readers of the streams should wait, as their writers would without us in between.
  bool full() const { return waiting_.size() >= 1024 * 1024; }
  /// Whether a write of up to PIPE_BUF bytes would not block.
  bool ready() const;
  /// Writes as much as the descriptor takes now, whole lines at a time, so that what others write falls between them
  /// (lines of more than PIPE_BUF bytes excepted). Drops everything when nobody reads any more.
  void write_some();

 private:
  int descriptor_;
  std::string waiting_;
};

}  // namespace furlong
