#pragma once
// A TCP connection between each two ranks, of which both ends have proved that they read the job's store. Whoever else
// connects meanwhile, and says or holds what it likes, is put aside.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "communication/job_store/socket.h"

namespace furlong {

inline constexpr std::size_t link_token_bytes = 16;

/// What the store says of a rank.
struct LinkedRank {
  SocketAddress address{};    ///< that it listens at
  std::vector<char> token{};  ///< random; who knows it has read the store
};

/// All ranks call this at the same time. A rank connects to those below it and is connected to by those above it. Of
/// `ranks`, which has this one, too. Returns their sockets in order, none of its own. At the deadline, or where
/// `give_up`, asked every 50 ms, says so, throws LinkFailure for the first rank that is missing.
std::vector<Socket> link_ranks(const Socket& listener, int rank, std::span<const LinkedRank> ranks, TimePoint deadline,
                               const std::function<bool()>& give_up);

struct LinkFailure {
  int rank;
  std::string reason;
};

}  // namespace furlong
