#pragma once
// What the store holds, without the network: keys, values, who has come, and who waits for what.
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
/// Which request of which rank.
struct RequestOf {
  int rank = 0;
  std::uint64_t id = 0;
};
using Answers = std::vector<std::pair<RequestOf, Answer>>;

class StoreTable {
 public:
  explicit StoreTable(int world_size) : world_size_(world_size) {}

  void join(int rank) { joined_.insert(rank); }
  /// set or add, and the requests that waited for the key.
  struct Change {
    Status status = Status::ok;
    std::string payload;
    Answers answers;
  };
  Change change(Request request);
  /// get, wait or check: answered now, or remembered until its keys are there or its time is over.
  Answers ask(int rank, Request request);
  Answers expire(TimePoint now);
  void forget_waiting(int rank);
  TimePoint next_deadline() const;

 private:
  struct Waiting {
    RequestOf request;
    Kind kind = Kind::get;
    std::string key;  ///< get's
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
