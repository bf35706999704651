#pragma once
// Slurm's two compact notations, of host names and of tasks per node, written out.
#include <string>
#include <vector>

namespace furlong {

/// The hosts of a Slurm node list in its order: "node[01-03,7],gpu-a[1-2]x" is node01, node02, node03, node7, gpu-a1x,
/// gpu-a2x. A number is padded with zeros to the width of its range's lower end; several brackets in one name run
/// through all combinations, the last one fastest. `variable` names the text in messages. Throws UserError for anything
/// else, and beyond 65536 hosts, Slurm's own limit for a range.
std::vector<std::string> expand_slurm_hosts(const std::string& variable, const std::string& text);

/// Tasks on each node of a step, in the order of its node list: "2(x3),1" is 2, 2, 2, 1. Throws UserError as above.
std::vector<int> expand_slurm_tasks_per_node(const std::string& variable, const std::string& text);

}  // namespace furlong
