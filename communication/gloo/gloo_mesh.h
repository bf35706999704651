#pragma once
// Gloo connections between all ranks, set up through the job store, and the gloo::Context that Gloo's collectives use.
// In contrast to Gloo's connectFullMesh, errors name ranks and hosts, peers authenticate with the job's secret, and
// another thread can interrupt any wait.
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

/// Slot prefix of point-to-point messages. Gloo's own prefixes end at 0x08.
inline constexpr std::uint8_t message_slot = 0x41;

/// Thrown by waits after interrupt().
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

/// Thrown by waits that exceed their time limit.
class TimedOut : public std::runtime_error {
 public:
  explicit TimedOut(std::chrono::milliseconds timeout);
};

/// The connections of one rank to all other ranks. Construct it, then call connect(), both on all ranks at about the
/// same time; then run Gloo's collectives on context().
///
/// A wait is a call of waitRecv() or waitSend() of a buffer of context(), which Gloo's collectives make. It blocks
/// until the transfer is complete. It throws TimedOut after GlooOptions::operation_timeout, Interrupted after
/// interrupt(), and Gloo's exception if a connection breaks; lost_peer() then names the rank.
class GlooMesh {
 public:
  /// Listens, and exchanges addresses with all other ranks through the store. Throws UserError if the address does not
  /// belong to this host or a rank uses another address family. Throws MachineError if a rank does not arrive in time;
  /// warnings name it before that.
  GlooMesh(StoreClient& store, const GlooOptions& options);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  /// Connects to every rank. Both ends of a connection authenticate with a token from the store. Throws MachineError,
  /// which names the rank, if a connection fails or takes longer than GlooOptions::connect_timeout. Throws Interrupted
  /// after interrupt().
  void connect();
  /// Returns the ranks that connect() waits for: empty before and after it. May be called from any thread.
  std::vector<int> unconnected() const;
  /// Returns the context for Gloo's collectives. Use it after connect().
  const std::shared_ptr<gloo::Context>& context() const { return context_; }

  /// Makes all current and future waits of this mesh throw, and closes the connections. May be called from any thread
  /// at any time. On return, Gloo's thread no longer uses any buffer. A wait that fails for any
  /// reason also closes the connections first.
  void interrupt() noexcept;
  /// A rank whose connection broke, and the reason.
  struct Lost {
    int rank;
    std::string reason;
  };
  /// Returns the first rank that was found to be lost, not counting connections closed by interrupt(). May be called
  /// from any thread.
  std::optional<Lost> lost_peer();
  /// Returns for example "rank 2 on host node07".
  std::string name_of_rank(int rank) const;

 private:
  class Buffer;
  class Transport;
  class Context;
  struct Waiters;
  struct Peer {
    std::string host{};
    /// Waits for a byte that is never sent: the wait throws once Gloo has closed the connection.
    std::unique_ptr<gloo::transport::UnboundBuffer> sentinel{};
  };

  void make_transport(const GlooOptions& options);
  void wait_for_ranks(StoreClient& store, const GlooOptions& options);
  void warn_of_missing(const std::vector<int>& missing, std::chrono::steady_clock::duration waited) const;
  void listen(const GlooOptions& options);
  void publish_address(StoreClient& store, const GlooOptions& options);
  void read_addresses(StoreClient& store, const GlooOptions& options);
  void watch_connections();
  void give_up(bool connection_broke) noexcept;

  const int rank_, size_;
  const std::string host_;
  const std::chrono::milliseconds connect_timeout_;
  Socket listener_;
  std::vector<LinkedRank> ranks_;  ///< filled from the store
  mutable std::mutex unconnected_mutex_;
  std::vector<int> unconnected_;
  std::shared_ptr<Waiters> waiters_;
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<gloo::Context> context_;
  std::vector<Peer> peers_;
  std::mutex sentinels_mutex_;
  bool sentinels_posted_ = false;
  std::optional<Lost> lost_;
  char sentinel_byte_ = 0;
};

/// Returns the message of a Gloo exception on one line, without its location in Gloo's source.
std::string gloo_message(const std::exception& error);

}  // namespace furlong
