#pragma once
// How long a text may become in the steps of a tokenizer: chained, a few of a file's can make gigabytes of a line.
#include <string>

#include "framework/core/error.h"

namespace furlong {

/// The bound for one text on its way through a row of steps. No published step makes more than eleven bytes of one
/// (NFKD).
class TextGrowth {
 public:
  /// `name`: of the row, which begins errors. `bytes`: of the text before it.
  TextGrowth(const std::string& name, std::size_t bytes) : name_(name), bytes_(bytes), most_(64 * bytes + 1024) {}

  void check(std::size_t bytes) const {
    if (bytes > most_)
      throw UserError(
          "{}: makes more than {} bytes of a text of {}; expected at most 64 times as many and 1,024: is the file "
          "damaged?",
          name_, most_, bytes_);
  }

 private:
  const std::string& name_;
  std::size_t bytes_, most_;
};

/// Throws UserError, beginning with `name`, where a row of steps has the most that it may have. Each passes over the
/// whole text, or runs inside the one before.
inline void check_step_count(std::size_t steps, const std::string& name, const char* kind) {
  constexpr std::size_t most_steps = 64;
  if (steps >= most_steps) throw UserError("{}: more than {} {}", name, most_steps, kind);
}

}  // namespace furlong
