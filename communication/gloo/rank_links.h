#pragma once
// Authenticated TCP connections between every pair of ranks. Both ends authenticate with a token from the job store.
// Other clients that connect meanwhile are dropped, whatever they send.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "communication/job_store/socket.h"

namespace furlong {

inline constexpr std::size_t link_token_bytes = 16;

/// What the store holds about a rank.
struct LinkedRank {
  SocketAddress address{};    ///< the address that the rank listens at
  std::vector<char> token{};  ///< random bytes; the token that authenticates it
};

/// Connects this rank to all others; all ranks call it at the same time. A rank connects to lower ranks and accepts
/// higher ones. `ranks` lists all ranks, this one included. Returns the sockets in rank order, with an empty socket for
/// this rank.
///
/// Throws LinkFailure for the first missing rank at the deadline, or when `give_up` returns true (polled every 50 ms).
/// `waits_for` is called with the ranks that this one waits for, whenever they change.
std::vector<Socket> link_ranks(
    const Socket& listener, int rank, std::span<const LinkedRank> ranks, TimePoint deadline,
    const std::function<bool()>& give_up, const std::function<void(std::vector<int>)>& waits_for = [](const auto&) {});

struct LinkFailure {
  int rank;
  std::string reason;
};

}  // namespace furlong
