#pragma once
// The engine of CPUs: Gloo over TCP. Its rings are those of Gloo for all_reduce and all_gather; reduce_scatter is our
// own (ring.h).
#include <chrono>
#include <memory>
#include <string>

#include "communication/communicator.h"
#include "communication/job_store/socket.h"
#include "communication/job_store/store_client.h"

namespace furlong {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  std::string host = host_name();  ///< for messages
  /// Of this host, as the other ranks reach it: own_address_towards(MASTER_ADDR). All ranks' are of IPv4, or all of
  /// IPv6.
  std::string address = "127.0.0.1";
  /// Communicators of one job and one store, each with connections and a thread of its own, have different names.
  std::string name = "all";
  /// For all ranks to come and to be connected.
  std::chrono::milliseconds connect_timeout{std::chrono::minutes(5)};
  /// When a connection breaks, the store soon knows why, by heartbeats or from the rank itself, and which rank was the
  /// first: so long it is waited for. Afterwards the fault is the rank at the other end.
  std::chrono::milliseconds fault_patience{8000};
  /// In one operation, for one message. Not what notices a lost rank: while heartbeats come, a peer that is late
  /// computes, reads data or writes a checkpoint, and is waited for. This ends what would never end, ranks that wait
  /// for each other.
  std::chrono::milliseconds operation_timeout{std::chrono::hours(24)};
  /// When, and how often from then on, an operation that waits says for whom (wait_notice.h).
  std::chrono::milliseconds notice_after{std::chrono::minutes(1)}, notice_every{std::chrono::minutes(5)};
};

/// Connects `size` ranks, all of which construct theirs at the same time. The store must outlive the communicator; a
/// fault that it learns of aborts the communicator, so that a wait for a lost rank ends when the store's times
/// (StoreTimes) say. Throws UserError on an address that is not this host's or does not fit the others', MachineError
/// when a rank does not come, naming it. All ranks destroy theirs when nothing is under way; what is then still under
/// way throws.
std::unique_ptr<Communicator> make_gloo_communicator(StoreClient& store, const GlooOptions& options);

/// The address of this host that its packets to `host` (a name or an address) carry: on the interface that reaches it.
/// IPv4 where both would do. Throws UserError where the name cannot be resolved, MachineError where there is no way to
/// it.
std::string own_address_towards(const std::string& host);

}  // namespace furlong
