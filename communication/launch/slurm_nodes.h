#pragma once
// Expands Slurm's hostlist expressions (SLURM_JOB_NODELIST, SLURM_STEP_NODELIST) and its counts of tasks per node
// (SLURM_TASKS_PER_NODE, SLURM_STEP_TASKS_PER_NODE).
#include <string>
#include <vector>

namespace furlong {

/// Returns the hosts of a hostlist expression in order, as `scontrol show hostnames` prints them:
/// "node[01-03,7],gpu-a[1-2]x" gives node01, node02, node03, node7, gpu-a1x, gpu-a2x. Numbers are zero-padded to the
/// width of their range's lower end. Several brackets in one name give all combinations, the last bracket varying
/// fastest. `variable` is the environment variable that contained `text`, for messages. Throws UserError, with the
/// position, if the expression is malformed or has more than 65536 hosts (Slurm's limit for a range).
std::vector<std::string> expand_slurm_hosts(const std::string& variable, const std::string& text);

/// Returns the number of tasks on each node of a step, in the order of its node list: "2(x3),1" (two tasks on
/// each of three nodes, then one) gives 2, 2, 2, 1. Throws UserError like expand_slurm_hosts().
std::vector<int> expand_slurm_tasks_per_node(const std::string& variable, const std::string& text);

}  // namespace furlong
