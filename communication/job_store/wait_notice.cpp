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

void WaitNotice::look(const Operation& operation) noexcept {
  const auto now = steady_clock::now();
  if (looked_at_ != operation.id) {
    looked_at_ = operation.id;
    since_ = now;
    next_ = now + options_.after;
    left_word_ = false;
    return;
  }
  try {
    if (!left_word_ && operation.number > 0 && now - since_ >= options_.after / 2) {
      left_word_ = true;
      store_.set(key_of(options_.rank), fmt::format("{} {}", operation.number, operation.name));
    }
    if (now < next_) return;
    next_ = now + options_.every;
    tell(operation, std::chrono::duration<double>(now - since_).count());
  } catch (const std::exception&) {
    // A fault, which others tell of.
  }
}

void WaitNotice::tell(const Operation& operation, double seconds) {
  std::vector<std::string> missing, elsewhere;
  for (int rank = 0; rank < options_.size && operation.number > 0; ++rank) {
    const std::optional<Word> word = rank == options_.rank ? Word{operation.number, operation.name} : word_of(rank);
    const bool is_here = word && word->number >= operation.number;
    if (is_here && rank < options_.rank) return;  // that one speaks
    if (!is_here) missing.push_back(name_of_rank_(rank));
    if (is_here && word->number == operation.number && word->name != operation.name)
      elsewhere.push_back(fmt::format("{} is in {}", name_of_rank_(rank), word->name));
  }
  if (!missing.empty()) {
    log_warn("{} has waited for {:.0f} s: {} {} not come to it; the others wait for as long as {}", operation.name,
             seconds, fmt::join(missing, ", "), missing.size() == 1 ? "has" : "have",
             missing.size() == 1 ? "it lives" : "they live");
  } else if (!elsewhere.empty()) {
    log_warn(
        "{} has taken {:.0f} s: {}: the ranks do not do the same and wait for each other; were all started alike? Stop "
        "the job",
        operation.name, seconds, fmt::join(elsewhere, ", "));
  } else {
    log_warn("{} has taken {:.0f} s; {}", operation.name, seconds,
             operation.number > 0 ? "all ranks have come to it, and the network does not carry it"
                                  : "the other side has not come to it");
  }
}

std::string WaitNotice::key_of(int rank) const { return fmt::format("waits/{}/{}", options_.communicator, rank); }

std::optional<WaitNotice::Word> WaitNotice::word_of(int rank) const {
  const std::string key = key_of(rank);
  if (!store_.check({key})) return {};
  const std::vector<char> text = store_.get(key, std::chrono::seconds(1));
  Word word;
  const auto [behind, error] = std::from_chars(text.data(), text.data() + text.size(), word.number);
  const char* end = text.data() + text.size();
  if (error == std::errc() && behind < end) word.name.assign(behind + 1, end);
  return word;
}

}  // namespace furlong
