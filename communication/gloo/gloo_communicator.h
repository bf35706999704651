#pragma once
// The CPU backend: Gloo over TCP. all_reduce and all_gather use Gloo's ring algorithms; reduce_scatter is implemented
// in ring.h.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "communication/communicator.h"
#include "communication/job_store/socket.h"
#include "communication/job_store/store_client.h"

namespace furlong {

/// Options of make_gloo_communicator().
struct GlooOptions {
  int rank = 0;
  int size = 1;
  std::string host = host_name();  ///< for messages
  /// Address of this host that the other ranks can reach: own_address_toward() of MASTER_ADDR. All ranks use IPv4, or
  /// all use IPv6.
  std::string address = "127.0.0.1";
  /// Name of the communicator, unique within the job. Each communicator has its own connections and its own thread.
  std::string name = "all";
  /// Time limit until all ranks have arrived and are connected.
  std::chrono::milliseconds connect_timeout{std::chrono::minutes(5)};
  /// Time to wait, after a connection broke, for the job store to report which rank failed first. After that the rank
  /// at the other end of the connection is reported.
  std::chrono::milliseconds fault_patience{8000};
  /// Time limit for one message of one operation. Lost ranks are detected by heartbeats. A rank that is alive but late
  /// (computing, reading data, writing a checkpoint) is waited for. This limit ends deadlocks.
  std::chrono::milliseconds operation_timeout{std::chrono::hours(24)};
  /// When a waiting operation first logs which ranks it waits for, and how often it repeats that (wait_notice.h).
  std::chrono::milliseconds notice_after{std::chrono::minutes(1)}, notice_every{std::chrono::minutes(5)};
};

/// Connects `size` ranks. All ranks call it at the same time. The store must outlive the communicator. A fault that the
/// store reports aborts the communicator, so a wait for a lost rank ends within the times of StoreTimes.
///
/// Throws UserError if the address does not belong to this host or its family differs from the other ranks'. Throws
/// MachineError, naming the rank, if a rank does not arrive. All ranks destroy the communicator when no operation is
/// running; a running operation throws.
std::unique_ptr<Communicator> make_gloo_communicator(StoreClient& store, const GlooOptions& options);

/// Returns this host's source address for packets to `host` (a name or an address). It is the address at which the
/// other ranks reach this one. Tries addresses_to_try() in order. `one_host`: all ranks run on this host. Throws
/// UserError if the name cannot be resolved, MachineError if there is no route to it.
std::string own_address_toward(const std::string& host, bool one_host);

/// Orders the addresses of a name: IPv4 first. Without `one_host`, loopback addresses are removed if another one
/// exists: /etc/hosts often maps a host's own name to 127.0.1.1 as well, which the other hosts cannot reach.
std::vector<SocketAddress> addresses_to_try(std::vector<SocketAddress> addresses, bool one_host);

}  // namespace furlong
