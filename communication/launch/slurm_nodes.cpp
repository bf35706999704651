#include "communication/launch/slurm_nodes.h"

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "communication/launch/environment_reader.h"
#include "framework/core/error.h"

namespace furlong {
namespace {

constexpr std::size_t kMaxHosts = 65536;
constexpr std::size_t kMaxNameLength = 255;
constexpr std::size_t kMaxDigits = 18;  // fits in 64 bits
constexpr int kMaxTasks = 1'000'000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_name_character(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
}

/// Reads a text from left to right. Errors name the position.
class Scanner {
 public:
  Scanner(const std::string& variable, const std::string& text) : variable_(variable), text_(text) {}

  bool at_end() const { return position_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[position_]; }
  bool accept(char c) {
    if (at_end() || text_[position_] != c) return false;
    ++position_;
    return true;
  }
  void expect(char c, const char* where) {
    if (!accept(c)) fail("expected '{}' {}", c, where);
  }
  std::string digits(const char* where) {
    const std::size_t start = position_;
    while (is_digit(peek())) ++position_;
    if (start == position_) fail("expected a number {}", where);
    if (position_ - start > kMaxDigits) fail("a number of more than {} digits", kMaxDigits);
    return text_.substr(start, position_ - start);
  }
  std::int64_t number(const char* where, std::int64_t low, std::int64_t high) {
    const std::string text = digits(where);
    std::int64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    if (value < low || value > high) fail("{} is out of range, expected {} to {}", value, low, high);
    return value;
  }
  /// Reads letters and digits. Limits their number, because brackets copy them up to 65536 times.
  std::string literal() {
    const std::size_t start = position_;
    while (is_name_character(peek())) ++position_;
    if (position_ - start > kMaxNameLength) fail("a host name of more than {} characters", kMaxNameLength);
    return text_.substr(start, position_ - start);
  }
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw UserError("{}={}: {}, at character {}; Slurm sets it in every step: start with srun", variable_,
                    printable(text_), fmt::format(format, std::forward<Args>(args)...), position_ + 1);
  }

 private:
  const std::string& variable_;
  const std::string& text_;
  std::size_t position_ = 0;
};

/// Reads "01-03,7" and the closing bracket.
std::vector<std::string> bracket(Scanner& scanner) {
  std::vector<std::string> numbers;
  do {
    const std::string low = scanner.digits("in brackets");
    const std::string high = scanner.accept('-') ? scanner.digits("after '-'") : low;
    std::int64_t first = 0, last = 0;
    std::from_chars(low.data(), low.data() + low.size(), first);
    std::from_chars(high.data(), high.data() + high.size(), last);
    if (last < first) scanner.fail("the range {}-{} runs backwards", low, high);
    if (static_cast<std::uint64_t>(last - first) >= kMaxHosts - numbers.size())
      scanner.fail("more than {} hosts", kMaxHosts);
    for (std::int64_t n = first; n <= last; ++n) numbers.push_back(fmt::format("{:0{}}", n, low.size()));
  } while (scanner.accept(','));
  scanner.expect(']', "to close the brackets");
  return numbers;
}

/// Reads one item between commas. Returns all combinations of its brackets.
std::vector<std::string> item(Scanner& scanner) {
  std::vector<std::string> names{scanner.literal()};
  while (scanner.accept('[')) {
    const std::vector<std::string> numbers = bracket(scanner);
    const std::string suffix = scanner.literal();
    if (names.size() * numbers.size() > kMaxHosts) scanner.fail("more than {} hosts", kMaxHosts);
    std::vector<std::string> longer;
    longer.reserve(names.size() * numbers.size());
    for (const std::string& name : names) {
      for (const std::string& number : numbers) longer.push_back(name + number + suffix);
    }
    names = std::move(longer);
    if (names.back().size() > kMaxNameLength) scanner.fail("a host name of more than {} characters", kMaxNameLength);
  }
  if (names.front().empty()) scanner.fail("expected a host name");
  return names;
}

}  // namespace

std::vector<std::string> expand_slurm_hosts(const std::string& variable, const std::string& text) {
  Scanner scanner(variable, text);
  std::vector<std::string> hosts;
  do {
    for (std::string& name : item(scanner)) hosts.push_back(std::move(name));
    if (hosts.size() > kMaxHosts) scanner.fail("more than {} hosts", kMaxHosts);
  } while (scanner.accept(','));
  if (!scanner.at_end()) scanner.fail("unexpected character in a host name");
  return hosts;
}

std::vector<int> expand_slurm_tasks_per_node(const std::string& variable, const std::string& text) {
  Scanner scanner(variable, text);
  std::vector<int> tasks;
  do {
    const auto count = static_cast<int>(scanner.number("for tasks", 1, kMaxTasks));
    std::int64_t nodes = 1;
    if (scanner.accept('(')) {
      scanner.expect('x', "before the number of nodes");
      nodes = scanner.number("after 'x'", 1, kMaxHosts);
      scanner.expect(')', "after the number of nodes");
    }
    if (static_cast<std::size_t>(nodes) > kMaxHosts - tasks.size()) scanner.fail("more than {} nodes", kMaxHosts);
    tasks.insert(tasks.end(), static_cast<std::size_t>(nodes), count);
  } while (scanner.accept(','));
  if (!scanner.at_end()) scanner.fail("expected a comma or the end");
  return tasks;
}

}  // namespace furlong
