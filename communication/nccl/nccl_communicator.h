#pragma once
// The GPU backend: NCCL, loaded at run time.
#include <chrono>
#include <memory>
#include <string>

#include "communication/communicator.h"
#include "communication/job_store/store_client.h"

namespace furlong {

/// Options of make_nccl_communicator().
struct NcclOptions {
  int rank = 0;
  int size = 1;
  Device device;  ///< a GPU that no other rank uses
  /// Name of the communicator, unique within the job.
  std::string name = "all";
  /// Time limit until all ranks have arrived and are connected.
  std::chrono::milliseconds connect_timeout{std::chrono::minutes(5)};
  /// Time to wait, after NCCL failed, for the job store to report which rank failed first, and why. After that NCCL's
  /// own error message is reported.
  std::chrono::milliseconds fault_patience{8000};
  /// Time limit for one operation. It ends deadlocks; see GlooOptions.
  std::chrono::milliseconds operation_timeout{std::chrono::hours(24)};
  /// See GlooOptions.
  std::chrono::milliseconds notice_after{std::chrono::minutes(1)}, notice_every{std::chrono::minutes(5)};
};

/// Connects `size` ranks. All ranks call it at the same time. Operations run on a separate stream, after the work
/// issued earlier on the caller's stream. Work::wait() makes the caller's stream wait, not the host. While a step is
/// recorded (GpuRecording), operations and waits are added as calls of the host: every operation must be waited for
/// before the recording ends, and the communicator must outlive the recording.
///
/// NCCL's calls do not block, and a watchdog thread supervises running operations. A fault that the store reports, an
/// NCCL error, or the operation timeout aborts NCCL, which ends all waits for a lost rank. If the host waits for the
/// device at that time, the results are invalid: call check() after such a wait.
///
/// The store must outlive the communicator. Throws UserError if NCCL or the GPU engine is missing or too old. Throws
/// MachineError if a rank does not arrive (naming it) or NCCL cannot connect the ranks. All ranks destroy the
/// communicator when no operation is running.
///
/// Reduction::maximum and minimum ignore NaN. An operation on empty tensors does nothing.
std::unique_ptr<Communicator> make_nccl_communicator(StoreClient& store, const NcclOptions& options);

/// Returns the reason why NCCL is not available on this machine, or "" if it is.
std::string nccl_missing();

}  // namespace furlong
