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
constexpr std::size_t most_strangers = 64;  ///< that may be heard at once; beyond, the oldest goes
constexpr milliseconds stranger_patience{5000}, retry_after{50};
constexpr milliseconds attempt_patience{1000};  // a lost SYN is repeated by the system only after 1, 3 and 7 s

/// What a rank says first to the one that it connects to, with the other's token; the answer is its own.
struct Greeting {
  std::array<char, link_magic.size()> magic;
  std::uint32_t rank;
  std::array<char, link_token_bytes> token;
};
static_assert(sizeof(Greeting) == link_magic.size() + 4 + link_token_bytes);

/// In a time that does not tell how much of it was right.
bool is_token(std::span<const char> heard, const std::vector<char>& token) {
  unsigned difference = token.size() == heard.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(token.size(), heard.size()); ++i)
    difference |= static_cast<unsigned char>(token[i] ^ heard[i]);
  return difference == 0;
}

class Linker {
 public:
  Linker(const Socket& listener, int rank, std::span<const LinkedRank> ranks, TimePoint deadline,
         const std::function<bool()>& give_up)
      : listener_(listener),
        rank_(static_cast<std::size_t>(rank)),
        ranks_(ranks),
        deadline_(deadline),
        give_up_(give_up),
        links_(ranks.size()) {}

  // Rank 0 accepts from the beginning, and each other rank once those below it have answered: nobody waits in a circle.
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
    for (std::string problem = "nothing answered";; std::this_thread::sleep_for(retry_after)) {
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

  /// Empty, or why there is no link.
  std::string greet(const Socket& socket, std::size_t rank) const {
    constexpr const char* closed = "it closed the connection";
    Greeting greeting{link_magic, static_cast<std::uint32_t>(rank_), {}};
    std::copy_n(ranks_[rank].token.begin(), link_token_bytes, greeting.token.begin());
    // So few bytes fit into an empty send buffer; if not, the connection is of no use.
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

  struct Stranger {
    Socket socket;
    TimePoint since;
    std::array<char, sizeof(Greeting)> heard{};
    std::size_t bytes = 0;
  };

  void accept_others() {
    while (const std::size_t missing = first_missing()) {
      if (is_over()) fail(missing, "it did not connect" + (shortage_.empty() ? "" : "; this rank: " + shortage_));
      std::vector<pollfd> entries{{listener_.descriptor(), POLLIN, 0}};
      for (const Stranger& stranger : strangers_) entries.push_back({stranger.socket.descriptor(), POLLIN, 0});
      if (::poll(entries.data(), entries.size(), static_cast<int>(retry_after.count())) < 0) continue;
      for (std::size_t i = strangers_.size(); i-- > 0;) {
        if (entries[i + 1].revents != 0 && !listen_to(strangers_[i])) forget(i);
      }
      const TimePoint oldest = steady_clock::now() - stranger_patience;
      std::erase_if(strangers_, [&](const Stranger& stranger) { return stranger.since < oldest; });
      welcome_strangers();
    }
  }

  /// 0, which is below every rank that accepts, where none is.
  std::size_t first_missing() const {
    for (std::size_t rank = rank_ + 1; rank < links_.size(); ++rank) {
      if (!links_[rank]) return rank;
    }
    return 0;
  }

  void forget(std::size_t index) { strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(index)); }

  void welcome_strangers() {
    const TimePoint begin = steady_clock::now();
    for (std::size_t i = 0; i < most_strangers; ++i) {
      int error = 0;
      Socket socket = accept_from(listener_, milliseconds(0), error);
      if (socket) {
        if (strangers_.size() >= most_strangers) forget(0);
        strangers_.push_back({std::move(socket), steady_clock::now()});
        continue;
      }
      if (error == EAGAIN) return;
      shortage_ = error_text(error);
      // Without descriptors, those who have had their time make room; whoever came just now is heard first.
      if (!strangers_.empty() && strangers_.front().since + retry_after < begin) {
        forget(0);
      } else {
        std::this_thread::sleep_for(retry_after);
      }
      return;
    }
  }

  /// False where the stranger has no more to say, or has become a link.
  bool listen_to(Stranger& stranger) {
    const Transfer moved = receive(stranger.socket, std::span(stranger.heard).subspan(stranger.bytes));
    if (moved.ended || moved.error != 0) return false;
    stranger.bytes += moved.bytes;
    if (stranger.bytes < stranger.heard.size()) return true;
    Greeting greeting{};
    std::memcpy(&greeting, stranger.heard.data(), sizeof greeting);
    const bool right = greeting.magic == link_magic && greeting.rank > rank_ && greeting.rank < links_.size() &&
                       is_token(greeting.token, ranks_[rank_].token);
    if (!right) return false;
    const std::vector<char>& answer = ranks_[greeting.rank].token;
    if (send(stranger.socket, answer).bytes == answer.size()) links_[greeting.rank] = std::move(stranger.socket);
    return false;
  }

  const Socket& listener_;
  std::size_t rank_;
  std::span<const LinkedRank> ranks_;
  TimePoint deadline_;
  const std::function<bool()>& give_up_;
  std::vector<Socket> links_;
  std::vector<Stranger> strangers_;
  std::string shortage_;  ///< why connections were not taken
};

}  // namespace

std::vector<Socket> link_ranks(const Socket& listener, int rank, std::span<const LinkedRank> ranks, TimePoint deadline,
                               const std::function<bool()>& give_up) {
  return Linker(listener, rank, ranks, deadline, give_up).run();
}

}  // namespace furlong
