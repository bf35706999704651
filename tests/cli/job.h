#pragma once
// The ranks of one job, started as by a launcher.
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/program.h"
#include "tests/communication/job_store/store_testing.h"

namespace furlong::testing {

struct JobOptions {
  /// Returns the arguments of one rank from those of all ranks.
  std::function<void(int rank, std::vector<std::string>& arguments)> change = [](int, std::vector<std::string>&) {};
};

/// The ranks of one job.
class Job {
 public:
  /// Runs `furlong train config` in a folder, which holds the output of each rank.
  Job(int size, const std::filesystem::path& folder, const std::vector<std::string>& arguments,
      const JobOptions& options = {}) {
    const std::string port = std::to_string(store_testing::free_port()), world = std::to_string(size);
    for (int rank = 0; rank < size; ++rank) {
      const std::filesystem::path own = folder / ("rank" + std::to_string(rank));
      std::filesystem::create_directories(own);
      const std::vector<std::pair<const char*, std::string>> variables{
          {"RANK", std::to_string(rank)},       {"WORLD_SIZE", world},        {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", world},          {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port},
          {"FURLONG_JOB_SECRET", "of the test"}};
      std::vector<std::string> all = arguments;
      options.change(rank, all);
      for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
      processes_.push_back(std::make_unique<Program>(own, all));
      for (const auto& [name, value] : variables) unsetenv(name);
    }
  }

  Program& operator[](int rank) { return *processes_[static_cast<std::size_t>(rank)]; }
  /// A stopped process is killed after all others, without waiting for its status.
  std::vector<Finished> wait(int stopped = -1) {
    std::vector<Finished> found(processes_.size());
    for (const bool is_stopped : {false, true}) {
      for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
        if ((static_cast<int>(rank) == stopped) != is_stopped) continue;
        if (is_stopped) processes_[rank]->send(SIGKILL);
        found[rank] = processes_[rank]->wait();
      }
    }
    return found;
  }

 private:
  std::vector<std::unique_ptr<Program>> processes_;
};

inline std::vector<std::string> error_lines(const std::vector<Finished>& processes) {
  std::vector<std::string> found;
  for (const Finished& process : processes) {
    std::istringstream lines(process.err);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("error: ")) found.push_back(line);
    }
  }
  return found;
}

inline std::string all_errors(const std::vector<Finished>& processes) {
  std::string all;
  for (const Finished& process : processes) all += process.err;
  return all;
}

}  // namespace furlong::testing
