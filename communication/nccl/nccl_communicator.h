#pragma once
// The engine of GPUs: NCCL, found when the program runs.
#include <chrono>
#include <memory>
#include <string>

#include "communication/communicator.h"
#include "communication/job_store/store_client.h"

namespace furlong {

struct NcclOptions {
  int rank = 0;
  int size = 1;
  Device device;  ///< a GPU, which no other rank has
  /// Communicators of one job and one store have different names.
  std::string name = "all";
  /// For all ranks to come and to be connected.
  std::chrono::milliseconds connect_timeout{std::chrono::minutes(5)};
  /// When NCCL fails, the store soon knows which rank was the first, and why: so long it is waited for. Afterwards
  /// NCCL's own words count.
  std::chrono::milliseconds fault_patience{8000};
  /// In one operation. Not what notices a lost rank: see GlooOptions.
  std::chrono::milliseconds operation_timeout{std::chrono::hours(24)};
  /// See GlooOptions.
  std::chrono::milliseconds notice_after{std::chrono::minutes(1)}, notice_every{std::chrono::minutes(5)};
};

/// Connects `size` ranks, all of which construct theirs at the same time. Operations run on a stream of their own
/// beside the caller's, in order with it: what was launched there before is done before, and Work::wait() makes the
/// caller's stream wait, not the host. NCCL's calls do not block, and a thread looks after what is under way: a fault
/// that the store learns of, an error that NCCL meets, or the operation's timeout abort NCCL, which ends what waits for
/// a lost rank. The host, which may wait for the device at that time, then finds results that mean nothing: check()
/// after such a wait tells.
///
/// The store must outlive the communicator. Throws UserError where NCCL or the GPU's engine is missing or too old,
/// MachineError when a rank does not come, naming it, or NCCL cannot connect them. All ranks destroy theirs when
/// nothing is under way.
///
/// Reduction::maximum and minimum of floats pass over a NaN. An operation on tensors without elements does nothing.
std::unique_ptr<Communicator> make_nccl_communicator(StoreClient& store, const NcclOptions& options);

/// Why there is no NCCL to be had on this machine; empty where there is.
std::string nccl_missing();

}  // namespace furlong
