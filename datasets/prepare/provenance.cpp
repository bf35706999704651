#include "datasets/prepare/provenance.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <ctime>

#include "datasets/prepare/byte_source.h"
#include "framework/core/error.h"
#include "framework/core/json_output.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"

namespace furlong {

using Json = nlohmann::ordered_json;

void Provenance::add(const ByteSource& source) {
  sources_.push_back({{"path", source.name()},
                      {"bytes", source.file_bytes()},
                      {"xxh3_64", fmt::format("{:016x}", source.file_hash())},
                      {"compression", source.compression()}});
}

std::string Provenance::text(const Json& options) const {
  const Json all{{"furlong", version()},
                 {"commit", commit()},
                 {"created", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
                 {"sources", sources_},
                 {"options", options}};
  return json_line(all);
}

void check_inputs(const std::vector<std::string>& inputs, const std::string& output) {
  if (std::count(inputs.begin(), inputs.end(), "-") > 1) throw UserError("standard input (-) is given more than once");
  refuse_replacing_inputs(inputs, output);
}

}  // namespace furlong
