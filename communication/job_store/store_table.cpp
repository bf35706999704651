#include "communication/job_store/store_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>

namespace furlong::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
constexpr int most_named = 8;

std::shared_ptr<const std::string> shared(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace

StoreTable::Change StoreTable::change(Request request) {
  const std::string& key = request.keys.front();
  if (request.kind == Kind::set) return {Status::ok, {}, put(key, std::move(request.value))};
  std::int64_t number = 0;
  if (const auto found = values_.find(key); found != values_.end()) {
    const std::string& value = *found->second;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size())
      return {Status::no_number, fmt::format("the key holds {} bytes that are not an integer", value.size()), {}};
  }
  if (__builtin_add_overflow(number, request.delta, &number))
    return {Status::no_number, "the sum does not fit in 64 bits", {}};
  return {Status::ok, encode_number(number), put(key, std::to_string(number))};
}

Answers StoreTable::put(const std::string& key, std::string value) {
  const auto shared_value = shared(std::move(value));
  values_[key] = shared_value;
  Answers out;
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    if (entry->missing.erase(key) == 0 || !entry->missing.empty()) {
      ++entry;
      continue;
    }
    out.push_back({entry->request, {Status::ok, entry->kind == Kind::get ? shared_value : shared({})}});
    entry = waiting_.erase(entry);
  }
  return out;
}

Answers StoreTable::ask(int rank, Request request) {
  const RequestKey asked{rank, request.id};
  std::set<std::string> missing;
  for (const std::string& key : request.keys) {
    if (!values_.contains(key)) missing.insert(key);
  }
  if (request.kind == Kind::check)
    return {{asked, {Status::ok, shared(std::string(1, missing.empty() ? '\1' : '\0'))}}};
  if (missing.empty())
    return {{asked, {Status::ok, request.kind == Kind::get ? values_.at(request.keys.front()) : shared({})}}};
  const TimePoint deadline = steady_clock::now() + milliseconds(request.timeout);
  waiting_.push_back({asked, request.kind, request.keys.front(), std::move(missing), deadline});
  return {};
}

Answers StoreTable::expire(TimePoint now) {
  Answers out;
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    if (now < entry->deadline) {
      ++entry;
      continue;
    }
    out.push_back({entry->request, {Status::timed_out, shared(why_timed_out(*entry))}});
    entry = waiting_.erase(entry);
  }
  return out;
}

void StoreTable::forget_waiting(int rank) {
  waiting_.remove_if([&](const Waiting& waiting) { return waiting.request.rank == rank; });
}

TimePoint StoreTable::next_deadline() const {
  TimePoint out = TimePoint::max();
  for (const Waiting& waiting : waiting_) out = std::min(out, waiting.deadline);
  return out;
}

std::string StoreTable::why_timed_out(const Waiting& waiting) const {
  std::string out = "no rank has set ";
  int named = 0;
  for (const std::string& key : waiting.missing) {
    if (named == most_named) break;
    out += fmt::format("{}{}", named++ > 0 ? ", " : "", key_text(key));
  }
  if (const auto more = waiting.missing.size() - static_cast<std::size_t>(named); more > 0)
    out += fmt::format(" and {} more", more);
  if (static_cast<int>(joined_.size()) == world_size_) return out + "; every rank has joined";
  out += "; ranks that never joined:";
  named = 0;
  for (int rank = 0; rank < world_size_ && named < most_named; ++rank) {
    if (!joined_.contains(rank)) out += fmt::format("{} {}", named++ > 0 ? "," : "", rank);
  }
  if (const int more = world_size_ - static_cast<int>(joined_.size()) - named; more > 0)
    out += fmt::format(" and {} more", more);
  return out;
}

}  // namespace furlong::store
