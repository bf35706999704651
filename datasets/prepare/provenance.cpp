#include "datasets/prepare/provenance.h"

#include <fmt/chrono.h>
#include <xxhash.h>

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
  const Json one{{"path", source.name()},
                 {"bytes", source.file_bytes()},
                 {"xxh3_64", fmt::format("{:016x}", source.file_hash())},
                 {"compression", source.compression()}};
  const std::string line = json_line(one);
  if (further_.files == 0 && bytes_ + line.size() <= most_bytes_) {
    bytes_ += line.size();
    sources_.push_back(one);
    return;
  }
  ++further_.files;
  further_.bytes += source.file_bytes();
  const std::string chain = further_.hash + line;
  further_.hash = fmt::format("{:016x}", XXH3_64bits(chain.data(), chain.size()));
}

std::string Provenance::text(const Json& options) const {
  Json sources = sources_;
  if (further_.files > 0)
    sources.push_back({{"further_files", further_.files}, {"bytes", further_.bytes}, {"xxh3_64", further_.hash}});
  const Json all{{"furlong", version()},
                 {"commit", commit()},
                 {"created", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
                 {"sources", sources},
                 {"options", options}};
  return json_line(all);
}

void check_inputs(const std::vector<std::string>& inputs, const std::string& output) {
  if (std::count(inputs.begin(), inputs.end(), "-") > 1) throw UserError("standard input (-) is given more than once");
  refuse_replacing_inputs(inputs, output);
}

}  // namespace furlong
