#include "communication/job_store/wait_notice.h"
#include "framework/core/log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <utility>
#include <vector>

namespace furlong {

using std::chrono::steady_clock;

WaitNotice::WaitNotice(StoreClient& store, Options options, std::function<std::string(int rank)> name_of_rank)
    : store_(store), options_(std::move(options)), name_of_rank_(std::move(name_of_rank)) {}

void WaitNotice::update(const Operation& operation) noexcept {
  const std::lock_guard lock(mutex_);
  if (connected_ && !operation.unconnected.empty()) return;
  const auto now = steady_clock::now();
  if (current_ != operation.id) {
    current_ = operation.id;
    since_ = now;
    next_ = now + options_.after;
    published_ = false;
    return;
  }
  try {
    if (!published_ && (operation.number > 0 || !operation.unconnected.empty()) && now - since_ >= options_.after / 2) {
      published_ = true;
      store_.set(key_of(options_.rank), fmt::format("{} {}", operation.number, operation.name));
    }
    if (now < next_) return;
    next_ = now + options_.every;
    const double seconds = std::chrono::duration<double>(now - since_).count();
    operation.unconnected.empty() ? log_notice(operation, seconds) : log_connecting(operation, seconds);
  } catch (const std::exception&) {
    // A fault, which is reported elsewhere.
  }
}

void WaitNotice::connected() noexcept {
  const std::lock_guard lock(mutex_);
  connected_ = true;
  try {
    if (published_) store_.set(key_of(options_.rank), {});
  } catch (const std::exception&) {
    // A fault, which is reported elsewhere.
  }
}

void WaitNotice::log_notice(const Operation& operation, double seconds) {
  std::vector<std::string> missing, elsewhere;
  for (int rank = 0; rank < options_.size && operation.number > 0; ++rank) {
    const std::optional<Entry> entry = rank == options_.rank ? Entry{operation.number, operation.name} : entry_of(rank);
    const bool is_here = entry && entry->number >= operation.number;
    if (is_here && rank < options_.rank) return;  // the lower rank logs
    if (!is_here) missing.push_back(name_of_rank_(rank));
    if (is_here && entry->number == operation.number && entry->name != operation.name)
      elsewhere.push_back(fmt::format("{} is in {}", name_of_rank_(rank), entry->name));
  }
  if (!missing.empty()) {
    log_warn("{} has waited for {:.0f} s: {} {} not reached it; the other ranks wait as long as {} alive; check {}",
             operation.name, seconds, fmt::join(missing, ", "), missing.size() == 1 ? "has" : "have",
             missing.size() == 1 ? "it is" : "they are",
             missing.size() == 1 ? "the load of its host and its log" : "the load of their hosts and their logs");
  } else if (!elsewhere.empty()) {
    log_warn(
        "{} has taken {:.0f} s: {}; the ranks run different operations and wait for each other: stop the job, and "
        "start all ranks with the same configuration",
        operation.name, seconds, fmt::join(elsewhere, ", "));
  } else {
    log_warn("{} has taken {:.0f} s; {}", operation.name, seconds,
             operation.number > 0 ? "all ranks have reached it, so the network may be stalled: check it with furlong "
                                    "bench comm on the same hosts"
                                  : "that rank has not reached it: check the load of its host and its log");
  }
}

void WaitNotice::log_connecting(const Operation& operation, double seconds) {
  for (int rank = 0; rank < options_.rank; ++rank) {
    const std::optional<Entry> entry = entry_of(rank);
    if (entry && entry->name == operation.name) return;  // the lower rank waits, too, and logs
  }
  std::vector<std::string> missing;
  for (const int rank : operation.unconnected) missing.push_back(name_of_rank_(rank));
  log_warn(
      "{} has taken {:.0f} s: no connection to {} yet; check that all hosts reach each other (firewalls, and the "
      "addresses of MASTER_ADDR on each host)",
      operation.name, seconds, fmt::join(missing, ", "));
}

std::string WaitNotice::key_of(int rank) const { return fmt::format("waits/{}/{}", options_.communicator, rank); }

std::optional<WaitNotice::Entry> WaitNotice::entry_of(int rank) const {
  const std::string key = key_of(rank);
  if (!store_.check({key})) return {};
  const std::vector<char> text = store_.get(key, std::chrono::seconds(1));
  Entry entry;
  const auto [space, error] = std::from_chars(text.data(), text.data() + text.size(), entry.number);
  const char* end = text.data() + text.size();
  if (error == std::errc() && space < end) entry.name.assign(space + 1, end);
  return entry;
}

}  // namespace furlong
