#pragma once
// furlong bench comm: measures collective operations by size, and how much of their time overlaps with backward.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "communication/process_group.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// Options of bench_comm().
struct BenchCommOptions {
  std::vector<std::int64_t> bytes{8, 4096, 65536, 1 << 20, 25'000'000};
  std::int64_t repeats = 20;
};

/// Times of one operation at one size S, on the slowest rank.
struct BenchCommFigure {
  std::string operation;        ///< one of bench_comm_operations()
  std::int64_t bytes = 0;       ///< S: size of the largest tensor of a rank; 0 for barrier
  std::int64_t at_once = 1;     ///< operations in sequence per repetition; more than 1 for short ones
  std::vector<double> seconds;  ///< of each repetition
  double median_seconds = 0;
};

/// Returns all_reduce, reduce_scatter, all_gather, broadcast (from rank 0), exchange (each rank sends to the next and
/// receives from the previous), send_receive (from rank 0 to the last), barrier.
const std::vector<std::string>& bench_comm_operations();

/// Returns S/t, in bytes per second; t is the median.
double algorithm_bandwidth(const BenchCommFigure& figure);
/// Returns S/t times the factor of nccl-tests (its doc/PERFORMANCE.md): 2(P-1)/P for all_reduce, (P-1)/P for
/// reduce_scatter and all_gather, 1 for the others. This is the bandwidth of each link, comparable between world sizes.
double bus_bandwidth(const BenchCommFigure& figure, int world_size);

/// Measures all operations; all ranks of the group call it. Rounds sizes down to multiples of 4 bytes times the world
/// size, at least that. Throws UserError if the world size is 1.
std::vector<BenchCommFigure> bench_comm(const ProcessGroup& group, const BenchCommOptions& options);

/// Reductions of gradients in training steps, of one rank or of all ranks: sums over steps.
struct BenchCommReductions {
  double seconds = 0;  ///< time of reductions, including waits for slower ranks
  double waited = 0;   ///< time that training waited for them after backward (GradientReducer::seconds_waited)
  /// Returns the fraction of `seconds` that overlapped with backward, or 0 if nothing was reduced.
  double overlapped_fraction() const { return seconds > 0 ? std::max(0.0, 1 - waited / seconds) : 0; }
};

/// The result of bench_comm_training().
struct BenchCommTraining {
  std::int64_t parameters = 0, buckets = 0;
  std::int64_t bytes = 0;                        ///< reduced per step
  std::vector<double> seconds;                   ///< of each step, on the slowest rank
  std::vector<std::int64_t> overlapped_buckets;  ///< of each step on rank 0: buckets that started during backward
  double median_seconds = 0;
  std::vector<BenchCommReductions> ranks;
  BenchCommReductions all;
};

/// Runs three warm-up steps and `steps` training steps on the CPU, and writes nothing. Throws UserError if the settings
/// do not support several ranks.
BenchCommTraining bench_comm_training(const ProcessGroup& group, const LoadedSettings& loaded, std::int64_t steps);

}  // namespace furlong
