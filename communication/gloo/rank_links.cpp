#include "communication/gloo/rank_links.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

namespace furlong {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::array<char, 8> link_magic{'F', 'U', 'R', 'L', 'I', 'N', 'K', '1'};
/// Maximum number of unauthenticated connections; one more replaces the oldest.
constexpr std::size_t max_candidates = 64;
constexpr milliseconds greeting_timeout{5000}, retry_after{50};
constexpr milliseconds attempt_patience{1000};  // the system repeats a lost SYN only after 1, 3 and 7 s

/// First message of a connecting rank, with the token of the accepting rank. The answer is the connecting rank's token.
struct Greeting {
  std::array<char, link_magic.size()> magic;
  std::uint32_t rank;
  std::array<char, link_token_bytes> token;
};
static_assert(sizeof(Greeting) == link_magic.size() + 4 + link_token_bytes);

/// Compares in constant time.
bool is_token(std::span<const char> heard, const std::vector<char>& token) {
  unsigned difference = token.size() == heard.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(token.size(), heard.size()); ++i)
    difference |= static_cast<unsigned char>(token[i] ^ heard[i]);
  return difference == 0;
}

class Linker {
 public:
  Linker(const Socket& listener, int rank, std::span<const LinkedRank> ranks, TimePoint deadline,
         const std::function<bool()>& give_up, const std::function<void(std::vector<int>)>& waits_for)
      : listener_(listener),
        rank_(static_cast<std::size_t>(rank)),
        ranks_(ranks),
        deadline_(deadline),
        give_up_(give_up),
        waits_for_(waits_for),
        links_(ranks.size()) {}

  // Rank 0 accepts immediately, every other rank once the lower ranks have answered. So ranks never wait in a cycle.
  std::vector<Socket> run() {
    for (std::size_t rank = 0; rank < rank_; ++rank) dial(rank);
    accept_others();
    return std::move(links_);
  }

 private:
  [[noreturn]] void fail(std::size_t rank, const std::string& reason) const {
    throw LinkFailure{static_cast<int>(rank), reason};
  }
  bool is_over() const { return give_up_() || steady_clock::now() >= deadline_; }

  void dial(std::size_t rank) {
    waits_for_({static_cast<int>(rank)});
    for (std::string problem = "no answer";; std::this_thread::sleep_for(retry_after)) {
      if (is_over()) fail(rank, problem);
      int error = 0;
      Socket socket = connect_to(ranks_[rank].address, std::min(deadline_, steady_clock::now() + attempt_patience),
                                 milliseconds(0), error, give_up_);
      if (!socket) {
        problem = error_text(error);
      } else if (problem = greet(socket, rank); problem.empty()) {
        links_[rank] = std::move(socket);
        return;
      }
    }
  }

  /// Authenticates both ends. Returns "" or the reason of a failure.
  std::string greet(const Socket& socket, std::size_t rank) const {
    constexpr const char* closed = "it closed the connection";
    Greeting greeting{link_magic, static_cast<std::uint32_t>(rank_), {}};
    std::copy_n(ranks_[rank].token.begin(), link_token_bytes, greeting.token.begin());
    // A greeting always fits into an empty send buffer; otherwise the connection is unusable.
    if (send(socket, {reinterpret_cast<const char*>(&greeting), sizeof greeting}).bytes != sizeof greeting)
      return closed;
    std::array<char, link_token_bytes> answer{};
    for (std::size_t heard = 0; heard < answer.size();) {
      if (!wait_for(socket, POLLIN, deadline_, give_up_)) return "it did not answer in time";
      const Transfer moved = receive(socket, std::span(answer).subspan(heard));
      if (moved.ended || moved.error != 0) return closed;
      heard += moved.bytes;
    }
    return is_token(answer, ranks_[rank_].token) ? "" : "another program answers at its port";
  }

  struct Candidate {
    Socket socket;
    TimePoint since;
    std::array<char, sizeof(Greeting)> heard{};
    std::size_t bytes = 0;
  };

