#pragma once
// Limits on the steps of a tokenizer: a few chained steps of a malicious file can turn one line into gigabytes.
#include <string>

#include "framework/core/error.h"

namespace furlong {

/// Limits the length of one text during a sequence of steps. No published step produces more than eleven bytes from one
/// (NFKD).
class TextGrowth {
 public:
  /// `name` is the name of the sequence, for errors. `bytes` is the length of the text before the first step.
  TextGrowth(const std::string& name, std::size_t bytes) : name_(name), bytes_(bytes), limit_(64 * bytes + 1024) {}

  /// Throws UserError if `bytes` is more than 64 times the initial length plus 1,024.
  void check(std::size_t bytes) const {
    if (bytes > limit_)
      throw UserError(
          "{}: produces more than {} bytes from a text of {} bytes (64 times its length plus 1,024); the file may be "
          "damaged",
          name_, limit_, bytes_);
  }

 private:
  const std::string& name_;
  std::size_t bytes_, limit_;
};

/// Throws UserError, starting with `name`, if a sequence already has the maximum number of steps. Each step reads the
/// whole text, or runs inside the previous one.
inline void check_step_count(std::size_t steps, const std::string& name, const char* kind) {
  constexpr std::size_t max_steps = 64;
  if (steps >= max_steps) throw UserError("{}: more than {} {}", name, max_steps, kind);
}

}  // namespace furlong
