#pragma once
// Expands Slurm's compact notations for host lists and tasks per node.
#include <string>
#include <vector>

namespace furlong {

/// Returns the hosts of a Slurm node list in order. "node[01-03,7],gpu-a[1-2]x" gives node01, node02, node03, node7,
/// gpu-a1x, gpu-a2x. Numbers are zero-padded to the width of their range's lower end. Several brackets in one name give
/// all combinations, the last bracket varying fastest. `variable` names the text in messages. Throws UserError for a
/// malformed list or more than 65536 hosts (Slurm's limit for a range).
std::vector<std::string> expand_slurm_hosts(const std::string& variable, const std::string& text);

/// Returns the number of tasks on each node of a step, in the order of its node list: "2(x3),1" gives 2, 2, 2, 1.
/// Throws UserError like expand_slurm_hosts().
std::vector<int> expand_slurm_tasks_per_node(const std::string& variable, const std::string& text);

}  // namespace furlong
