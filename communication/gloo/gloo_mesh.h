#pragma once
// Gloo's connections between all ranks, made through the job's store: a gloo::Context for its collective functions.
// What Gloo's own connectFullMesh and waits cannot do is done here: errors name ranks and hosts, a peer must know the
// job's secret, and whatever waits can be interrupted from another thread.
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "communication/gloo/gloo_communicator.h"
#include "communication/gloo/rank_links.h"
#include "communication/job_store/store_client.h"

namespace furlong {

/// What our messages' slots begin with; Gloo's own prefixes end at 0x08.
inline constexpr std::uint8_t message_slot = 0x41;

/// What waits throw after break_off().
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("it was interrupted") {}
};

/// What a wait throws whose time is over.
class TimedOut : public std::runtime_error {
 public:
  explicit TimedOut(std::chrono::milliseconds timeout);
};

class GlooMesh {
 public:
  /// Listens, and exchanges addresses with all other ranks through the store. Throws UserError where this host has no
  /// such address or a rank uses another kind of address, MachineError when one does not come in time.
  GlooMesh(StoreClient& store, const GlooOptions& options);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  /// Connects with every rank, both sides of which prove that they know each other from the store. Throws MachineError
  /// that names the rank.
  void connect();
  const std::shared_ptr<gloo::Context>& context() const { return context_; }

  /// From any thread, at any time: all that waits in this mesh, and all that will, throws. Connections are closed, and
  /// on return Gloo's thread has done with all buffers. A wait that fails, for whatever reason, does that before it
  /// throws.
  void break_off() noexcept;
  /// From any thread: a rank whose connection is gone, other than by break_off(), with what happened to it; the first
  /// that was found.
  struct Lost {
    int rank;
    std::string reason;
  };
  std::optional<Lost> lost_peer();
  /// "rank 2 on host node07"
  std::string name_of_rank(int rank) const;

 private:
  class Buffer;
  class Transport;
  class Context;
  struct Waiters;
  struct Peer {
    std::string host{};
    /// A byte that never comes: its wait throws once Gloo has given up the connection.
    std::unique_ptr<gloo::transport::UnboundBuffer> sentinel{};
  };

  void make_transport(const GlooOptions& options);
  void meet(StoreClient& store, const GlooOptions& options);
  void listen(const GlooOptions& options);
  void publish(StoreClient& store, const GlooOptions& options);
  void learn(StoreClient& store, const GlooOptions& options);
  void watch_connections();
  void give_up(bool connection_broke) noexcept;

  const int rank_, size_;
  const std::string host_;
  const std::chrono::milliseconds connect_timeout_;
  Socket listener_;
  std::vector<LinkedRank> ranks_;  ///< of which the store has told
  std::shared_ptr<Waiters> waiters_;
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<gloo::Context> context_;
  std::vector<Peer> peers_;
  std::mutex sentinels_mutex_;
  bool sentinels_posted_ = false;
  std::optional<Lost> lost_;
  char nothing_ = 0;
};

/// What a Gloo exception says, on one line and without the place in Gloo's source.
std::string gloo_message(const std::exception& error);

}  // namespace furlong
