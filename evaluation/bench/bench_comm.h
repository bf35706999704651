#pragma once
// furlong bench comm: what the operations between processes take, by size and beside the engine's own functions, and
// how much of it training hides behind backward.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "communication/process_group.h"
#include "trainers/settings/settings.h"

namespace furlong {

struct BenchCommOptions {
  std::vector<std::int64_t> bytes{8, 4096, 65536, 1 << 20, 25'000'000};
  std::int64_t repeats = 20;
};

/// One operation at one size S. All times are the slowest process's, of one operation.
struct BenchCommFigure {
  std::string operation;     ///< of bench_comm_operations()
  std::int64_t bytes = 0;    ///< S: of the largest tensor of a process; 0 of barrier
  std::int64_t at_once = 1;  ///< operations, one behind the other, in a repetition: short ones are not measured alone
  std::vector<double> seconds;  ///< of each repetition
  std::vector<double> raw;      ///< the same for the engine's own function, by turns; empty where it has none
  double median_seconds = 0;
  double raw_median_seconds = std::numeric_limits<double>::quiet_NaN();
};

/// all_reduce, reduce_scatter, all_gather, broadcast (from rank 0), exchange (each sends to the next and receives from
/// the one before), send_receive (from rank 0 to the last), barrier.
const std::vector<std::string>& bench_comm_operations();

/// S/t, bytes a second, and that times the operation's factor, as nccl-tests has them (doc/PERFORMANCE.md there):
/// 2(P-1)/P of all_reduce, (P-1)/P of reduce_scatter and all_gather, 1 of the others. The latter is what each link
/// carries, comparable over P.
double algorithm_bandwidth(const BenchCommFigure& figure, double seconds);
double bus_bandwidth(const BenchCommFigure& figure, double seconds, int processes);

/// All processes of the group together. Sizes are rounded down to what float32 and the number of processes divide, and
/// are at least that. Throws UserError where there is one process alone.
std::vector<BenchCommFigure> bench_comm(const ProcessGroup& group, const BenchCommOptions& options);

/// What training steps found, of one process or of all together: sums over steps.
struct BenchCommReductions {
  double seconds =
      0;  ///< that the engine's thread spent in the reductions of gradients, waits for slower processes among it
  double waited = 0;  ///< that training waited for them behind its backward (GradientReducer::seconds_waited)
  /// The rest went on while backward did. 0 where nothing was reduced.
  double hidden_share() const { return seconds > 0 ? std::max(0.0, 1 - waited / seconds) : 0; }
};

struct BenchCommTraining {
  std::int64_t parameters = 0, buckets = 0;
  std::int64_t bytes = 0;                    ///< that are reduced in a step
  std::vector<double> seconds;               ///< of each step, the slowest process's
  std::vector<std::int64_t> buckets_hidden;  ///< of each step on rank 0: those that went before its backward had ended
  double median_seconds = 0;
  std::vector<BenchCommReductions> ranks;
  BenchCommReductions all;
};

/// Takes `steps` training steps on the CPU, and three before them to warm up, without writing anything. Throws
/// UserError where the settings cannot be trained by several processes.
BenchCommTraining bench_comm_training(const ProcessGroup& group, const LoadedSettings& loaded, std::int64_t steps);

}  // namespace furlong