  void accept_others() {
    while (const std::size_t missing = first_missing()) {
      waits_for_(all_missing());
      if (is_over()) fail(missing, "it did not connect" + (shortage_.empty() ? "" : "; this rank: " + shortage_));
      std::vector<pollfd> entries{{listener_.descriptor(), POLLIN, 0}};
      for (const Candidate& candidate : candidates_) entries.push_back({candidate.socket.descriptor(), POLLIN, 0});
      if (::poll(entries.data(), entries.size(), static_cast<int>(retry_after.count())) < 0) continue;
      for (std::size_t i = candidates_.size(); i-- > 0;) {
        if (entries[i + 1].revents != 0 && !read_greeting(candidates_[i])) forget(i);
      }
      const TimePoint oldest = steady_clock::now() - greeting_timeout;
      std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.since < oldest; });
      accept_candidates();
    }
  }

  /// Returns the first rank that has not connected, or 0 (which never connects to another rank) if none is missing.
  std::size_t first_missing() const {
    for (std::size_t rank = rank_ + 1; rank < links_.size(); ++rank) {
      if (!links_[rank]) return rank;
    }
    return 0;
  }

  std::vector<int> all_missing() const {
    std::vector<int> missing;
    for (std::size_t rank = rank_ + 1; rank < links_.size(); ++rank) {
      if (!links_[rank]) missing.push_back(static_cast<int>(rank));
    }
    return missing;
  }

  void forget(std::size_t index) { candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(index)); }

  void accept_candidates() {
    const TimePoint begin = steady_clock::now();
    for (std::size_t i = 0; i < max_candidates; ++i) {
      int error = 0;
      Socket socket = accept_from(listener_, milliseconds(0), error);
      if (socket) {
        if (candidates_.size() >= max_candidates) forget(0);
        candidates_.push_back({std::move(socket), steady_clock::now()});
        continue;
      }
      if (error == EAGAIN) return;
      shortage_ = error_text(error);
      // Out of descriptors: closes a connection that is older than retry_after; newer ones get time to send first.
      if (!candidates_.empty() && candidates_.front().since + retry_after < begin) {
        forget(0);
      } else {
        std::this_thread::sleep_for(retry_after);
      }
      return;
    }
  }

  /// Reads a greeting. Returns false if the connection is to be removed: closed, invalid, or accepted as a link.
  bool read_greeting(Candidate& candidate) {
    const Transfer moved = receive(candidate.socket, std::span(candidate.heard).subspan(candidate.bytes));
    if (moved.ended || moved.error != 0) return false;
    candidate.bytes += moved.bytes;
    if (candidate.bytes < candidate.heard.size()) return true;
    Greeting greeting{};
    std::memcpy(&greeting, candidate.heard.data(), sizeof greeting);
    const bool right = greeting.magic == link_magic && greeting.rank > rank_ && greeting.rank < links_.size() &&
                       is_token(greeting.token, ranks_[rank_].token);
    if (!right) return false;
    const std::vector<char>& answer = ranks_[greeting.rank].token;
    if (send(candidate.socket, answer).bytes == answer.size()) links_[greeting.rank] = std::move(candidate.socket);
    return false;
  }

  const Socket& listener_;
  std::size_t rank_;
  std::span<const LinkedRank> ranks_;
  TimePoint deadline_;
  const std::function<bool()>& give_up_;
  const std::function<void(std::vector<int>)>& waits_for_;
  std::vector<Socket> links_;
  std::vector<Candidate> candidates_;
  std::string shortage_;  ///< the last error of accept()
};

}  // namespace

std::vector<Socket> link_ranks(const Socket& listener, int rank, std::span<const LinkedRank> ranks, TimePoint deadline,
                               const std::function<bool()>& give_up,
                               const std::function<void(std::vector<int>)>& waits_for) {
  return Linker(listener, rank, ranks, deadline, give_up, waits_for).run();
}

}  // namespace furlong
