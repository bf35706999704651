#pragma once
// What the benchmark programs share: they wait for requests, one line of words `key=value` each, and answer with one
// line of JSON. So a runner can keep ours and a peer's process alive and let them work in alternation, under the same
// disturbances.
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "framework/core/error.h"

namespace furlong::benchmarks {

using Request = std::map<std::string, std::string>;

inline std::string text_of(const Request& request, const std::string& key, const std::string& otherwise) {
  const auto found = request.find(key);
  return found == request.end() ? otherwise : found->second;
}
inline std::int64_t integer_of(const Request& request, const std::string& key, std::int64_t otherwise) {
  const auto found = request.find(key);
  if (found == request.end()) return otherwise;
  std::size_t end = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(found->second, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  if (end == 0 || end != found->second.size()) throw UserError("{}={}: expected a whole number", key, found->second);
  return value;
}

/// The largest resident memory of this process so far, in bytes (VmHWM); 0 where the system does not tell.
inline std::int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

/// Answers requests until the input ends. What `answer` throws becomes {"error": ...}, and the next request is awaited.
template <class Answer>
int serve(const Answer& answer) {
  for (std::string line; std::getline(std::cin, line);) {
    Request request;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      const auto at = word.find('=');
      request[word.substr(0, at)] = at == std::string::npos ? "" : word.substr(at + 1);
    }
    nlohmann::json result;
    try {
      result = answer(request);
    } catch (const Error& error) {
      result = {{"error", error.what()}};
    }
    std::cout << result.dump() << std::endl;
  }
  return 0;
}

}  // namespace furlong::benchmarks
