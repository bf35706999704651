#pragma once
// The state of the job store, independent of the network: keys, values, joined ranks and waiting requests.
#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "communication/job_store/store_protocol.h"

namespace furlong::store {

/// The reply to one request.
struct Answer {
  Status status = Status::ok;
  std::shared_ptr<const std::string> payload;
};
/// Identifies a request of a rank.
struct RequestKey {
  int rank = 0;
  std::uint64_t id = 0;
};
using Answers = std::vector<std::pair<RequestKey, Answer>>;

/// Executes requests and collects the answers; the server sends them. Not thread-safe.
class StoreTable {
 public:
  explicit StoreTable(int world_size) : world_size_(world_size) {}

  /// Records that a rank has joined. Timeout messages list the ranks that have not.
  void join(int rank) { joined_.insert(rank); }
  /// Result of set or add, with answers to the requests that waited for the key.
  struct Change {
    Status status = Status::ok;
    std::string payload;
    Answers answers;
  };
  /// Executes set or add.
  Change change(Request request);
  /// Executes get, wait or check. Returns the answer, or stores the request until its keys exist or its time is over.
  Answers ask(int rank, Request request);
  /// Returns timeout answers to the waiting requests whose deadline has passed, and removes them.
  Answers expire(TimePoint now);
  /// Removes a rank's waiting requests.
  void forget_waiting(int rank);
  /// Returns the earliest deadline of the waiting requests.
  TimePoint next_deadline() const;

 private:
  struct Waiting {
    RequestKey request;
    Kind kind = Kind::get;
    std::string key;  ///< get only
    std::set<std::string> missing;
    TimePoint deadline;
  };

  Answers put(const std::string& key, std::string value);
  std::string why_timed_out(const Waiting& waiting) const;

  int world_size_;
  std::set<int> joined_;
  std::unordered_map<std::string, std::shared_ptr<const std::string>> values_;
  std::list<Waiting> waiting_;
};

}  // namespace furlong::store
